//! Several moves that are carried out as one plan: which of them may begin, so that each rank has
//! room where it goes, and what becomes of the others when one fails. Pure: it knows of nodes and
//! ranks what it is told. It must never leave a rank without an end.

use super::together::MoveEnd;
use eyrie_interface::Manner;
use eyrie_wire::{NodeId, Rank};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Moves that are carried out as one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MovePlan {
    /// Where each of its ranks was.
    from: BTreeMap<Rank, NodeId>,
    /// Where those go that are not there yet.
    to: BTreeMap<Rank, NodeId>,
    /// Most ranks that its nodes have before and after it. Where no slots were said they have no
    /// more meanwhile, and none goes back to a node that would have more.
    most: BTreeMap<NodeId, u32>,
    manner: Manner,
    /// All of them, or none.
    whole: bool,
    /// Why those that have moved go back.
    turned: Option<String>,
    /// Moves that were broken off when it was turned back, and that have not ended.
    broken_off: BTreeSet<Rank>,
    /// Ranks that are where they were all the same, and why.
    stays: BTreeMap<Rank, String>,
    finished: BTreeSet<Rank>,
}

/// The nodes and ranks as a plan sees them.
pub trait Surroundings {
    /// The node of a rank that runs, and can begin to move; `None` while it cannot.
    fn ready_on(&self, rank: Rank) -> Option<NodeId>;
    /// The node of a rank, whatever it does.
    fn node_of(&self, rank: Rank) -> NodeId;
    /// Whether the rank moves.
    fn moves(&self, rank: Rank) -> bool;
    /// Whether ranks may come to a node.
    fn is_open(&self, node: NodeId) -> bool;
    /// Ranks that are on the node, or on the way to it.
    fn ranks_on(&self, node: NodeId) -> u32;
    /// Most ranks that a node may have, where that was said.
    fn slots(&self, node: NodeId) -> Option<u32>;
    /// A node that ranks may come to, with a slot that is free.
    fn free_slot(&self) -> Option<NodeId>;
}

impl MovePlan {
    /// These ranks go from and to these nodes.
    pub fn new(
        moves: &[(Rank, NodeId, NodeId)],
        whole: bool,
        manner: Manner,
        around: &impl Surroundings,
    ) -> MovePlan {
        let mut most = BTreeMap::new();
        for node in moves.iter().flat_map(|(_, from, to)| [*from, *to]) {
            let come = moves.iter().filter(|(_, _, to)| *to == node).count() as u32;
            let leave = moves.iter().filter(|(_, from, _)| *from == node).count() as u32;
            let now = around.ranks_on(node);
            most.insert(node, now.max((now + come).saturating_sub(leave)));
        }
        MovePlan {
            from: moves.iter().map(|(rank, from, _)| (*rank, *from)).collect(),
            to: moves.iter().map(|(rank, _, to)| (*rank, *to)).collect(),
            most,
            manner,
            whole,
            turned: None,
            broken_off: BTreeSet::new(),
            stays: BTreeMap::new(),
            finished: BTreeSet::new(),
        }
    }

    pub fn has(&self, rank: Rank) -> bool {
        self.from.contains_key(&rank)
    }

    pub fn manner(&self) -> Manner {
        self.manner
    }

    /// Its ranks.
    pub fn ranks(&self) -> Vec<Rank> {
        self.from.keys().copied().collect()
    }

    /// Why those that have moved go back.
    pub fn turned(&self) -> Option<&str> {
        self.turned.as_deref()
    }

    /// A move of one of its ranks has ended.
    pub fn ended(&mut self, rank: Rank, how: MoveEnd<'_>) {
        match how {
            MoveEnd::Moved => {}
            MoveEnd::Finished => {
                self.finished.insert(rank);
                self.to.remove(&rank);
            }
            MoveEnd::Stays(_) if self.broken_off.remove(&rank) => {}
            MoveEnd::Stays(why) => {
                self.stays.insert(rank, why.to_string());
                if self.turned.is_some() || !self.whole {
                    self.to.remove(&rank);
                }
            }
        }
    }

