//! The configuration of a router.

use crate::protocol::SavedAt;
use eyrie_wire::directory::KeptUntil;
use eyrie_wire::domains::Domains;
use eyrie_wire::role_address::Bind;
use eyrie_wire::{Incarnation, RouterId};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What a router needs to know at its start.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Config {
    /// Its number, which its events carry.
    pub id: RouterId,
    /// For each rank of the job, whether this is its primary router.
    pub is_primary: Vec<bool>,
    /// Where ranks connect.
    pub listen: Bind,
    /// Where the log is written beyond `log_memory`.
    pub spill_dir: PathBuf,
    /// Bytes of log in memory, and on disk.
    pub log_memory: u64,
    pub log_disk: u64,
    /// Until when senders keep a message, and so when this router acknowledges it.
    pub kept_until: KeptUntil,
    /// Whether this router takes over from a lost one of the same number. Then it knows nothing of
    /// the ranks whose primary router it is until each says what it has.
    pub takes_over: bool,
    /// Where all is saved that another router of the same number held
    /// ([`crate::RouterCommand::Save`]): this one goes on with it.
    pub saved: Option<SavedAt>,
    /// For each rank of the job the incarnation that may connect at the start.
    pub incarnations: Vec<Incarnation>,
    /// This router is the gateway of its domain: the primary router of all ranks of other domains.
    pub gateway: Option<Gateway>,
}

/// What a gateway needs to know besides.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Gateway {
    pub domains: Domains,
    /// The port at which it listens, on all interfaces, for gateways of other domains.
    pub port: u16,
}
