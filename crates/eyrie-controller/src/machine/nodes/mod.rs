//! The nodes of the job: which are up, drained or spares, and how often each is asked for a
//! heartbeat. Decides nothing about ranks.

pub mod contact;
pub mod cut_off;
pub mod entry;
pub mod heartbeats;
pub mod reach;
pub mod watch;

use crate::record::in_words;
use entry::{Heartbeat, NodeEntry};
use eyrie_wire::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::{Index, IndexMut};
use std::time::Duration;

#[derive(Serialize, Deserialize)]
pub struct Nodes {
    all: Vec<NodeEntry>,
    /// Nodes that have not come.
    missing: usize,
    /// Names of the hosts that they are; empty on one machine.
    hosts: Vec<String>,
    spares: u32,
    heartbeat_interval: Duration,
    /// Nodes that are suspect or failing: where another can take a rank it does not come here.
    unwell: BTreeSet<NodeId>,
}

impl Index<NodeId> for Nodes {
    type Output = NodeEntry;

    fn index(&self, node: NodeId) -> &NodeEntry {
        &self.all[node.index()]
    }
}

impl IndexMut<NodeId> for Nodes {
    fn index_mut(&mut self, node: NodeId) -> &mut NodeEntry {
        &mut self.all[node.index()]
    }
}

impl Nodes {
    /// `with_ranks` nodes that start with ranks, and then the spares; a node that has not answered
    /// for `timeout` is declared dead.
    pub fn new(with_ranks: u32, spares: u32, hosts: Vec<String>, timeout: Duration) -> Nodes {
        let all: Vec<NodeEntry> =
            (0..with_ranks + spares).map(|node| NodeEntry::new(node >= with_ranks)).collect();
        let heartbeat_interval = timeout / 4;
        let unwell = BTreeSet::new();
        Nodes { missing: all.len(), all, hosts, spares, heartbeat_interval, unwell }
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn get(&self, node: NodeId) -> Option<&NodeEntry> {
        self.all.get(node.index())
    }

    pub fn get_mut(&mut self, node: NodeId) -> Option<&mut NodeEntry> {
        self.all.get_mut(node.index())
    }

    pub fn iter(
        &self,
    ) -> impl DoubleEndedIterator<Item = (NodeId, &NodeEntry)> + ExactSizeIterator {
        self.all.iter().enumerate().map(|(node, entry)| (NodeId(node as u32), entry))
    }

    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    pub fn spares(&self) -> u32 {
        self.spares
    }

    pub fn heartbeat_interval(&self) -> Duration {
        self.heartbeat_interval
    }

    /// The nodes that are up, in order.
    pub fn up(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.iter().filter(|(_, entry)| entry.is_up()).map(|(node, _)| node)
    }

    pub fn is_up(&self, node: NodeId) -> bool {
        self.get(node).is_some_and(NodeEntry::is_up)
    }

    pub fn is_drained(&self, node: NodeId) -> bool {
        self.get(node).is_some_and(NodeEntry::is_drained)
    }

    /// Nodes that are suspect or failing.
    pub fn unwell(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.unwell.iter().copied()
    }

    /// Whether a node is suspect or failing.
    pub fn set_unwell(&mut self, node: NodeId, unwell: bool) {
        if unwell {
            self.unwell.insert(node);
        } else {
            self.unwell.remove(&node);
        }
    }

    /// How many nodes have not come.
    pub fn missing(&self) -> usize {
        self.missing
    }

    /// As [`Nodes::missing`], which.
    pub fn missing_in_words(&self) -> Vec<String> {
        let missing = self.iter().filter(|(_, entry)| !entry.is_up());
        missing.map(|(node, _)| in_words(node, &self.hosts)).collect()
    }

    /// Whether ranks of these nodes could go to another one.
    pub fn has_other_than(&self, nodes: &[NodeId]) -> bool {
        self.up().any(|other| !nodes.contains(&other) && !self[other].is_drained())
    }

    /// One more node, which stays free until ranks need it.
    pub fn join(&mut self, host: String) {
        self.all.push(NodeEntry::new(true));
        self.missing += 1;
        self.spares += 1;
        self.hosts.push(host);
    }

    /// One of the missing nodes has come, or never will.
    fn no_longer_missing(&mut self) {
        self.missing -= 1;
    }

    /// The heartbeats of the nodes that are up.
    fn heartbeats(&self) -> impl Iterator<Item = &Heartbeat> {
        self.all.iter().filter_map(NodeEntry::heartbeat)
    }

    /// The heartbeats of the nodes that are up, with their nodes.
    fn heartbeats_mut(&mut self) -> impl Iterator<Item = (NodeId, &mut Heartbeat)> {
        let all = self.all.iter_mut().enumerate();
        all.filter_map(|(node, entry)| Some((NodeId(node as u32), entry.heartbeat_mut()?)))
    }

    /// The controller itself stood still for so long.
    pub fn extend(&mut self, gap: Duration) {
        for (_, heartbeat) in self.heartbeats_mut() {
            heartbeat.extend(gap);
        }
    }

    /// When the next heartbeat is to be asked for, or the next node is late.
    pub fn next_heartbeat(&self, now: Duration, timeout: Duration) -> Option<Duration> {
        self.heartbeats().map(|h| h.next(now, self.heartbeat_interval, timeout)).min()
    }

    /// Nodes that have missed two heartbeats or more, and for how long nothing was heard of each.
    pub fn silent(&self, now: Duration) -> Vec<(NodeId, Duration)> {
        let long = self.heartbeat_interval * 2;
        let silent_for =
            |entry: &NodeEntry| entry.heartbeat()?.silent_for(now).filter(|silent| *silent > long);
        self.iter().filter_map(|(node, entry)| Some((node, silent_for(entry)?))).collect()
    }
}
