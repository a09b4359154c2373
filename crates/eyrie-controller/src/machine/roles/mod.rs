//! Roles on nodes: where they are, and what is kept twice by them.

pub mod entry;
pub mod hosting;
pub mod kind;
pub mod missing;
pub mod places;
pub mod reach;
pub mod redundancy;
pub mod registry;
pub mod routers;
pub mod stores;
#[cfg(test)]
mod trial;
pub mod why;
