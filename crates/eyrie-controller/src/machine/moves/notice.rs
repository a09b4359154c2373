//! A host is about to be taken away: its node is drained, and its agent may end when nothing needs
//! it any more. Where its ranks could not go anywhere, the job is saved, if it can be; else they
//! are imaged once more. Never stops what runs well: without another node it runs on for as long
//! as the host lasts.

use super::mover::Mover;
use super::obstacles::NO_OTHER_NODE;
use super::orders::let_go;
use crate::machine::outbox::consequence::Consequence;
use crate::record::Record;
use eyrie_wire::{NodeId, Rank};

/// Ranks of a node that move at the same time when it is about to be taken away: each of them gets
/// so much more of the bandwidth, so that at least the first of the eviction order have left in
/// time. All others have an image taken at once.
const AT_ONCE: usize = 2;

impl Mover<'_> {
    /// `leaves`: the agent ends when it is told to, at the latest after its grace.
    pub fn notice(&mut self, node: NodeId, cause: String, leaves: bool) {
        let Some(entry) = self.nodes.get_mut(node).filter(|n| n.is_up()) else { return };
        if leaves {
            entry.is_to_leave();
        }
        let drained = entry.is_drained();
        self.out.record(Record::NodeNotice { node, cause });
        if !self.out.has_started() || !self.config.drain_on_notice {
            return let_go(self.nodes, self.out, node);
        }
        if drained {
            // Else its ranks are on their way.
            if self.roles.is_free(self.ranks, node) {
                let_go(self.nodes, self.out, node);
            }
        } else if self.saving.is_going_on() || self.nodes.has_other_than(&[node]) {
            self.drain_asked(None, node, AT_ONCE);
        } else {
            self.nowhere_to_go(node);
        }
    }

    /// Ranks of this node must stay, though it will be gone soon.
    fn nowhere_to_go(&mut self, node: NodeId) {
        if self.saving.is_possible() {
            return self.out.follows(Consequence::Save);
        }
        let now = self.out.now();
        let there = |rank: &Rank| self.ranks[*rank].node() == node;
        let staying: Vec<Rank> = self.ranks.unfinished().filter(there).collect();
        for rank in staying {
            self.schedule.want(rank, now);
        }
        self.out.note(format!("node {node} cannot be drained: {NO_OTHER_NODE}"));
        // All are to go at once: the job is meant to end.
        if self.nodes.up().all(|node| self.nodes[node].leaves()) {
            self.nodes.up().for_each(|node| let_go(self.nodes, self.out, node));
        }
    }
}
