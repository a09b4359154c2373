//! What ranks that move are told: to slow down, to go on.

use super::entry::Move;
use super::Moves;
use crate::machine::nodes::Nodes;
use crate::machine::outbox::Outbox;
use crate::machine::ranks::capture::Capture;
use crate::machine::ranks::Ranks;
use eyrie_wire::control::ToAgent;
use eyrie_wire::{NodeId, Rank};

/// The rank is not slowed for its move any more.
pub fn end_slowing(moves: &mut Moves, ranks: &Ranks, out: &mut Outbox, rank: Rank) {
    if moves.get_mut(rank).is_some_and(Move::end_slowing) {
        slow(ranks, out, rank, 0);
    }
}

/// The rank is to stand still for this share of time, in percent.
pub fn slow(ranks: &Ranks, out: &mut Outbox, rank: Rank, share: u8) {
    let r = &ranks[rank];
    if r.on_node().is_some() {
        let node = r.node();
        let instance = r.instance();
        out.send_agent(node, ToAgent::Slow { instance, share });
    }
}

/// The rank stands still for this image, if it was the last one of a move: it is not stopped now,
/// and computes on. On a node that is lost, perhaps together with the store of the image, it does
/// not.
pub fn go_on_if_held(
    nodes: &Nodes,
    ranks: &Ranks,
    out: &mut Outbox,
    rank: Rank,
    capture: &Capture,
) {
    let r = &ranks[rank];
    if capture.holds() && nodes.is_up(r.node()) {
        let node = r.node();
        let instance = r.instance();
        let image = capture.image();
        out.send_agent(node, ToAgent::GoOn { instance, image });
    }
}

/// An agent that waits for it may end.
pub fn let_go(nodes: &Nodes, out: &mut Outbox, node: NodeId) {
    let entry = &nodes[node];
    if entry.is_up() && entry.leaves() {
        out.send_agent(node, ToAgent::Shutdown);
    }
}
