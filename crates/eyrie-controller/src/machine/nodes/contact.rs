//! Whether the controller's host may be cut off from the nodes, and which of them it hears.

use eyrie_wire::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// Since when the controller stands aside, and which nodes it has heard of since.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CutOff {
    pub since: Duration,
    pub heard: BTreeSet<NodeId>,
}

#[derive(Default, Serialize, Deserialize)]
pub struct Contact {
    /// Nodes on the controller's host.
    here: BTreeSet<NodeId>,
    /// The controller stands aside.
    cut_off: Option<CutOff>,
    /// Nodes that were not heard when it went on: they have a heartbeat timeout to come back.
    returning: BTreeSet<NodeId>,
}

impl Contact {
    /// These nodes are on the controller's host.
    pub fn set_here(&mut self, nodes: impl IntoIterator<Item = NodeId>) {
        self.here = nodes.into_iter().collect();
    }

    /// Whether the node is on the controller's host.
    pub fn is_here(&self, node: NodeId) -> bool {
        self.here.contains(&node)
    }

    /// Whether any node is on the controller's host.
    pub fn has_some_here(&self) -> bool {
        !self.here.is_empty()
    }

    pub fn is_cut_off(&self) -> bool {
        self.cut_off.is_some()
    }

    /// For how long the controller has stood aside, if it does.
    pub fn cut_off_for(&self, now: Duration) -> Option<Duration> {
        self.cut_off.as_ref().map(|cut_off| now.saturating_sub(cut_off.since))
    }

    /// The controller stands aside from now on.
    pub fn step_aside(&mut self, now: Duration) {
        self.cut_off = Some(CutOff { since: now, heard: BTreeSet::new() });
    }

    /// It does not any more.
    pub fn go_on(&mut self) -> Option<CutOff> {
        self.cut_off.take()
    }

    /// A node says something. The nodes that were heard since the controller stands aside, if it
    /// does.
    pub fn hear(&mut self, node: NodeId) -> Option<&BTreeSet<NodeId>> {
        self.returning.remove(&node);
        let cut_off = self.cut_off.as_mut()?;
        cut_off.heard.insert(node);
        Some(&cut_off.heard)
    }

    /// These nodes have a heartbeat timeout to come back.
    pub fn await_return(&mut self, nodes: impl IntoIterator<Item = NodeId>) {
        self.returning = nodes.into_iter().collect();
    }

    /// Whether the node may still come back.
    pub fn may_return(&self, node: NodeId) -> bool {
        self.returning.contains(&node)
    }

    /// The node is declared dead.
    pub fn forget(&mut self, node: NodeId) {
        self.returning.remove(&node);
    }
}
