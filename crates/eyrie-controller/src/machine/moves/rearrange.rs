//! Carries out plans of several moves, and asks for one when ranks have come back from lost nodes
//! and others that live should move with them. Every move is an ordinary one, so a failure on the
//! way leaves each rank recovered as after any death. Nothing moves here that does not pay, unless
//! a user has asked for it.

use super::entry::Move;
use super::mover::Mover;
use super::plan::{MovePlan, Surroundings};
use super::Moves;
use crate::machine::config::Config;
use crate::machine::nodes::Nodes;
use crate::machine::outbox::consequence::Consequence;
use crate::machine::ranks::Ranks;
use crate::machine::state::RankStateName;
use crate::machine::users::answer::{Answer, RequestId};
use crate::record::Record;
use eyrie_interface::proposal::{Arrangement, Links};
use eyrie_interface::Manner;
use eyrie_placement::rearrange::{Carried, Rearrangement, Terms};
use eyrie_placement::Method;
use eyrie_wire::{NodeId, Rank};
use std::time::Duration;

/// What a plan asks of nodes and ranks.
struct Around<'a> {
    config: &'a Config,
    nodes: &'a Nodes,
    ranks: &'a Ranks,
    moves: &'a Moves,
}

impl Surroundings for Around<'_> {
    fn ready_on(&self, rank: Rank) -> Option<NodeId> {
        let r = self.ranks.get(rank)?;
        let runs = matches!(r.state(), RankStateName::Running) && r.on_node().is_some();
        runs.then(|| r.node())
    }

    fn node_of(&self, rank: Rank) -> NodeId {
        self.ranks[rank].node()
    }

    fn moves(&self, rank: Rank) -> bool {
        self.moves.contains(rank)
    }

    fn is_open(&self, node: NodeId) -> bool {
        self.nodes.get(node).is_some_and(|entry| entry.is_up() && !entry.is_drained())
    }

    fn ranks_on(&self, node: NodeId) -> u32 {
        let comes = |(rank, moving): (Rank, &Move)| {
            moving.goes_to() == Some(node) && self.ranks[rank].node() != node
        };
        let there = self.ranks.on(node).len();
        (there + self.moves.iter().filter(|of| comes(*of)).count()) as u32
    }

    fn slots(&self, node: NodeId) -> Option<u32> {
        self.config.slots.get(node.index()).copied().flatten()
    }

    fn free_slot(&self) -> Option<NodeId> {
        let is_free = |node: &NodeId| {
            self.is_open(*node) && self.slots(*node).is_some_and(|n| n > self.ranks_on(*node))
        };
        self.nodes.up().find(is_free)
    }
}

