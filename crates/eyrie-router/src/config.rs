//! What a router is told at its start.

use crate::protocol::SavedAt;
use eyrie_transport::{Bind, RouterId};
use eyrie_wire::Incarnation;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What a router needs to know.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Config {
    /// Its number, which its events carry.
    pub id: RouterId,
    /// For each rank of the job, whether it is at home at this router.
    pub at_home: Vec<bool>,
    /// Where ranks connect.
    pub listen: Bind,
    /// Where the log goes beyond `log_memory`.
    pub spill_dir: PathBuf,
    /// Bytes of log held in memory, and on disk.
    pub log_memory: u64,
    pub log_disk: u64,
    /// A message is acknowledged to its sender when its destination has received it, not as soon as
    /// it is logged: then it outlives this router.
    pub until_received: bool,
    /// It takes over from a router of the same number that was lost: it knows nothing of the ranks
    /// at home here until each says what it has.
    pub takes_over: bool,
    /// Where all is that another router of the same number held
    /// ([`crate::RouterCommand::Save`]): this one goes on with it.
    pub saved: Option<SavedAt>,
    /// For each rank of the job the incarnation that may speak at the start.
    pub incarnations: Vec<Incarnation>,
}
