//! Several ranks move at once, each to a node of its own, and nodes are drained by that. Every move
//! is an ordinary one; what must not be asked for is refused before anything moves.

use super::entry::Pending;
use super::mover::Mover;
use crate::machine::users::answer::RequestId;
use crate::record::Record;
use eyrie_interface::Manner;
use eyrie_wire::{Node, Rank};
use std::collections::BTreeMap;

impl Mover<'_> {
    /// These ranks are to go to these nodes, and these nodes are to be free.
    pub fn rearrangement_asked(
        &mut self,
        request: Option<RequestId>,
        moves: &[(Rank, Node)],
        drains: &[Node],
        manner: Manner,
    ) {
        if let Some(why) = self.refusal(|so| so.cannot_move_so(moves, drains)) {
            return self.out.refuse(request, why);
        }
        let (ranks, nodes) = moves.iter().copied().unzip();
        self.out.record(Record::Rearranging { ranks, nodes, drains: drains.to_vec() });
        drains.iter().for_each(|node| self.nodes[*node].close());
        let mut to: BTreeMap<Rank, Option<Node>> =
            moves.iter().map(|(rank, node)| (*rank, Some(*node))).collect();
        for node in drains {
            let there = self.ranks.on(*node);
            self.out.record(Record::NodeDraining { node: *node, ranks: there.clone() });
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
}