    /// Why it cannot be carried out as it was planned any more.
    pub fn obstacle(&self, around: &impl Surroundings) -> Option<String> {
        if !self.whole || self.turned.is_some() {
            return None;
        }
        let stays = self.stays.iter().next();
        let stays = stays.map(|(rank, why)| format!("rank {rank} does not move: {why}"));
        let closed = self.to.values().find(|node| !around.is_open(**node));
        let closed = closed.map(|node| format!("node {node} takes no ranks any more"));
        let finished = self.finished.first();
        let finished = finished.map(|rank| format!("rank {rank} has come to its end"));
        stays.or(closed).or(finished)
    }

    /// Those that have moved go back, as far as their nodes take ranks; no other begins. Returns
    /// the moves that are to be broken off: those of ranks that `computes` tells of, but for ranks
    /// whose place another one keeps that cannot go back.
    pub fn turn_back(
        &mut self,
        why: String,
        around: &impl Surroundings,
        computes: impl Fn(Rank) -> bool,
    ) -> Vec<Rank> {
        if !self.whole || self.turned.is_some() {
            return Vec::new();
        }
        self.turned = Some(why);
        let under_way = |rank: &Rank| around.moves(*rank);
        let cannot_go_back = |(rank, home): &(&Rank, &NodeId)| {
            !under_way(rank) && around.node_of(**rank) != **home && !around.is_open(**home)
        };
        let kept = self.from.iter().filter(cannot_go_back);
        let kept: BTreeSet<NodeId> = kept.map(|(rank, _)| around.node_of(*rank)).collect();
        self.broken_off = self.from.keys().copied().filter(under_way).collect();
        self.broken_off.retain(|rank| computes(*rank) && !kept.contains(&self.from[rank]));
        let goes_back = |(rank, home): &(&Rank, &NodeId)| {
            let is_away = around.node_of(**rank) != **home;
            let comes_away = around.moves(**rank) && !self.broken_off.contains(*rank);
            let comes_away = comes_away && !kept.contains(*home);
            !self.finished.contains(*rank) && around.is_open(**home) && (is_away || comes_away)
        };
        let back: Vec<(&Rank, &NodeId)> = self.from.iter().filter(goes_back).collect();
        self.to = back.into_iter().map(|(rank, home)| (*rank, *home)).collect();
        self.broken_off.iter().copied().collect()
    }

    /// Moves that may begin now. A rank that has come to where it goes needs none any more.
    pub fn next(&mut self, around: &impl Surroundings) -> Vec<(Rank, NodeId)> {
        self.to.retain(|rank, to| around.moves(*rank) || around.node_of(*rank) != *to);
        // Of those that go back some nodes may have been lost since.
        if self.turned.is_some() {
            self.to.retain(|rank, to| around.moves(*rank) || around.is_open(*to));
        }
        let waiting: Vec<(Rank, NodeId)> = (self.to.iter())
            .filter(|(rank, _)| !around.moves(**rank) && around.ready_on(**rank).is_some())
            .map(|(rank, to)| (*rank, *to))
            .collect();
        let mut come: BTreeMap<NodeId, i64> = BTreeMap::new();
        let mut begin = Vec::new();
        for (rank, to) in &waiting {
            let taken = come.entry(*to).or_default();
            if self.room(*to, around) - *taken > 0 {
                *taken += 1;
                begin.push((*rank, *to));
            }
        }
        if begin.is_empty() && !self.is_under_way(around) {
            begin.extend(self.way_out(&waiting, around));
        }
        begin
    }

    /// Each of these waits for room that another one of them has: one of them goes first, by way of
    /// a free slot. Where there is none its node has one rank more until the next one has left. A
    /// rank that was to go back stays where the ranks of a lost node have taken its place.
    fn way_out(
        &mut self,
        waiting: &[(Rank, NodeId)],
        around: &impl Surroundings,
    ) -> Option<(Rank, NodeId)> {
        let leaves = |node: NodeId| waiting.iter().any(|(rank, _)| around.node_of(*rank) == node);
        let is_in_cycle = |(_, to): &&(Rank, NodeId)| self.turned.is_none() || leaves(*to);
        let Some((rank, to)) = waiting.iter().find(is_in_cycle).copied() else {
            for (rank, _) in waiting {
                self.to.remove(rank);
            }
            return None;
        };
        let by_way_of = around.slots(to).and_then(|_| around.free_slot());
        let is_elsewhere = |node: &NodeId| *node != around.node_of(rank);
        Some((rank, by_way_of.filter(is_elsewhere).unwrap_or(to)))
    }

