//! Ranks on their way to other nodes, and who waits for it. Decides nothing.

use super::answer::RequestId;
use eyrie_wire::{Node, Rank};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A rank that is to go to another node.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Move {
    pub from: Node,
    /// `None`: where the placement says.
    pub to: Option<Node>,
    /// An image that was asked for since then is the one that it goes with.
    pub since: Duration,
    /// When it was stopped for that.
    pub stopped: Option<Duration>,
}

/// Moves that were asked for together.
#[derive(Debug, Serialize, Deserialize)]
pub struct Pending {
    /// A user who waits for them.
    pub request: Option<RequestId>,
    pub ranks: BTreeSet<Rank>,
    /// The node that becomes free by them.
    pub drains: Option<Node>,
    /// Ranks that could not move, and why.
    pub stayed: Vec<String>,
}

/// All moves of a job.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Moves {
    pub ranks: BTreeMap<Rank, Move>,
    pub pending: Vec<Pending>,
}

impl Moves {
    /// The move is over; `stayed`: why it did not take place.
    pub fn end(&mut self, rank: Rank, stayed: Option<&str>) -> Option<Move> {
        let ended = self.ranks.remove(&rank)?;
        for pending in self.pending.iter_mut().filter(|p| p.ranks.contains(&rank)) {
            pending.ranks.remove(&rank);
            pending.stayed.extend(stayed.map(|why| format!("rank {rank} did not move: {why}")));
        }
        Some(ended)
    }
}
