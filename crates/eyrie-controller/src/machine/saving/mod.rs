//! Saving a job, and what another machine goes on from.

pub mod phase;
pub mod saved;
pub mod steps;
