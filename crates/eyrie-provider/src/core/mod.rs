//! What the provider does, whoever calls it: matching, clock, replay, streams to the routers. It
//! reaches the world through [`host::Host`] only and never ends the process: errors go up.

mod again;
mod asking;
pub mod delivery;
pub mod error;
pub mod host;
pub mod matching;
mod mutation;
mod observed;
pub mod rank;
pub mod replaced;
pub mod replay;
pub mod rma;
pub mod sender;

#[cfg(test)]
mod tests;
