//! The provider's work, independent of libfabric: matching and one-sided requests ([`rank`]), above
//! the way that messages take ([`path`]). It must reach the process around it only through
//! [`world::World`], [`router_path::host::Host`] and [`ledger_path::host::LedgerHost`], and must
//! never end it: it returns errors.

mod again;
pub mod asking;
pub mod error;
pub mod ledger_path;
pub mod matching;
mod mutation;
pub mod path;
pub mod rank;
pub mod rma;
pub mod router_path;
#[cfg(test)]
mod testing;
pub mod world;