    /// How many more ranks a node has room for.
    fn room(&self, node: NodeId, around: &impl Surroundings) -> i64 {
        let before = self.most.get(&node).copied();
        let slots = around.slots(node);
        let most = match self.turned {
            Some(_) => before.into_iter().chain(slots).min(),
            None => slots.or(before),
        };
        most.map_or(i64::MAX / 2, i64::from) - i64::from(around.ranks_on(node))
    }

    fn is_under_way(&self, around: &impl Surroundings) -> bool {
        self.from.keys().any(|rank| around.moves(*rank))
    }

    /// Whether all is done that was to be done.
    pub fn is_over(&self, around: &impl Surroundings) -> bool {
        self.to.is_empty() && !self.is_under_way(around)
    }

    /// How it has ended for each rank.
    pub fn ends(&self) -> impl Iterator<Item = (Rank, MoveEnd<'_>)> {
        self.from.keys().map(|rank| {
            let finished = self.finished.contains(rank).then_some(MoveEnd::Finished);
            let stays = self.stays.get(rank).map(|why| MoveEnd::Stays(why));
            (*rank, finished.or(stays).unwrap_or(MoveEnd::Moved))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes with so many slots, and the node of each rank; a move that begins ends at once.
    #[derive(Clone)]
    struct Around {
        slots: Vec<Option<u32>>,
        at: Vec<NodeId>,
        closed: BTreeSet<NodeId>,
        moving: BTreeSet<Rank>,
    }

    impl Surroundings for Around {
        fn ready_on(&self, rank: Rank) -> Option<NodeId> {
            Some(self.node_of(rank))
        }
        fn node_of(&self, rank: Rank) -> NodeId {
            self.at[rank.index()]
        }
        fn moves(&self, rank: Rank) -> bool {
            self.moving.contains(&rank)
        }
        fn is_open(&self, node: NodeId) -> bool {
            !self.closed.contains(&node)
        }
        fn ranks_on(&self, node: NodeId) -> u32 {
            self.at.iter().filter(|at| **at == node).count() as u32
        }
        fn slots(&self, node: NodeId) -> Option<u32> {
            self.slots[node.index()]
        }
        fn free_slot(&self) -> Option<NodeId> {
            NodeId::first(self.slots.len() as u32).find(|node| {
                self.is_open(*node) && self.slots(*node).is_some_and(|n| n > self.ranks_on(*node))
            })
        }
    }

    fn around(slots: &[u32], at: &[u32]) -> Around {
        let slots = slots.iter().map(|n| (*n > 0).then_some(*n)).collect();
        let at = at.iter().copied().map(NodeId).collect();
        Around { slots, at, closed: BTreeSet::new(), moving: BTreeSet::new() }
    }

    fn plan(around: &Around, to: &[u32]) -> MovePlan {
        let moves: Vec<_> = (0..).map(Rank).zip(&around.at).zip(to).collect();
        let moves: Vec<_> = (moves.into_iter())
            .map(|((rank, from), to)| (rank, *from, NodeId(*to)))
            .filter(|(_, from, to)| from != to)
            .collect();
        MovePlan::new(&moves, true, Manner::default(), around)
    }

    /// The moves that begin together, until it is over.
    fn waves(plan: &mut MovePlan, around: &mut Around) -> Vec<Vec<(u32, u32)>> {
        let mut waves = Vec::new();
        loop {
            let begin = plan.next(around);
            if begin.is_empty() {
                assert!(plan.is_over(around), "{plan:?}");
                return waves;
            }
            waves.push(begin.iter().map(|(rank, node)| (rank.0, node.0)).collect());
            assert!(waves.len() < 100, "{waves:?}");
            for (rank, node) in begin {
                around.at[rank.index()] = node;
                plan.ended(rank, MoveEnd::Moved);
            }
        }
    }

    #[test]
    fn a_line_slides_from_its_free_end() {
        for slots in [1, 0] {
            let mut around = around(&[slots; 4], &[0, 1, 2]);
            let mut plan = plan(&around, &[1, 2, 3]);
            let waves = waves(&mut plan, &mut around);
            assert_eq!(waves, [[(2, 3)], [(1, 2)], [(0, 1)]]);
        }
    }

    #[test]
    fn a_cycle_goes_by_way_of_a_free_slot_or_by_one_rank_more() {
        let mut with_free = around(&[1; 4], &[0, 1, 2]);
        let mut cycle = plan(&with_free, &[1, 2, 0]);
        let by_way = waves(&mut cycle, &mut with_free);
        assert_eq!(by_way, [[(0, 3)], [(2, 0)], [(1, 2)], [(0, 1)]]);
        for slots in [1, 0] {
            let mut full = around(&[slots; 3], &[0, 1, 2]);
            let mut cycle = plan(&full, &[1, 2, 0]);
            assert_eq!(waves(&mut cycle, &mut full), [[(0, 1)], [(2, 0)], [(1, 2)]]);
        }
    }

    #[test]
    fn those_that_have_moved_go_back_when_one_does_not_move() {
        let mut around = around(&[1; 4], &[0, 1, 2]);
        let mut line = plan(&around, &[1, 2, 3]);
        for _ in 0..2 {
            let (rank, node) = line.next(&around)[0];
            around.at[rank.index()] = node;
            line.ended(rank, MoveEnd::Moved);
        }
        assert_eq!(line.next(&around), [(Rank(0), NodeId(1))]);
        line.ended(Rank(0), MoveEnd::Stays("it has open sockets"));
        let why = line.obstacle(&around).unwrap();
        assert_eq!(why, "rank 0 does not move: it has open sockets");
        assert!(line.turn_back(why, &around, |_| true).is_empty());
        assert_eq!(waves(&mut line, &mut around), [[(1, 1)], [(2, 2)]]);
        assert!(line.turned().is_some() && line.obstacle(&around).is_none());
        // Nor does one go where another rank has come instead.
        around.at = [3, 1, 2].map(NodeId).to_vec();
        let mut away = plan(&around, &[0, 1, 2]);
        around.at = [0, 1, 3].map(NodeId).to_vec();
        away.ended(Rank(0), MoveEnd::Moved);
        away.turn_back("node 2 is lost".into(), &around, |_| true);
        assert!(waves(&mut away, &mut around).is_empty());
        around.at = [0, 1, 2].map(NodeId).to_vec();
        // A node that takes no ranks any more gets none back.
        let mut away = plan(&around, &[3, 1, 2]);
        around.at[0] = NodeId(3);
        away.ended(Rank(0), MoveEnd::Moved);
        around.closed.insert(NodeId(0));
        away.turn_back("node 2 is lost".into(), &around, |_| true);
        assert!(waves(&mut away, &mut around).is_empty());
    }

    #[test]
    fn one_goes_on_whose_place_another_one_keeps_that_cannot_go_back() {
        let mut around = around(&[0; 4], &[0, 1, 2]);
        let mut line = plan(&around, &[0, 2, 3]);
        line.next(&around);
        // Rank 1 has come to node 2, which rank 2 is about to leave, and node 1 is lost.
        around.at[1] = NodeId(2);
        around.moving.insert(Rank(2));
        line.ended(Rank(1), MoveEnd::Moved);
        around.closed.insert(NodeId(1));
        assert!(line.turn_back("node 1 is lost".into(), &around, |_| true).is_empty());
        around.moving.clear();
        around.at[2] = NodeId(3);
        line.ended(Rank(2), MoveEnd::Moved);
        assert!(waves(&mut line, &mut around).is_empty(), "both stay where they are");
    }

    #[test]
    fn any_arrangement_is_reached_and_no_node_has_more_ranks_than_it_must() {
        use rand::rngs::SmallRng;
        use rand::seq::SliceRandom;
        use rand::{Rng, SeedableRng};
        for seed in 0..500 {
            let mut random = SmallRng::seed_from_u64(seed);
            let nodes = random.gen_range(2..8);
            let spares = random.gen_range(0..3);
            let mut to: Vec<u32> = (0..nodes + spares).collect();
            to.shuffle(&mut random);
            let from: Vec<u32> = (0..nodes).collect();
            let mut around = around(&vec![1; (nodes + spares) as usize], &from);
            let mut plan = plan(&around, &to[..nodes as usize]);
            waves(&mut plan, &mut around);
            let there: Vec<u32> = around.at.iter().map(|node| node.0).collect();
            assert_eq!(there, to[..nodes as usize], "seed {seed}");
        }
    }
}
