//! Moves that were asked for together, and who waits for them. They are over when every rank has
//! moved or stays, and the nodes that they drain are free.

use crate::machine::users::answer::RequestId;
use eyrie_wire::{NodeId, Rank};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// How the move of a rank is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MoveEnd<'a> {
    /// It is on another node.
    Moved,
    /// Its program has ended before it had moved.
    Finished,
    /// It is where it was, for this reason.
    Stays(&'a str),
}

/// Moves that were asked for together.
#[derive(Debug, Serialize, Deserialize)]
pub struct Together {
    /// A user who waits for them.
    request: Option<RequestId>,
    ranks: BTreeSet<Rank>,
    /// The nodes that become free by them.
    drains: BTreeSet<NodeId>,
    /// Ranks that could not move, and why.
    stayed: Vec<String>,
    /// Since when only roles are left on the nodes, and how many.
    roles_left: Option<(usize, Duration)>,
}

/// What came of them.
pub struct Outcome {
    pub request: Option<RequestId>,
    pub drains: BTreeSet<NodeId>,
    /// What did not move, and why; empty when all did.
    pub stayed: Vec<String>,
}

impl Together {
    pub fn new(
        request: Option<RequestId>,
        ranks: BTreeSet<Rank>,
        drains: BTreeSet<NodeId>,
    ) -> Together {
        Together { request, ranks, drains, stayed: Vec::new(), roles_left: None }
    }

    /// The nodes that become free by them.
    pub fn drains(&self) -> &BTreeSet<NodeId> {
        &self.drains
    }

    /// Whether only roles have to leave the nodes.
    pub fn waits_for_roles(&self) -> bool {
        self.ranks.is_empty() && self.stayed.is_empty()
    }

    /// So many roles are left on the nodes. Whether none has left for too long.
    pub fn are_roles_late(&mut self, left: usize, now: Duration, patience: Duration) -> bool {
        let before = self.roles_left.filter(|(before, _)| *before == left);
        let (_, since) = *self.roles_left.insert(before.unwrap_or((left, now)));
        left > 0 && now >= since + patience
    }

    /// Something does not move, for these reasons.
    pub fn stay(&mut self, why: impl IntoIterator<Item = String>) {
        self.stayed.extend(why);
    }

    /// The move of a rank is over.
    pub fn end(&mut self, rank: Rank, how: MoveEnd) {
        if !self.ranks.remove(&rank) {
            return;
        }
        let stayed = match how {
            MoveEnd::Moved => None,
            // Its node is free of it all the same.
            MoveEnd::Finished if !self.drains.is_empty() => None,
            MoveEnd::Finished => Some("it has come to its end before"),
            MoveEnd::Stays(why) => Some(why),
        };
        self.stayed.extend(stayed.map(|why| format!("rank {rank} did not move: {why}")));
    }

    /// None of the moves of these ranks was made, for one reason.
    pub fn turned_back(&mut self, ranks: &[Rank], why: &str) {
        let before = self.ranks.len();
        self.ranks.retain(|rank| !ranks.contains(rank));
        if self.ranks.len() < before {
            self.stayed.push(format!("no rank has moved: {why}"));
        }
    }

    /// Ranks may come to the node again: a user who waits for it to be free learns that it does not
    /// become so.
    pub fn no_longer_drains(&mut self, node: NodeId) {
        if self.drains.remove(&node) && self.request.is_some() {
            self.stayed.push(format!("node {node} was undrained meanwhile"));
        }
    }

    /// Whether they are over. `is_free`: of a node.
    pub fn are_over(&self, is_free: impl Fn(NodeId) -> bool) -> bool {
        let free = self.drains.iter().all(|node| is_free(*node));
        self.ranks.is_empty() && (free || !self.stayed.is_empty())
    }

    pub fn outcome(self) -> Outcome {
        Outcome { request: self.request, drains: self.drains, stayed: self.stayed }
    }

    /// The controller itself stood still for so long.
    pub fn extend(&mut self, gap: Duration) {
        if let Some((_, since)) = &mut self.roles_left {
            *since += gap;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(ranks: &[Rank], drains: &[NodeId]) -> Together {
        Together::new(Some(1), ranks.iter().copied().collect(), drains.iter().copied().collect())
    }

    #[test]
    fn a_drain_is_over_when_ranks_have_left_and_roles_too_or_one_does_not() {
        let mut drain = asked(&[Rank(0), Rank(1)], &[NodeId(7)]);
        drain.end(Rank(0), MoveEnd::Moved);
        drain.end(Rank(5), MoveEnd::Stays("it is another's"));
        assert!(!drain.are_over(|_| true) && !drain.waits_for_roles(), "rank 1 is there");
        drain.end(Rank(1), MoveEnd::Finished);
        assert!(drain.waits_for_roles() && !drain.are_over(|_| false) && drain.are_over(|_| true));
        drain.stay(["a router".to_string()]);
        assert!(drain.are_over(|_| false) && drain.outcome().stayed == ["a router"]);
        let mut one = asked(&[Rank(0)], &[]);
        one.end(Rank(0), MoveEnd::Finished);
        assert!(one.outcome().stayed[0].ends_with("it has come to its end before"));
    }

    #[test]
    fn roles_have_their_time_anew_with_each_that_leaves() {
        let s = Duration::from_secs;
        let mut drain = asked(&[], &[NodeId(7)]);
        assert!(!drain.are_roles_late(2, s(0), s(10)) && drain.are_roles_late(2, s(10), s(10)));
        assert!(!drain.are_roles_late(1, s(11), s(10)) && !drain.are_roles_late(1, s(20), s(10)));
        drain.extend(s(5));
        assert!(!drain.are_roles_late(1, s(25), s(10)) && drain.are_roles_late(1, s(26), s(10)));
        assert!(!drain.are_roles_late(0, s(99), s(10)), "none is left");
    }

    #[test]
    fn a_node_that_is_undrained_is_waited_for_no_longer() {
        let mut drain = asked(&[], &[NodeId(7)]);
        drain.no_longer_drains(NodeId(8));
        assert!(!drain.are_over(|_| false));
        drain.no_longer_drains(NodeId(7));
        assert!(drain.are_over(|_| false) && drain.outcome().stayed[0].contains("undrained"));
    }
}
