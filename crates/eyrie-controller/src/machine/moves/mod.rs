//! Ranks that move to other nodes, and nodes that become free by that.

pub mod destinations;
pub mod entry;
pub mod mover;
pub mod moving;
pub mod notice;
pub mod obstacles;
pub mod orders;
pub mod rearrange;
pub mod rounds;
