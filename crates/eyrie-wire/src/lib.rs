//! frames and messages between roles, versions, authentication.
