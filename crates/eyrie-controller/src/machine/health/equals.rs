//! Which nodes compute the same work slower than others: by the time that ranks compute between
//! messages, which they measure themselves. Ranks that take as many steps in a time do the same
//! work, as far as can be told from outside. Pure.

use eyrie_wire::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Ranks whose steps in a time differ by no more than this are taken for equals.
const ALIKE: f64 = 1.1;
/// Fewer steps in a window say nothing.
const LEAST_STEPS: u64 = 20;
/// A rank that computes for less of its time holds up no other.
const LEAST_SHARE: f64 = 0.3;
/// Of others that compute for less of theirs, this is taken.
const LEAST_OF_OTHERS: f64 = 0.01;

/// What a rank did in a window.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub node: NodeId,
    /// The length of the window, the part of it in which the rank did not wait for messages, and
    /// the steps that it took, mostly messages.
    pub over_ns: u64,
    pub computed_ns: u64,
    pub steps: u64,
}

impl Work {
    fn share(&self) -> f64 {
        self.computed_ns as f64 / self.over_ns as f64
    }

    fn rate(&self) -> f64 {
        self.steps as f64 / self.over_ns as f64
    }
}

/// How long the ranks of a node compute for the same work, in thousandths of the time that their
/// equals on other nodes take: that one of its ranks for which it is least.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeTime {
    pub node: NodeId,
    pub permille: u32,
}

/// The nodes all of whose ranks have equals on other nodes, in order.
pub fn times(work: &[Work]) -> Vec<NodeTime> {
    let mut ranks: BTreeMap<NodeId, usize> = BTreeMap::new();
    work.iter().for_each(|of| *ranks.entry(of.node).or_default() += 1);
    let says = |work: &&Work| work.over_ns > 0 && work.steps >= LEAST_STEPS;
    let mut work: Vec<Work> = work.iter().filter(says).copied().collect();
    work.sort_by(|a, b| a.rate().total_cmp(&b.rate()));
    // The least of them, and of how many ranks.
    let mut least: BTreeMap<NodeId, (f64, usize)> = BTreeMap::new();
    let mut rest = &work[..];
    while let Some(slowest) = rest.first() {
        let limit = slowest.rate() * ALIKE;
        let (equals, others) = rest.split_at(rest.partition_point(|of| of.rate() <= limit));
        rest = others;
        for (node, ratio, count) in ratios(equals) {
            let (known, of) = least.entry(node).or_insert((ratio, 0));
            *known = known.min(ratio);
            *of += count;
        }
    }
    let time = |(node, (ratio, of)): (NodeId, (f64, usize))| {
        let permille = (ratio * 1000.0).min(u32::MAX.into()) as u32;
        (ranks.get(&node) == Some(&of)).then_some(NodeTime { node, permille })
    };
    least.into_iter().filter_map(time).collect()
}

/// For each node the least of its ranks' times, of the median of those on other nodes; and how many
/// ranks it has.
fn ratios(equals: &[Work]) -> Vec<(NodeId, f64, usize)> {
    let mut shares: Vec<(f64, NodeId)> = equals.iter().map(|of| (of.share(), of.node)).collect();
    shares.sort_by(|a, b| a.0.total_cmp(&b.0));
    let nodes: BTreeSet<NodeId> = equals.iter().map(|of| of.node).collect();
    let ratio = |node: NodeId| {
        let on_it = shares.iter().filter(|(_, on)| *on == node).count();
        let mut others = shares.iter().filter(|(_, on)| *on != node);
        let median = others.nth((shares.len() - on_it) / 2)?.0.max(LEAST_OF_OTHERS);
        let least = shares.iter().find(|(_, on)| *on == node)?.0;
        let holds_up = if least >= LEAST_SHARE { least / median } else { 0.0 };
        Some((node, holds_up, on_it))
    };
    nodes.into_iter().filter_map(ratio).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(node: u32, computed: u64, steps: u64) -> Work {
        Work { node: NodeId(node), over_ns: 1000, computed_ns: computed, steps }
    }

    fn of(work: &[Work]) -> Vec<(u32, u32)> {
        times(work).into_iter().map(|t| (t.node.0, t.permille)).collect()
    }

    #[test]
    fn a_node_all_of_whose_ranks_compute_longer_than_their_equals_is_slow() {
        let all = [
            work(0, 500, 100),
            work(0, 480, 50),
            work(1, 990, 101),
            work(1, 960, 51),
            work(2, 495, 99),
            work(2, 470, 50),
        ];
        let times = of(&all);
        assert_eq!(times.len(), 3);
        assert!(times[1].0 == 1 && (1900..2100).contains(&times[1].1), "{times:?}");
        assert!(times[0].1 <= 1010 && times[2].1 <= 1010, "{times:?}");
    }

    #[test]
    fn a_rank_with_more_work_makes_no_node_slow_where_others_are_beside_it() {
        let all = [work(0, 900, 100), work(0, 400, 100), work(1, 400, 100), work(1, 410, 100)];
        assert!(of(&all).iter().all(|(_, permille)| *permille <= 1000), "{:?}", of(&all));
    }

    #[test]
    fn a_node_is_not_judged_by_some_of_its_ranks() {
        // Rank 0 sets the pace, and has equals; the one beside it has none.
        let all = [work(0, 950, 100), work(0, 50, 150), work(1, 50, 100), work(1, 60, 100)];
        assert_eq!(of(&all), [(1, 0)]);
        let idle = [work(0, 950, 100), work(0, 50, 3), work(1, 50, 100)];
        assert_eq!(of(&idle), [(1, 0)]);
    }

    #[test]
    fn ranks_without_equals_elsewhere_and_those_that_mostly_wait_say_nothing() {
        assert!(of(&[work(0, 900, 100), work(1, 100, 300), work(2, 50, 10)])
            .iter()
            .all(|(_, permille)| *permille == 0));
        assert_eq!(of(&[work(0, 200, 100), work(1, 50, 100)]), [(0, 0), (1, 0)]);
        assert!(of(&[]).is_empty());
        let nothing = Work { over_ns: 0, ..work(0, 0, 100) };
        assert!(of(&[nothing]).is_empty());
    }
}
