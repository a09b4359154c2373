//! What the provider does, whoever calls it: matching and one-sided requests ([`rank`]) above the
//! way that messages take ([`path`]). It reaches the process around it through [`world::World`] and
//! [`router_path::host::Host`] only, and never ends it: errors go up.

mod asking;
pub mod error;
pub mod matching;
mod mutation;
pub mod path;
pub mod rank;
pub mod rma;
pub mod router_path;
pub mod world;
