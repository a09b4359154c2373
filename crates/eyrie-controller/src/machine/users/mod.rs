//! What users ask of the machine, and what they are answered.

pub mod answer;
pub mod asked;
pub mod balance;
pub mod measurements;
mod propose;
