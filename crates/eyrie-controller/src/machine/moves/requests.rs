//! What users, and the hosts' operators, ask of ranks that are to move: some to a node, all away
//! from a node, or each to a node of its own. Every move is an ordinary one; what must not be asked
//! for is refused before anything moves.

use super::mover::Mover;
use super::together::Together;
use crate::machine::users::answer::{Answer, RequestId};
use crate::record::Record;
use eyrie_interface::Manner;
use eyrie_wire::{NodeId, Rank};
use std::collections::BTreeSet;

impl Mover<'_> {
    /// Ranks are to go to another node: `to`, or where the placement says.
    pub fn migrate_asked(
        &mut self,
        request: Option<RequestId>,
        ranks: &[Rank],
        to: Option<NodeId>,
        manner: Manner,
    ) {
        if let Some(why) = self.refusal(|so| so.cannot_migrate(ranks, to)) {
            return self.out.refuse(request, why);
        }
        self.begin_moves(request, ranks.iter().copied().collect(), to, manner, None);
    }

    /// All ranks of a node are to go elsewhere, and nothing is to come there. `at_once`: so many of
    /// them at a time.
    pub fn drain_asked(&mut self, request: Option<RequestId>, node: NodeId, at_once: usize) {
        if let Some(why) = self.refusal(|so| so.cannot_drain(node)) {
            return self.out.refuse(request, why);
        }
        self.nodes[node].close();
        let ranks = self.ranks.on(node);
        self.out.record(Record::NodeDraining { node, ranks: ranks.clone() });
        let ranks = ranks.into_iter().collect();
        self.begin_moves(request, ranks, None, Manner::default(), Some((node, at_once)));
    }

    /// Ranks may come to the node again; without any it is a spare.
    pub fn undrain_asked(&mut self, request: RequestId, node: NodeId) {
        let answer = match self.nodes.get_mut(node) {
            Some(n) if n.is_drained() => {
                n.reopen(self.ranks.on(node).is_empty());
                self.moves.no_longer_drains(node);
                // It may take roles that are missing.
                self.out.look_now();
                self.out.record(Record::NodeUndrained { node });
                Answer::Accepted
            }
            Some(_) => Answer::Refused(format!("node {node} is not drained")),
            None => Answer::Refused(format!("there is no node {node}")),
        };
        self.out.answer(request, answer);
    }

    fn begin_moves(
        &mut self,
        request: Option<RequestId>,
        ranks: BTreeSet<Rank>,
        to: Option<NodeId>,
        manner: Manner,
        drains: Option<(NodeId, usize)>,
    ) {
        let at_once = drains.map_or(usize::MAX, |(_, at_once)| at_once);
        let mut begin: Vec<Rank> = ranks.iter().copied().collect();
        begin.sort_by_key(|rank| self.eviction_order(*rank));
        let begin: Vec<(Rank, Option<NodeId>)> = begin.into_iter().map(|rank| (rank, to)).collect();
        self.begin_all(&begin, manner, at_once);
        let drains = drains.into_iter().map(|(node, _)| node).collect();
        self.moves.ask(Together::new(request, ranks, drains));
        self.watch_moves();
    }

    /// These ranks are to go to these nodes, and these nodes are to be free. `whole`: all of them
    /// or none.
    pub fn rearrangement_asked(
        &mut self,
        request: Option<RequestId>,
        moves: &[(Rank, NodeId)],
        drains: &[NodeId],
        whole: bool,
        manner: Manner,
    ) {
        if let Some(why) = self.refusal(|so| so.cannot_move_so(moves, drains)) {
            return self.out.refuse(request, why);
        }
        let (ranks, nodes) = moves.iter().copied().unzip();
        self.out.record(Record::Rearranging { ranks, nodes, drains: drains.to_vec() });
        drains.iter().for_each(|node| self.nodes[*node].close());
        let mut all: BTreeSet<Rank> = moves.iter().map(|(rank, _)| *rank).collect();
        let mut others = Vec::new();
        for node in drains {
            let there = self.ranks.on(*node);
            self.out.record(Record::NodeDraining { node: *node, ranks: there.clone() });
            others.extend(there.into_iter().filter(|rank| all.insert(*rank)).map(|r| (r, None)));
        }
        let drains = drains.iter().copied().collect();
        self.moves.ask(Together::new(request, all, drains));
        if !moves.is_empty() {
            self.begin_plan(moves, whole, manner);
        }
        self.begin_all(&others, manner, usize::MAX);
        self.watch_moves();
    }
}
