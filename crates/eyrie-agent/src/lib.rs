//! A node of a job: starts ranks (PMI), watches them, passes their output on, captures and restores
//! them. One process with one loop. It decides nothing: the controller does. No rank outlives its
//! agent.

mod background;
mod controller;
mod ending;
mod exchange;
mod host_dir;
mod images;
mod measure;
mod monitor;
pub mod mpi;
mod node;
mod notice;
mod rank;
mod rank_messages;
mod reach;
mod requests;
mod roles;
mod setup;
mod signals;
mod start;

pub use controller::connection::{connect, read_secret, user_socket};
pub use controller::contact::HAS_CONTROLLER;
pub use host_dir::facts_of;
pub use rank::guards;

use eyrie_wire::auth::Secret;
use eyrie_wire::role_address::Addr;
use eyrie_wire::NodeId;
use std::path::PathBuf;

/// What an agent needs to know.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    pub node: NodeId,
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
