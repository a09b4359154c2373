//! Failures that users ask for, and their moment.

pub mod injecting;
pub mod pending;
