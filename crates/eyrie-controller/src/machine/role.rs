//! What the controller knows of roles on nodes. Decides nothing.

use super::io::StoreId;
use eyrie_transport::{Addr, RouterId};
use eyrie_wire::{Node, Rank};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A router or a store on a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// How many have had its number before.
    pub(super) generation: u32,
    pub(super) node: Node,
    /// The node of the one before.
    pub(super) before: Option<Node>,
    /// Where it listens; none while it starts.
    pub(super) addr: Option<Addr>,
    pub(super) until: Duration,
    /// Starts in a row that have failed.
    pub(super) failed: u32,
}

/// Routers and stores on nodes; none where they run beside the controller.
#[derive(Default, Debug, Serialize, Deserialize)]
pub struct Roles {
    pub(super) routers: Vec<Entry>,
    /// Those that are not lost.
    pub(super) stores: BTreeMap<StoreId, Entry>,
    pub(super) next_store: StoreId,
    /// Ranks that a router which took over has not heard yet: should one die, nobody knows what it
    /// told the lost router.
    pub(super) unheard: BTreeSet<(Rank, RouterId)>,
    /// The home router of each rank.
    pub(super) home: Vec<RouterId>,
    pub(super) epoch: u64,
    /// Starts of stores in a row that have failed.
    pub(super) failed_stores: u32,
}

impl Roles {
    /// None yet. With an `archive` that has the first number.
    pub(super) fn after(archive: bool) -> Roles {
        Roles { next_store: archive.into(), ..Roles::default() }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Entry> {
        self.routers.iter().chain(self.stores.values())
    }
}
