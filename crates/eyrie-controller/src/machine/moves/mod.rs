//! Ranks on their way to other nodes, the nodes that become free by that, and who waits for it.
//! Decides nothing.

pub mod course;
pub mod entry;
pub mod live;
pub mod mover;
pub mod notice;
pub mod obstacles;
pub mod orders;
pub mod plan;
pub mod rearrange;
pub mod requests;
pub mod rounds;
pub mod together;

use entry::Move;
use eyrie_wire::{NodeId, Rank};
use plan::MovePlan;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use together::{MoveEnd, Together};

/// All moves of a job.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Moves {
    ranks: BTreeMap<Rank, Move>,
    asked: Vec<Together>,
    /// Moves that are carried out as one.
    plan: Option<MovePlan>,
    /// Ranks come back from lost nodes; then it is looked whether others should move with them.
    wants_plan: bool,
}

impl Moves {
    /// Ranks that move.
    pub fn iter(&self) -> impl Iterator<Item = (Rank, &Move)> + '_ {
        self.ranks.iter().map(|(rank, moving)| (*rank, moving))
    }

    pub fn get(&self, rank: Rank) -> Option<&Move> {
        self.ranks.get(&rank)
    }

    pub fn get_mut(&mut self, rank: Rank) -> Option<&mut Move> {
        self.ranks.get_mut(&rank)
    }

    /// Whether the rank moves.
    pub fn contains(&self, rank: Rank) -> bool {
        self.ranks.contains_key(&rank)
    }

    /// The rank is to move.
    pub fn add(&mut self, rank: Rank, moving: Move) {
        self.ranks.insert(rank, moving);
    }

    /// These were asked for together.
    pub fn ask(&mut self, asked: Together) {
        self.asked.push(asked);
    }

    /// Those that were asked for together and wait for roles to leave their nodes.
    pub fn waiting_for_roles(&mut self) -> impl Iterator<Item = &mut Together> {
        self.asked.iter_mut().filter(|asked| asked.waits_for_roles())
    }

    /// Takes what was asked for and is over. `is_free`: of a node.
    pub fn take_over(&mut self, is_free: impl Fn(NodeId) -> bool) -> Vec<Together> {
        let (over, rest) =
            std::mem::take(&mut self.asked).into_iter().partition(|asked| asked.are_over(&is_free));
        self.asked = rest;
        over
    }

    /// The controller itself stood still for so long.
    pub fn extend(&mut self, gap: Duration) {
        self.ranks.values_mut().for_each(|moving| moving.extend(gap));
        self.asked.iter_mut().for_each(|asked| asked.extend(gap));
    }

    /// Whether the next image of a rank is the last one of its move.
    pub fn holds(&self, rank: Rank) -> bool {
        self.ranks.get(&rank).is_some_and(Move::holds)
    }

    /// Whether this node is to become free.
    pub fn is_draining(&self, node: NodeId) -> bool {
        self.asked.iter().any(|asked| asked.drains().contains(&node))
    }

    /// Ranks of this node whose next image is to be their last one: all that are ready, when all
    /// are, or when one has waited for long.
    pub fn depart(&mut self, from: NodeId, now: Duration) -> Vec<Rank> {
        let leaving = || self.ranks.values().filter(|moving| moving.from() == from);
        let all_ready = !leaving().any(Move::is_getting_ready);
        if !all_ready && !leaving().any(|moving| moving.has_waited(now)) {
            return Vec::new();
        }
        let here = self.ranks.iter_mut().filter(|(_, moving)| moving.from() == from);
        here.filter_map(|(rank, moving)| moving.depart().then_some(*rank)).collect()
    }

    /// Ranks may come to the node again.
    pub fn no_longer_drains(&mut self, node: NodeId) {
        self.asked.iter_mut().for_each(|asked| asked.no_longer_drains(node));
    }

    /// The move is over. Who has asked for all of a plan hears of it when the plan is over.
    pub fn end(&mut self, rank: Rank, how: MoveEnd) -> Option<Move> {
        let ended = self.ranks.remove(&rank)?;
        match self.plan.as_mut().filter(|plan| plan.has(rank)) {
            Some(plan) => plan.ended(rank, how),
            None => self.end_asked(rank, how),
        }
        Some(ended)
    }

    /// Those who have asked for the move of a rank hear that it is over.
    pub fn end_asked(&mut self, rank: Rank, how: MoveEnd) {
        self.asked.iter_mut().for_each(|asked| asked.end(rank, how));
    }

    /// Those who have asked for the moves of a plan hear that none of them was made.
    pub fn turned_back(&mut self, ranks: &[Rank], why: &str) {
        self.asked.iter_mut().for_each(|asked| asked.turned_back(ranks, why));
    }

    /// Whether a plan is under way, and whether the rank belongs to it.
    pub fn has_plan(&self) -> bool {
        self.plan.is_some()
    }

    pub fn is_planned(&self, rank: Rank) -> bool {
        self.plan.as_ref().is_some_and(|plan| plan.has(rank))
    }

    pub fn take_plan(&mut self) -> Option<MovePlan> {
        self.plan.take()
    }

    pub fn set_plan(&mut self, plan: Option<MovePlan>) {
        self.plan = plan;
    }

    /// Whether it is to be looked whether ranks that live should move.
    pub fn wants_plan(&self) -> bool {
        self.wants_plan
    }

    pub fn want_plan(&mut self, wanted: bool) {
        self.wants_plan = wanted;
    }
}

