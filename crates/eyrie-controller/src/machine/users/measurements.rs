//! Measurements that users wait for, as far as agents have answered. Decides nothing.

use super::answer::RequestId;
use eyrie_interface::proposal::Goal;
use eyrie_wire::control::NodeUsage;
use eyrie_wire::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A measurement that a user waits for.
#[derive(Debug, Serialize, Deserialize)]
pub struct Measurement {
    n: u64,
    pub request: RequestId,
    pub goal: Goal,
    until: Duration,
    /// Nodes that have not answered.
    awaited: BTreeSet<NodeId>,
    pub heard: BTreeMap<NodeId, NodeUsage>,
}

impl Measurement {
    /// A node that has not answered.
    pub fn first_missing(&self) -> Option<NodeId> {
        self.awaited.first().copied()
    }
}

/// All measurements.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Measurements {
    last: u64,
    pending: Vec<Measurement>,
}

impl Measurements {
    /// These nodes are to measure for a user, and to answer in time. The number of the measurement.
    pub fn begin(
        &mut self,
        request: RequestId,
        goal: Goal,
        awaited: BTreeSet<NodeId>,
        until: Duration,
    ) -> u64 {
        self.last += 1;
        let n = self.last;
        let heard = BTreeMap::new();
        self.pending.push(Measurement { n, request, goal, until, awaited, heard });
        n
    }

    /// A node has measured; false when it was not awaited.
    pub fn hear(&mut self, node: NodeId, n: u64, used: NodeUsage) -> bool {
        let measurement = self.pending.iter_mut().find(|measurement| measurement.n == n);
        let Some(measurement) = measurement.filter(|m| m.awaited.contains(&node)) else {
            return false;
        };
        measurement.awaited.remove(&node);
        measurement.heard.insert(node, used);
        true
    }

    /// Takes those for which all nodes have measured that are still up, or one is late.
    pub fn take_over(&mut self, now: Duration, is_up: impl Fn(NodeId) -> bool) -> Vec<Measurement> {
        self.pending.iter_mut().for_each(|m| m.awaited.retain(|node| is_up(*node)));
        let is_over = |m: &Measurement| m.awaited.is_empty() || now >= m.until;
        let (over, rest) = std::mem::take(&mut self.pending).into_iter().partition(is_over);
        self.pending = rest;
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage() -> NodeUsage {
        NodeUsage {
            over: Duration::from_secs(1),
            kernel: "k".into(),
            processors: vec![0],
            limit: 1,
            busy: Duration::ZERO,
            ranks: vec![],
        }
    }

    #[test]
    fn a_measurement_is_over_when_all_nodes_that_are_up_have_answered_or_one_is_late() {
        let s = Duration::from_secs;
        let goal = Goal::Consolidate { nodes: 1 };
        let mut all = Measurements::default();
        let n = all.begin(7, goal, BTreeSet::from([0, 1].map(NodeId)), s(9));
        assert_eq!(all.begin(8, goal, BTreeSet::from([NodeId(0)]), s(5)), n + 1);
        assert!(
            all.hear(NodeId(0), n, usage())
                && !all.hear(NodeId(0), n, usage())
                && !all.hear(NodeId(5), n, usage())
        );
        assert!(all.take_over(s(4), |_| true).is_empty());
        let late = all.take_over(s(5), |_| true);
        assert_eq!((late.len(), late[0].request, late[0].first_missing()), (1, 8, Some(NodeId(0))));
        let over = all.take_over(s(6), |node| node == NodeId(0));
        assert_eq!((over[0].first_missing(), over[0].heard.len()), (None, 1));
    }
}
