//! How what a job says of itself changes the picture.

use super::node::NodeState;
use super::rank::RankPicture;
use super::{Figures, JobState, Picture};
use eyrie_interface::status::MoveStatus;
use eyrie_interface::Status;
use eyrie_wire::{NodeId, Rank};
use std::collections::{BTreeMap, BTreeSet};

impl Picture {
    /// The job is as it says. What an event has said later about a rank or a node counts more: the
    /// next status is asked for soon.
    pub fn status(&mut self, status: &Status) {
        // What has ended does not change any more.
        if self.has_ended() {
            return;
        }
        self.version += 1;
        let at = status.summary.elapsed.as_secs_f64();
        self.time = self.time.max(at);
        self.head_as(status);
        self.nodes_as(status, at);
        let unprotected: BTreeSet<Rank> = status.unprotected.iter().copied().collect();
        for of in &status.ranks {
            let rank = of.instance.rank;
            self.rank(rank, |rank| {
                rank.status(of, at, unprotected.contains(&of.instance.rank));
            });
        }
        self.moves_as(&status.moves, at);
        self.figures_as(status);
        self.summary.edit(self.version, |summary| *summary = status.summary.clone());
    }

    fn head_as(&mut self, status: &Status) {
        self.head.edit(self.version, |head| {
            head.program = Some(status.program.clone());
            head.domain.clone_from(&status.domain);
            head.cut_off = status.cut_off.is_some();
            head.has_figures = true;
            // Its first events are not kept any more, perhaps.
            if head.state == JobState::Starting && status.ranks.iter().any(|r| r.state != "waiting")
            {
                head.state = JobState::Running;
            }
        });
    }

    fn nodes_as(&mut self, status: &Status, at: f64) {
        self.name_nodes(&status.hosts);
        for (number, up) in status.nodes_up.iter().enumerate() {
            let id = NodeId(number as u32);
            let there = status.roles.iter().filter(|role| role.node == id);
            let roles: Vec<String> = there.map(|role| role.role.clone()).collect();
            self.node(id, |node| {
                node.journal = status.journal.contains(&id);
                if node.heard > at {
                    return;
                }
                node.state = match node.state {
                    _ if *up => NodeState::Up,
                    // It was not there yet, or is not there any more, as events say.
                    NodeState::Up => NodeState::Lost,
                    other => other,
                };
                node.drained = status.drained.contains(&id);
                node.roles = roles;
            });
        }
    }

    fn moves_as(&mut self, moves: &[MoveStatus], at: f64) {
        let time = self.time;
        for of in moves {
            self.begin_move(of.rank, time);
            self.moving(of.rank, |moving| moving.status(of));
        }
        let moving: BTreeSet<Rank> = moves.iter().map(|of| of.rank).collect();
        let known = self.ranks.iter().map(super::part::Part::get);
        let is_gone =
            |rank: &&RankPicture| rank.moving && rank.heard <= at && !moving.contains(&rank.rank);
        let gone: Vec<Rank> = known.filter(is_gone).map(|rank| rank.rank).collect();
        // An event that follows may say that it has arrived.
        gone.into_iter().for_each(|rank| self.end_move(rank, time));
    }

    fn figures_as(&mut self, status: &Status) {
        let images = status.ranks.iter().filter_map(|rank| rank.image.as_ref());
        let image_bytes = images.map(|image| image.bytes).sum();
        let mut ranks_by_copies = BTreeMap::<usize, usize>::new();
        for rank in &status.ranks {
            let copies = rank.image.as_ref().map_or(0, |image| image.copies);
            *ranks_by_copies.entry(copies).or_default() += 1;
        }
        self.figures.edit(self.version, |figures| {
            *figures = Figures {
                logs: status.logs.clone(),
                log_memory_bytes: status.log_memory_bytes,
                log_disk_bytes: status.log_disk_bytes,
                messages: status.messages,
                store_bytes: status.store_bytes,
                copies_missing: status.copies_missing.clone(),
                domains: status.domains.clone(),
                image_bytes,
                ranks_by_copies: ranks_by_copies.into_iter().rev().collect(),
                image_pause: figures.image_pause,
                checkpoint_interval: status.checkpoint_interval,
                checkpoint_cost: status.checkpoint_cost,
            };
        });
    }
}
