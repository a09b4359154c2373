//! The course of a move from its beginning to its end: a rank is imaged, stopped as if it had died,
//! and comes back elsewhere from that image. It must never run twice: the routers refuse the old
//! one first. Whatever fails meanwhile, it is recovered as after a death.

use super::entry::Move;
use super::mover::Mover;
use super::orders::{end_slowing, go_on_if_held, let_go};
use super::together::{MoveEnd, Outcome};
use crate::machine::images::why::ImageAges;
use crate::machine::outbox::consequence::Consequence;
use crate::machine::ranks::capture::Capture;
use crate::machine::roles::registry::why_role_stays;
use crate::machine::roles::why::{patience_with_roles, why_ranks_cannot_stop};
use crate::machine::timeouts::{IMAGE_TIMEOUT, RETRY};
use crate::machine::users::answer::Answer;
use crate::record::Record;
use eyrie_interface::Manner;
use eyrie_wire::control::Role;
use eyrie_wire::{NodeId, Rank};
use std::time::Duration;

impl Mover<'_> {
    /// By what a rank would lose, the first to go first: one that could not come back at all, one
    /// without an image, the one with the oldest.
    pub fn eviction_order(&self, rank: Rank) -> (bool, Duration, Rank) {
        let r = &self.ranks[rank];
        let imaged = r.images().newest().map_or(Duration::ZERO, |kept| kept.asked);
        (!r.is_exposed(), imaged, rank)
    }

    /// A rank has left this node, or stays: the first of those that wait for it begins.
    fn begin_next(&mut self, from: NodeId) {
        let queued = |(_, moving): &(Rank, &Move)| moving.from() == from && moving.is_queued();
        let waiting = self.moves.iter().filter(queued).map(|(rank, _)| rank);
        if let Some(rank) = waiting.min_by_key(|rank| self.eviction_order(*rank)) {
            self.begin_live(rank);
        }
    }

    /// These ranks are to move, each to its node or to where the placement says, which is asked
    /// once for all of them. `at_once` of them begin now. The others only have an image taken.
    pub fn begin_all(&mut self, ranks: &[(Rank, Option<NodeId>)], manner: Manner, at_once: usize) {
        let now = self.out.now();
        // One that moves already does not stay.
        let is_new = |(rank, _): &&(Rank, Option<NodeId>)| !self.moves.contains(*rank);
        let new: Vec<(Rank, Option<NodeId>)> = ranks.iter().filter(is_new).copied().collect();
        for (n, (rank, to)) in new.iter().enumerate() {
            let begin = if n < at_once { Move::new } else { Move::queued };
            self.moves.add(*rank, begin(self.ranks[*rank].node(), *to, now, manner));
        }
        let anywhere = |(rank, to): &(Rank, Option<NodeId>)| to.is_none().then_some(*rank);
        self.assign(&new.iter().filter_map(anywhere).collect::<Vec<_>>());
        for (n, (rank, _)) in new.into_iter().enumerate() {
            if n < at_once {
                self.begin_live(rank);
            } else {
                self.schedule.want(rank, now);
            }
        }
    }

    /// An image of the rank counts. A rank that is to move goes with it, or it is one more that is
    /// put in place where the rank is going.
    pub fn imaged(&mut self, rank: Rank, capture: &Capture) {
        // Only for a rank that is to move are all ranks looked at.
        let can_stop =
            self.moves.contains(rank) && self.roles.ranks_can_stop(self.config, self.ranks);
        let now = self.out.now();
        let is_saving = self.saving.is_going_on();
        let of_move = |moving: &&mut Move| moving.goes_with(capture.asked()) && !is_saving;
        let Some(moving) = self.moves.get_mut(rank).filter(of_move) else {
            // Its move has ended while it stood still, or was asked for again.
            return go_on_if_held(self.nodes, self.ranks, self.out, rank, capture);
        };
        if moving.is_queued() {
            return;
        }
        if moving.live().is_some() && !capture.holds() {
            return self.send_image(rank);
        }
        if can_stop {
            moving.stop(now);
            return self.stop().stop(rank);
        }
        moving.compute_on(now);
        let is_late = moving.is_late(now);
        self.schedule.retry(rank, now + RETRY);
        go_on_if_held(self.nodes, self.ranks, self.out, rank, capture);
        if is_late {
            let why = why_ranks_cannot_stop(self.roles, self.ages());
            self.end_late_move(rank, &why);
        }
    }

    /// A rank does not move that could not for too long.
    fn end_late_move(&mut self, rank: Rank, why: &str) {
        let waited = eyrie_units::time(IMAGE_TIMEOUT);
        self.end_move(rank, MoveEnd::Stays(&format!("it was tried for {waited}: {why}")));
    }

    /// Ends moves of ranks of which no image can be begun.
    pub fn watch_stuck_moves(&mut self) {
        let now = self.out.now();
        let waits = |(rank, moving): &(Rank, &Move)| {
            let is_sent = moving.live().is_some_and(|live| live.sent().is_some());
            let is_captured = self.ranks[*rank].capture().is_some();
            moving.is_late(now) && !is_sent && !is_captured
        };
        let stuck = self.moves.iter().filter(waits);
        for rank in stuck.map(|(rank, _)| rank).collect::<Vec<_>>() {
            let why = self.ages().why_no_image(rank);
            self.end_late_move(rank, &why);
        }
    }

    /// The rank could not be imaged. `passing`: for a reason that passes soon, so that it is tried
    /// `again` then; else it stays.
    pub fn not_imaged(&mut self, rank: Rank, why: &str, passing: bool, again: Duration) {
        match self.moves.get(rank) {
            Some(moving) if passing && moving.is_late(self.out.now()) => {
                self.end_late_move(rank, why)
            }
            Some(moving) if moving.stopped().is_some() => {}
            Some(_) if passing => {
                self.schedule.retry(rank, again);
            }
            Some(_) => self.end_move(rank, MoveEnd::Stays(why)),
            _ => {}
        }
    }

    /// The rank has died: it comes back elsewhere all the same.
    pub fn died(&mut self, rank: Rank) {
        let now = self.out.now();
        if let Some(moving) = self.moves.get_mut(rank) {
            moving.die(now);
            let from = moving.from();
            self.depart(from);
        }
    }

    /// The rank has caught up. One that was just coming back when its move was asked for has not
    /// moved yet.
    pub fn arrived(&mut self, rank: Rank) {
        let Some(moving) = self.moves.get(rank) else { return };
        let from = moving.from();
        let stopped = moving.stopped();
        match (self.ranks[rank].node() == from, stopped) {
            (false, _) => self.end_move(rank, MoveEnd::Moved),
            (true, Some(_)) => self.end_move(rank, MoveEnd::Stays("no other node could take it")),
            (true, None) => self.schedule.want(rank, self.out.now()),
        }
    }

    /// The move of the rank is over.
    pub fn end_move(&mut self, rank: Rank, how: MoveEnd) {
        end_slowing(self.moves, self.ranks, self.out, rank);
        self.ranks[rank].take_assignment();
        let node = self.ranks[rank].node();
        let left = self.moves.get(rank).is_some_and(|moving| moving.from() != node);
        // It may come to its end as soon as it is there.
        let how = if left && how == MoveEnd::Finished { MoveEnd::Moved } else { how };
        let Some(ended) = self.moves.end(rank, how) else { return };
        let from = ended.from();
        if let Some(live) = ended.live().filter(|live| live.node() != node) {
            self.unprepare(live);
        }
        let has_moved = node != from && !matches!(how, MoveEnd::Stays(_));
        if let Some(pause) = ended.pause(self.out.now()).filter(|_| has_moved) {
            self.out.record(Record::RankMoved { rank, from, node, pause });
        }
        self.depart(from);
        self.begin_next(from);
        if self.moves.has_plan() {
            self.out.follows(Consequence::PlannedMoveOver);
        }
        self.watch_moves();
    }

    /// Looks whether drained nodes without ranks are being left by their roles, too.
    fn watch_roles_left(&mut self) {
        let now = self.out.now();
        let roles = self.roles;
        let patience = patience_with_roles(self.ranks);
        let ages =
            ImageAges { now, ranks: self.ranks, schedule: self.schedule, stores: self.stores };
        for asked in self.moves.waiting_for_roles() {
            let left: Vec<Role> = asked.drains().iter().flat_map(|node| roles.on(*node)).collect();
            if asked.are_roles_late(left.len(), now, patience) {
                asked.stay(left.into_iter().map(|role| why_role_stays(role, roles, ages)));
            }
        }
    }

    /// Answers those whose moves are over.
    pub fn watch_moves(&mut self) {
        self.watch_roles_left();
        let ranks = &*self.ranks;
        let roles = self.roles;
        for over in self.moves.take_over(|node| roles.is_free(ranks, node)) {
            let Outcome { request, drains, stayed } = over.outcome();
            if !stayed.is_empty() {
                self.out.refuse(request, stayed.join("; "));
                continue;
            }
            for node in drains {
                self.out.record(Record::NodeDrained { node });
                let_go(self.nodes, self.out, node);
            }
            if let Some(request) = request {
                self.out.answer(request, Answer::Accepted);
            }
        }
    }
}
