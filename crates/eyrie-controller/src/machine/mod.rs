//! The control state machine: events in, commands out, time passed in. It reads no clock, opens
//! nothing, waits for nothing; and it must never give a command to a node that was declared dead,
//! nor let the log be truncated beyond an image that is still needed.
//!
//! A folder is a component, with the handlers that change it. A component keeps its fields to
//! itself; a handler borrows those that it needs by name, and puts what follows elsewhere into the
//! outbox ([`outbox::consequence`]). Only `components`, `dispatch`, `follow`, `look` and
//! `reactor` know all of them.

mod completing;
mod components;
mod config;
mod dispatch;
mod domains;
mod ending;
mod faults;
mod follow;
pub mod health;
mod images;
mod io;
mod leftovers;
mod look;
mod moves;
mod nodes;
mod outbox;
mod output;
pub mod placement;
mod pmi;
mod questions;
mod ranks;
mod reactor;
mod recovery;
pub(crate) mod roles;
mod saving;
mod sent_signals;
pub mod signal_names;
mod starting;
pub mod state;
mod timeouts;
pub mod traffic;
mod users;

#[cfg(test)]
mod said;
#[cfg(test)]
mod simulation;

pub use components::Machine;
pub use config::Config;
pub use domains::entry::{LineState, OtherDomain};
pub use domains::progress::{Leaving, Progress};
pub use images::schedule;
pub use io::{Command, Event, FromPeer, Mark, Peer, Source, ToPeer};
pub use moves::entry::Move;
pub use roles::redundancy;
pub use saving::contents::Saved;
pub use saving::steps::SAVED_CODE;
pub use state::{NodeStateName, RankStateName};
pub use users::answer;
