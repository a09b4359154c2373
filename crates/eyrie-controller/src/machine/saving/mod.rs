//! Saving a job, and what another machine goes on from.

pub mod contents;
pub mod phase;
pub mod steps;
