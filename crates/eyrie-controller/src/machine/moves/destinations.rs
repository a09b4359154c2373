//! Which nodes a rank that comes back, or moves, can go to.

use super::Moves;
use crate::machine::nodes::Nodes;
use crate::machine::ranks::Ranks;
use eyrie_placement::placement::JobNode;
use eyrie_wire::{Node, Rank};

/// What decides where ranks can go.
#[derive(Clone, Copy)]
pub struct Destinations<'a> {
    pub nodes: &'a Nodes,
    pub ranks: &'a Ranks,
    pub moves: &'a Moves,
}

impl Destinations<'_> {
    /// What placement knows of the nodes.
    pub fn job_nodes(self) -> Vec<JobNode> {
        let mut nodes = self.nodes.for_placement();
        for r in self.ranks.iter().filter(|r| r.on_node().is_some()) {
            nodes[r.node() as usize].ranks += 1;
        }
        nodes
    }

    /// The nodes as they are for a rank that comes back: those that are drained take none, nor does
    /// the one that it leaves; unless no other is left.
    pub fn nodes_for(self, rank: Rank) -> Vec<JobNode> {
        let mut nodes = self.job_nodes();
        for (node, (_, entry)) in nodes.iter_mut().zip(self.nodes.iter()) {
            node.up &= !entry.is_drained();
        }
        let moving = self.moves.get(rank).filter(|moving| moving.asked_for().is_none());
        if let Some(moving) = moving {
            nodes[moving.from() as usize].up = false;
        }
        let r = &self.ranks[rank];
        let is_other = |(node, at): (usize, &JobNode)| node != r.node() as usize && at.up;
        if r.node_may_be_at_fault() && nodes.iter().enumerate().any(is_other) {
            nodes[r.node() as usize].up = false;
        }
        if nodes.iter().any(|node| node.up) {
            nodes
        } else {
            self.job_nodes()
        }
    }

    /// The node that the rank was asked to go to, while it can.
    pub fn asked_node(self, rank: Rank) -> Option<Node> {
        let to = self.moves.get(rank)?.asked_for()?;
        let node = self.nodes.get(to)?;
        (node.is_up() && !node.is_drained()).then_some(to)
    }
}
