//! Images of ranks: when they are due, how they are taken, in which stores they are, and which
//! ranks have had none for too long.

pub mod captures;
pub mod copies;
pub mod counting;
pub mod overdue;
pub mod replicate;
pub mod schedule;
pub mod store_choice;
pub mod stores;
pub mod why;
