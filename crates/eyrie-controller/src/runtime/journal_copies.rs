//! Which hosts cannot keep a copy of the journal, and what the machine knows of the copies.

use crate::machine::redundancy::JournalCopies;
use eyrie_wire::NodeId;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// After so long a host that could not keep a copy may have room again.
const ROOM_AGAIN: Duration = Duration::from_secs(60);

#[derive(Default)]
pub struct Copies {
    /// Nodes that cannot keep one, and since when.
    refused: BTreeMap<NodeId, Instant>,
    /// What the machine was told.
    told: JournalCopies,
}

impl Copies {
    /// Those of these nodes that may be able to keep a copy.
    pub fn possible(&mut self, nodes: impl Iterator<Item = (NodeId, u32)>) -> Vec<(NodeId, u32)> {
        self.refused.retain(|_, since| since.elapsed() < ROOM_AGAIN);
        nodes.filter(|(node, _)| !self.refused.contains_key(node)).collect()
    }

    /// This node cannot keep one. False: that is known.
    pub fn refuse(&mut self, node: NodeId) -> bool {
        self.refused.insert(node, Instant::now()).is_none()
    }

    /// Whether the machine is to be told of this: it differs from what it was told last.
    pub fn is_new(&mut self, copies: &JournalCopies) -> bool {
        let is_new = *copies != self.told;
        self.told.clone_from(copies);
        is_new
    }
}
