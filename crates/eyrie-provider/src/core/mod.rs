//! What the provider does, whoever calls it: matching, clock, streams to the routers.

pub mod delivery;
pub mod identity;
pub mod matching;
pub mod rank;
pub mod replay;
pub mod sender;
pub mod socket;
