//! The control state machine: events in, commands out, time passed in. It reads no clock, opens
//! nothing, waits for nothing; and it must never give a command to a node that was declared dead,
//! nor let the log be truncated beyond an image that is still needed.

pub mod answer;
mod archive;
mod checkpoint;
mod copies;
mod crash;
mod cut_off;
mod ending;
mod failure;
mod faults;
mod fence;
mod injection;
mod io;
mod live;
mod measurements;
mod measuring;
mod migrate;
mod missing;
mod moves;
mod node;
mod nodes;
mod notes;
mod notice;
mod output;
mod overdue;
pub mod placement;
mod pmi;
pub mod proposal;
mod propose;
mod rank;
mod reach;
mod reactor;
mod rearrange;
pub mod redundancy;
mod requests;
mod role;
mod roles;
mod save;
pub mod saved;
mod saving;
pub mod schedule;
pub mod signal;
mod snapshot;
mod speed;
pub mod state;
mod store_nodes;
mod stores;
mod timeouts;
mod users;

#[cfg(test)]
mod simulation;

pub use io::{Command, Event, Image, Mark, Source, StoreId};
pub use moves::{IfSlow, Manner, Move, Way};
pub use reactor::{Config, Machine};
pub use save::SAVED_CODE;
pub use state::{NodeStateName, RankStateName};
