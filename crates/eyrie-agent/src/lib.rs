//! A node of a job: starts ranks (PMI), watches them, passes their output on, takes and restores their images.
//! One process with one loop; it decides nothing, the controller does. No rank outlives its agent.

mod connection;
mod family;
mod files;
mod guards;
mod launch;
pub mod leftovers;
mod node;
mod page;
mod pmi;
mod process;
mod shared;
mod streams;
mod transfer;

pub use connection::{connect, read_secret};
pub use family::{kill_all_children, Reaped};
pub use shared::remove as remove_segments;

use eyrie_wire::Node;
use std::path::PathBuf;

/// What an agent needs to know; the secret lies in `dir`.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// The job's directory.
    pub dir: PathBuf,
    pub node: Node,
}

/// Runs a node until the controller ends it or is gone. On return no rank of this node lives.
///
/// # Errors
/// When the agent cannot start: no secret, no controller, refused.
pub fn run(config: &AgentConfig) -> anyhow::Result<()> {
    node::run(config)
}
