//! What becomes of a rank that dies, or is stopped.

pub mod course;
pub mod gathered;
pub mod stop;
