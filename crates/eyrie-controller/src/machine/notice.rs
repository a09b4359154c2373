//! A host is about to be taken away: its node is drained, and its agent may end when nothing needs
//! it any more. Where its ranks could not go anywhere, the job is saved, if it can be; else they
//! are imaged once more. Never stops what runs well: without another node it runs on for as long
//! as the host lasts.

use super::io::Command;
use super::migrate::NO_OTHER_NODE;
use super::reactor::Machine;
use crate::record::Record;
use eyrie_wire::{Node, Rank};

/// Ranks of a node that move at the same time when it is about to be taken away: each of them gets
/// so much more of the bandwidth, so that at least the most precious ones have left in time. All
/// others have an image taken at once.
const AT_ONCE: usize = 2;

impl Machine {
    /// `leaves`: the agent ends when it is told to, at the latest after its grace.
    pub(super) fn notice(&mut self, node: Node, cause: String, leaves: bool) {
        let Some(entry) = self.nodes.get_mut(node as usize).filter(|n| n.is_up()) else { return };
        entry.leaves |= leaves;
        let drained = entry.drained;
        self.record(Record::NodeNotice { node, cause });
        if !self.started || !self.config.drain_on_notice {
            return self.let_go(node);
        }
        match drained {
            true if self.is_free(node) => self.let_go(node),
            // Its ranks are on their way.
            true => {}
            false if self.is_saving() || self.has_other_than(&[node]) => {
                self.drain_asked(None, node, AT_ONCE);
            }
            false => self.nowhere_to_go(node),
        }
    }

    /// Ranks of this node must stay, though it will be gone soon.
    fn nowhere_to_go(&mut self, node: Node) {
        if self.config.can_be_saved {
            return self.save_asked(None);
        }
        let now = self.now;
        let there = |rank: &Rank| self.ranks[*rank as usize].node == node;
        let precious: Vec<Rank> = self.unfinished().filter(there).collect();
        precious.into_iter().for_each(|rank| self.schedule.want(rank, now));
        self.note(format!("node {node} cannot be drained: {NO_OTHER_NODE}"));
        // All are told to go at once: whoever did that wants the job to end.
        if self.nodes.iter().filter(|n| n.is_up()).all(|n| n.leaves) {
            (0..self.nodes.len() as Node).for_each(|node| self.let_go(node));
        }
    }

    /// An agent that waits for it may end.
    pub(super) fn let_go(&mut self, node: Node) {
        let entry = &mut self.nodes[node as usize];
        if entry.is_up() && entry.leaves {
            self.commands.push(Command::Release(node));
        }
    }
}
