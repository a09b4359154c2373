//! A node of a job: starts ranks (PMI), watches them, passes their output on, captures and restores
//! them. One process with one loop. It decides nothing: the controller does. No rank outlives its
//! agent.

mod capture;
mod channel;
mod connection;
mod ending;
mod family;
mod files;
pub mod guards;
mod host_dir;
mod incoming;
mod journal;
mod keeping;
mod late;
mod launch;
pub mod leftovers;
mod measure;
mod measuring;
pub mod mpi;
mod node;
mod notice;
mod orphan;
mod outlive;
mod page;
mod passing;
pub mod place;
mod pmi;
mod prepare;
mod process;
mod rank_messages;
mod reach;
mod refusal;
mod requests;
mod roles;
mod saver;
mod shared;
mod signals;
mod slow;
mod start;
mod streams;
mod sweeper;
mod transfer;
mod waiting;
mod watching;
mod write_back;
mod writer;

pub use connection::{connect, read_secret, user_socket};
pub use family::{children_of, descendants, kill_children_but, Reaped};
pub use host_dir::facts_of;
pub use outlive::outlive_signals;
pub use saver::PATIENCE as SAVER_PATIENCE;
pub use shared::remove as remove_segments;
pub use sweeper::{sweep, Sweeper, Wait};
pub use waiting::HAS_CONTROLLER;

use eyrie_wire::addr::Addr;
use eyrie_wire::auth::Secret;
use eyrie_wire::Node;
use std::path::PathBuf;

/// What an agent needs to know.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    pub node: Node,
    /// Where the controller listens.
    pub controller: Addr,
    pub secret: Secret,
    /// A directory with files that came with this process; the agent removes it.
    pub sent: Option<PathBuf>,
    /// Where the roles of this node write their log.
    pub log: Option<PathBuf>,
}

/// Runs a node until the controller ends it, or until the controller is gone and no other one has
/// come in time. On return no process of a rank is left on this node.
///
/// # Errors
/// When the agent cannot start: no controller, refused.
pub fn run(config: &AgentConfig) -> anyhow::Result<()> {
    node::run(config)
}
