//! What becomes of a rank that dies, or is stopped.

pub mod recovering;
pub mod stop;
