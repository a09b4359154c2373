//! What the commands `eyrie` and `eyrie-bench` have in common: where they write, how they end, and
//! the options of a plan. It decides nothing about jobs.

pub mod ending;
pub mod instance;
pub mod out;
pub mod progress;
pub mod table;