#[cfg(test)]
mod tests {
    use super::live::Live;
    use super::*;
    use eyrie_interface::Manner;
    use eyrie_wire::Incarnation;
    use eyrie_wire::RankInstance;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A rank leaves this node, round by round.
    fn leave(moves: &mut Moves, rank: Rank, from: NodeId) {
        let mut moving = Move::new(from, None, ms(0), Manner::default());
        let live = Live::new(NodeId(9), RankInstance { rank, incarnation: Incarnation(2) }, ms(0));
        moving.begin(Some(live), ms(0));
        moves.add(rank, moving);
    }

    /// It is ready since then: its second round takes no time.
    fn ready(moves: &mut Moves, rank: Rank, from: NodeId, since: Duration) {
        leave(moves, rank, from);
        let moving = moves.get_mut(rank).unwrap();
        for _ in 0..2 {
            moving.end_round(since, 0);
        }
    }

    #[test]
    fn ranks_of_a_node_depart_together() {
        let mut moves = Moves::default();
        ready(&mut moves, Rank(0), NodeId(7), ms(100));
        leave(&mut moves, Rank(1), NodeId(7));
        leave(&mut moves, Rank(2), NodeId(8));
        assert!(moves.depart(NodeId(7), ms(200)).is_empty(), "rank 1 is not ready");
        ready(&mut moves, Rank(1), NodeId(7), ms(300));
        assert_eq!(moves.depart(NodeId(7), ms(300)), [0, 1].map(Rank), "rank 2 is on another node");
        assert!(moves.depart(NodeId(7), ms(301)).is_empty(), "each is told once");
        assert!(moves.holds(Rank(0)) && moves.holds(Rank(1)) && !moves.holds(Rank(2)));
    }

    #[test]
    fn no_rank_waits_for_the_others_forever() {
        let mut moves = Moves::default();
        ready(&mut moves, Rank(0), NodeId(7), ms(100));
        leave(&mut moves, Rank(1), NodeId(7));
        assert!(moves.depart(NodeId(7), ms(5099)).is_empty());
        assert_eq!(moves.depart(NodeId(7), ms(5100)), [0].map(Rank));
        // One that was stopped is not waited for.
        ready(&mut moves, Rank(2), NodeId(7), ms(6000));
        moves.get_mut(Rank(1)).unwrap().stop(ms(6000));
        assert_eq!(moves.depart(NodeId(7), ms(6000)), [2].map(Rank));
    }
}
