//! How healthy the nodes are: what rules find there, which rules fire too often, and what is to be
//! done about it. It never moves or images a rank itself: that follows elsewhere.

mod acting;
pub mod entry;
pub mod equals;
mod muting;
pub mod precautions;

use super::nodes::Nodes;
use entry::NodeHealth;
use eyrie_interface::options::Precaution;
use eyrie_wire::health::HealthState;
use eyrie_wire::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Of so many nodes that are up, one at most is drained for its health at a time: when a rule finds
/// more, the rule may be wrong.
const DRAINED_OF: usize = 4;

/// The health of all nodes of which something was said.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Health(BTreeMap<NodeId, NodeHealth>);

impl Health {
    pub fn get(&self, node: NodeId) -> Option<&NodeHealth> {
        self.0.get(&node)
    }

    fn entry(&mut self, node: NodeId) -> &mut NodeHealth {
        self.0.entry(node).or_default()
    }

    /// Nodes of which something was said.
    fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.0.keys().copied()
    }

    fn is_well(&self, node: NodeId) -> bool {
        self.get(node).is_none_or(|entry| entry.state() == HealthState::Ok)
    }

    /// Why a node is not drained, for the sake of others.
    fn cannot_drain(&self, nodes: &Nodes, node: NodeId) -> Option<String> {
        let open = |other: &NodeId| *other != node && !nodes.is_drained(*other);
        if !nodes.up().filter(open).any(|other| self.is_well(other)) {
            return Some("no other node that is well could take its ranks".into());
        }
        let drained = |other: &NodeId| {
            let by_us = self.get(*other).is_some_and(|entry| entry.was_drained());
            by_us && nodes.is_up(*other) && nodes.is_drained(*other)
        };
        let already = self.nodes().filter(drained).count();
        (already >= (nodes.up().count() / DRAINED_OF).max(1)).then(|| {
            format!("{already} of the nodes are drained for their health already: `eyrie undrain` the one that is well")
        })
    }

    /// What is to be done about a node that was not done yet.
    fn pending(&self, node: NodeId, [suspect, failing]: [Precaution; 2]) -> Option<Precaution> {
        let entry = self.get(node)?;
        let wanted = match entry.state() {
            HealthState::Ok => Precaution::Nothing,
            HealthState::Suspect => suspect,
            HealthState::Failing => failing,
        };
        (wanted > entry.taken()).then_some(wanted)
    }
}
