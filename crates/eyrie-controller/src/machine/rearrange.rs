//! Several ranks move at once, each to a node of its own, and nodes are drained by that. Every move
//! is an ordinary one; what must not be asked for is refused before anything moves.

use super::answer::RequestId;
use super::migrate::NO_OTHER_NODE;
use super::moves::{Manner, Pending};
use super::reactor::Machine;
use super::state::RankStateName;
use crate::record::Record;
use eyrie_wire::{Node, Rank};
use std::collections::{BTreeMap, BTreeSet};

impl Machine {
    /// These ranks are to go to these nodes, and these nodes are to be free.
    pub(super) fn rearrangement_asked(
        &mut self,
        request: Option<RequestId>,
        moves: &[(Rank, Node)],
        drains: &[Node],
        manner: Manner,
    ) {
        if let Some(why) = self.cannot_move_so(moves, drains) {
            return self.refuse(request, why);
        }
        let (ranks, nodes) = moves.iter().copied().unzip();
        self.record(Record::Rearranging { ranks, nodes, drains: drains.to_vec() });
        drains.iter().for_each(|node| self.close_node(*node));
        let mut to: BTreeMap<Rank, Option<Node>> =
            moves.iter().map(|(rank, node)| (*rank, Some(*node))).collect();
        for node in drains {
            let there = self.ranks_on(*node);
            self.record(Record::NodeDraining { node: *node, ranks: there.clone() });
            for rank in there {
                to.entry(rank).or_insert(None);
            }
        }
        for (rank, node) in &to {
            self.begin_move(*rank, *node, manner);
        }
        let (ranks, drains) = (to.into_keys().collect(), drains.iter().copied().collect());
        self.moves.pending.push(Pending::new(request, ranks, drains));
        self.watch_moves();
    }

    /// Nothing is to come to the node any more.
    pub(super) fn close_node(&mut self, node: Node) {
        let entry = &mut self.nodes[node as usize];
        (entry.drained, entry.free_spare) = (true, false);
    }

    /// Ranks on the node whose programs have not ended.
    pub(super) fn ranks_on(&self, node: Node) -> Vec<Rank> {
        let there = self.ranks.iter().filter(|r| r.node == node);
        there.filter(|r| !r.is(RankStateName::Finished)).map(|r| r.rank).collect()
    }

    fn cannot_move_so(&self, moves: &[(Rank, Node)], drains: &[Node]) -> Option<String> {
        let drained: BTreeSet<Node> = drains.iter().copied().collect();
        let mut seen = BTreeSet::new();
        let bad_move = |(rank, to): &(Rank, Node)| {
            if drained.contains(to) {
                return Some(format!("rank {rank} cannot go to node {to}, which is to be free"));
            }
            let twice = !seen.insert(*rank);
            let twice = twice.then(|| format!("rank {rank} is named twice"));
            twice.or_else(|| self.cannot_migrate(&[*rank], Some(*to)))
        };
        let bad_node = |node: &Node| self.cannot_drain(*node);
        self.cannot_move_now()
            .or_else(|| drains.iter().find_map(bad_node))
            .or_else(|| (!self.has_other_than(drains)).then(|| NO_OTHER_NODE.to_string()))
            .or_else(|| moves.iter().find_map(bad_move))
    }
}
