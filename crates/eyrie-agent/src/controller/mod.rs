//! The agent's controller: the connection, the copy of the journal that is kept for it, and what
//! becomes of the job without one.

pub mod connection;
pub mod contact;
pub mod journal;
pub mod orphan;
