//! Failures that users ask for, and their moment.

pub mod moments;
pub mod pending;
