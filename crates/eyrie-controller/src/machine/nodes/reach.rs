//! Which hosts do not reach each other, though the controller reaches both. Decides nothing.

use eyrie_wire::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Pairs of nodes of which the first does not reach the second, and since when that is known.
#[derive(Default, Serialize, Deserialize)]
pub struct Reach(BTreeMap<(NodeId, NodeId), Duration>);

impl Reach {
    /// A node reaches another one again, or not any more.
    pub fn set(&mut self, from: NodeId, to: NodeId, reached: bool, now: Duration) {
        if reached {
            self.0.remove(&(from, to));
        } else {
            self.0.entry((from, to)).or_insert(now);
        }
    }

    /// Nothing is known any more of a node that is lost.
    pub fn forget(&mut self, node: NodeId) {
        self.0.retain(|(from, to), _| *from != node && *to != node);
    }

    /// Whether all nodes reach each other.
    pub fn is_whole(&self) -> bool {
        self.0.is_empty()
    }

    /// Pairs of nodes of which the first does not reach the second.
    pub fn pairs(&self) -> impl Iterator<Item = (NodeId, NodeId)> + '_ {
        self.0.keys().copied()
    }

    pub fn cannot_meet(&self, one: NodeId, other: NodeId) -> bool {
        self.0.contains_key(&(one, other)) || self.0.contains_key(&(other, one))
    }

    /// Since when two nodes cannot meet.
    pub fn since(&self, one: NodeId, other: NodeId) -> Option<Duration> {
        [(one, other), (other, one)].iter().filter_map(|pair| self.0.get(pair)).min().copied()
    }

    /// The controller itself stood still for so long.
    pub fn extend(&mut self, gap: Duration) {
        self.0.values_mut().for_each(|since| *since += gap);
    }

    /// What the controller's own host did not reach meanwhile it may reach now.
    pub fn begin_again(&mut self, now: Duration) {
        self.0.values_mut().for_each(|since| *since = now);
    }
}