impl Mover<'_> {
    fn around(&self) -> Around<'_> {
        let config = self.config;
        Around { config, nodes: self.nodes, ranks: self.ranks, moves: self.moves }
    }

    /// These ranks go to these nodes as one plan.
    pub fn begin_plan(&mut self, moves: &[(Rank, NodeId)], whole: bool, manner: Manner) {
        let from = |(rank, to): &(Rank, NodeId)| (*rank, self.ranks[*rank].node(), *to);
        let moves: Vec<_> = moves.iter().map(from).collect();
        let plan = MovePlan::new(&moves, whole, manner, &self.around());
        self.moves.set_plan(Some(plan));
        self.go_on_with_plan();
    }

    /// Begins what can begin of the plan, turns it back when it cannot be carried out any more, and
    /// ends it when all is done.
    pub fn go_on_with_plan(&mut self) {
        let Some(mut plan) = self.moves.take_plan() else { return };
        if let Some(why) = plan.obstacle(&self.around()) {
            self.turn_plan(&mut plan, why);
        }
        let begin = if self.saving.is_going_on() { Vec::new() } else { plan.next(&self.around()) };
        if !begin.is_empty() {
            let begin: Vec<_> = begin.into_iter().map(|(rank, to)| (rank, Some(to))).collect();
            let manner = plan.manner();
            self.begin_all(&begin, manner, usize::MAX);
            return self.moves.set_plan(Some(plan));
        }
        if !plan.is_over(&self.around()) {
            return self.moves.set_plan(Some(plan));
        }
        let ranks = plan.ranks();
        let cause = plan.turned().map(String::from);
        match &cause {
            Some(why) => self.moves.turned_back(&ranks, why),
            None => plan.ends().for_each(|(rank, how)| self.moves.end_asked(rank, how)),
        }
        self.out.record(Record::Rearranged { ranks, cause });
        self.watch_moves();
    }

    fn turn_plan(&mut self, plan: &mut MovePlan, why: String) {
        let computes =
            |rank: Rank| self.moves.get(rank).is_some_and(|moving| moving.stopped().is_none());
        let broken_off = plan.turn_back(why, &self.around(), computes);
        for rank in broken_off {
            let why = "the moves that it belongs to are cancelled".into();
            self.out.follows(Consequence::MoveFails { rank, why });
        }
    }

    /// A node is lost: what is under way was planned for another network.
    pub fn give_plan_up(&mut self, node: NodeId) {
        if let Some(mut plan) = self.moves.take_plan() {
            self.turn_plan(&mut plan, format!("node {node} is lost"));
            self.moves.set_plan(Some(plan));
        }
        if self.placement.moves_live_ranks() {
            self.moves.want_plan(true);
        }
    }

    /// Where ranks should be, with so much time left to run.
    ///
    /// # Errors
    /// Why that cannot be said now.
    fn rearrangement(&self, left: Duration) -> Result<Rearrangement, String> {
        if let Some(why) = self.why_not_at_rest() {
            return Err(why);
        }
        let cost = |rank: Rank| {
            let bytes = self.ranks[rank].images().newest().map_or(0, |kept| kept.image.bytes);
            self.out.speed().cost(bytes).as_secs_f64()
        };
        let costs: Vec<f64> = Rank::first(self.ranks.len() as u32).map(cost).collect();
        let own = self.placement.method();
        let method = if self.placement.moves_live_ranks() { own } else { Method::Search };
        let terms = Terms { method, left_s: left.as_secs_f64(), costs: &costs };
        self.placement.rearrange(self.destinations().occupied(&[]).cluster(), &terms)
    }

    /// Why ranks cannot be rearranged now: something is under way.
    fn why_not_at_rest(&self) -> Option<String> {
        if self.moves.iter().next().is_some() || self.moves.has_plan() {
            return Some("ranks are moving: ask again when they are there".into());
        }
        let runs = |rank: &Rank| self.around().ready_on(*rank).is_some();
        let not = self.ranks.unfinished().find(|rank| !runs(rank))?;
        Some(format!(
            "rank {not} is being recovered: ask again when `eyrie status` shows that it runs"
        ))
    }

    /// A user asks where ranks should be.
    pub fn proposal_asked(&mut self, request: RequestId, left: Duration) {
        let refused = self.refusal(|_| None);
        let found = refused.map_or_else(|| self.rearrangement(left), Err);
        let answer = match found {
            Ok(found) => Answer::Arrangement(Box::new(in_interface(&found))),
            Err(why) => Answer::Refused(why),
        };
        self.out.answer(request, answer);
    }

    /// Ranks have come back from lost nodes: others that live move with them, if that pays.
    pub fn watch_rearrangement(&mut self) {
        if !self.moves.wants_plan() || self.refusal(|_| None).is_some() {
            return;
        }
        if !self.placement.is_measured() || self.why_not_at_rest().is_some() {
            return;
        }
        self.moves.want_plan(false);
        let left = self.config.run_time.saturating_sub(self.out.now());
        let found = match self.rearrangement(left) {
            Ok(found) => found,
            Err(why) => return self.out.note(format!("no rank that lives moves: {why}")),
        };
        self.out.record(weighed(&found, left));
        if !found.pays() {
            return;
        }
        let moves: Vec<(Rank, NodeId)> =
            found.moves.iter().map(|m| (Rank(m.rank), NodeId(m.to))).collect();
        let (ranks, nodes) = moves.iter().copied().unzip();
        self.out.record(Record::Rearranging { ranks, nodes, drains: Vec::new() });
        self.begin_plan(&moves, true, Manner::default());
    }
}

/// What was found, and whether it is done.
fn weighed(found: &Rearrangement, left: Duration) -> Record {
    let seconds = |s: f64| Duration::try_from_secs_f64(s.max(0.0)).unwrap_or(Duration::MAX);
    Record::MovesWeighed {
        moves: found.moves.len() as u32,
        gain: seconds(found.gain_s),
        cost: seconds(found.cost_s),
        left,
        pays: found.pays(),
        steps: found.steps.clone(),
    }
}

fn in_interface(found: &Rearrangement) -> Arrangement {
    let links = |Carried { busiest, share }: Carried| Links { busiest, share };
    Arrangement {
        moves: (found.moves.iter()).map(|m| (Rank(m.rank), NodeId(m.from), NodeId(m.to))).collect(),
        steps: found.steps.clone(),
        now: links(found.now),
        then: links(found.then),
        gain: found.gain_s,
        cost: found.cost_s,
        pays: found.pays(),
    }
}
