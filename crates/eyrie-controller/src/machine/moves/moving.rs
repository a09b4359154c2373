//! Moving ranks to other nodes, and making nodes free: a rank is imaged, stopped as if it had died,
//! and comes back elsewhere from that image. It must never run twice: the routers refuse the old
//! one first. Whatever fails meanwhile, it is recovered as after a death.

use super::entry::{Move, MoveEnd, MoveStep, Pending};
use super::mover::Mover;
use super::orders::{go_on_if_held, let_go, slow};
use crate::machine::ranks::capture::Capture;
use crate::machine::roles::registry::why_role_stays;
use crate::machine::roles::why::{patience_with_roles, why_ranks_cannot_stop};
use crate::machine::timeouts::{IMAGE_TIMEOUT, RETRY};
use crate::machine::users::answer::{Answer, RequestId};
use crate::record::Record;
use eyrie_interface::Manner;
use eyrie_wire::{Node, Rank};
use std::collections::BTreeSet;
use std::time::Duration;

impl Mover<'_> {
    /// Ranks are to go to another node: `to`, or where the placement says.
    pub fn migrate_asked(
        &mut self,
        request: Option<RequestId>,
        ranks: &[Rank],
        to: Option<Node>,
        manner: Manner,
    ) {
        if let Some(why) = self.refusal(|so| so.cannot_migrate(ranks, to)) {
            return self.out.refuse(request, why);
        }
        self.begin_moves(request, ranks.iter().copied().collect(), to, manner, None);
    }

    /// All ranks of a node are to go elsewhere, and nothing is to come there. `at_once`: so many of
    /// them at a time.
    pub fn drain_asked(&mut self, request: Option<RequestId>, node: Node, at_once: usize) {
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
    pub fn undrain_asked(&mut self, request: RequestId, node: Node) {
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
        to: Option<Node>,
        manner: Manner,
        drains: Option<(Node, usize)>,
    ) {
        let at_once = drains.map_or(usize::MAX, |(_, at_once)| at_once);
        // One that moves already does not stay.
        let mut begin: Vec<Rank> =
            ranks.iter().copied().filter(|rank| !self.moves.ranks.contains_key(rank)).collect();
        begin.sort_by_key(|rank| self.eviction_order(*rank));
        for (n, rank) in begin.into_iter().enumerate() {
            if n < at_once {
                self.begin_move(rank, to, manner);
            } else {
                self.queue_move(rank, to, manner);
            }
        }
        let drains = drains.into_iter().map(|(node, _)| node).collect();
        self.moves.pending.push(Pending::new(request, ranks, drains));
        self.watch_moves();
    }

    /// By what a rank would lose, the first to go first: one that could not come back at all, one
    /// without an image, the one with the oldest.
    fn eviction_order(&self, rank: Rank) -> (bool, Duration, Rank) {
        let r = &self.ranks[rank];
        let imaged = r.images().newest().map_or(Duration::ZERO, |kept| kept.asked);
        (!r.is_exposed(), imaged, rank)
    }

    /// A rank has left this node, or stays: the first of those that wait for it begins.
    fn begin_next(&mut self, from: Node) {
        let queued = |(_, moving): &(&Rank, &Move)| moving.from == from && moving.is_queued();
        let waiting = self.moves.ranks.iter().filter(queued).map(|(rank, _)| *rank);
        if let Some(rank) = waiting.min_by_key(|rank| self.eviction_order(*rank)) {
            self.begin_live(rank);
        }
    }

    /// One that moves already does not stay.
    pub fn begin_move(&mut self, rank: Rank, to: Option<Node>, manner: Manner) {
        if self.moves.ranks.contains_key(&rank) {
            return;
        }
        let from = self.ranks[rank].node();
        self.moves.ranks.insert(rank, Move::new(from, to, self.out.now(), manner));
        self.begin_live(rank);
    }

    /// Others go first: the rank only has an image taken.
    fn queue_move(&mut self, rank: Rank, to: Option<Node>, manner: Manner) {
        let from = self.ranks[rank].node();
        let moving = Move::queued(from, to, self.out.now(), manner);
        self.moves.ranks.insert(rank, moving);
        self.schedule.want(rank, self.out.now());
    }

    /// An image of the rank counts. A rank that is to move goes with it, or it is one more that is
    /// put in place where the rank is going.
    pub fn imaged(&mut self, rank: Rank, capture: &Capture) {
        // Only for a rank that is to move are all ranks looked at.
        let can_stop = self.moves.ranks.contains_key(&rank)
            && self.roles.ranks_can_stop(self.config, self.ranks);
        let now = self.out.now();
        let is_saving = self.saving.is_going_on();
        let of_move = |moving: &&mut Move| {
            moving.stopped().is_none() && capture.asked() >= moving.since && !is_saving
        };
        let Some(moving) = self.moves.ranks.get_mut(&rank).filter(of_move) else {
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
            moving.advance(MoveStep::Stopped { at: now });
            return self.stop().stop(rank);
        }
        (moving.since, moving.still) = (now, None);
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
        let waits = |(rank, moving): &(&Rank, &Move)| {
            let is_sent = moving.live().is_some_and(|live| live.sent.is_some());
            let is_captured = self.ranks[**rank].capture().is_some();
            moving.is_late(now) && !is_sent && !is_captured
        };
        let stuck = self.moves.ranks.iter().filter(waits);
        for rank in stuck.map(|(rank, _)| *rank).collect::<Vec<_>>() {
            let why = self.ages().why_no_image(rank);
            self.end_late_move(rank, &why);
        }
    }

    /// The rank could not be imaged. `passing`: for a reason that passes soon, so that it is tried
    /// `again` then; else it stays.
    pub fn not_imaged(&mut self, rank: Rank, why: &str, passing: bool, again: Duration) {
        match self.moves.ranks.get(&rank) {
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
        if let Some(moving) = self.moves.ranks.get_mut(&rank) {
            moving.advance(MoveStep::Stopped { at: now });
            // The new process is not slowed.
            moving.slowed = 0;
            let from = moving.from;
            self.depart(from);
        }
    }

    /// The rank has caught up. One that was just coming back when its move was asked for has not
    /// moved yet.
    pub fn arrived(&mut self, rank: Rank) {
        let Some(moving) = self.moves.ranks.get(&rank) else { return };
        let (from, stopped) = (moving.from, moving.stopped());
        match (self.ranks[rank].node() == from, stopped) {
            (false, _) => self.end_move(rank, MoveEnd::Moved),
            (true, Some(_)) => self.end_move(rank, MoveEnd::Stays("no other node could take it")),
            (true, None) => self.schedule.want(rank, self.out.now()),
        }
    }

    /// The move of the rank is over.
    pub fn end_move(&mut self, rank: Rank, how: MoveEnd) {
        slow(self.moves, self.ranks, self.out, rank, 0);
        let node = self.ranks[rank].node();
        let left = self.moves.get(rank).is_some_and(|moving| moving.from != node);
        // It may come to its end as soon as it is there.
        let how = if left && how == MoveEnd::Finished { MoveEnd::Moved } else { how };
        let Some(ended) = self.moves.end(rank, how) else { return };
        let Move { from, still, .. } = ended;
        let stopped = ended.stopped();
        if let Some(live) = ended.live().filter(|live| live.node != node) {
            self.unprepare(live);
        }
        if let (Some(stopped), false, true) =
            (stopped, matches!(how, MoveEnd::Stays(_)), node != from)
        {
            let pause = self.out.now() - still.unwrap_or(stopped);
            self.out.record(Record::RankMoved { rank, from, node, pause });
        }
        self.depart(from);
        self.begin_next(from);
        self.watch_moves();
    }

    /// Looks whether drained nodes without ranks are being left by their roles, too.
    fn watch_roles_left(&mut self) {
        let (now, mut pending) = (self.out.now(), std::mem::take(&mut self.moves.pending));
        let (roles, patience) = (self.roles, patience_with_roles(self.ranks));
        for waiting in pending.iter_mut().filter(|p| p.ranks.is_empty() && p.stayed.is_empty()) {
            let left = waiting.drains.iter().map(|node| roles.on(*node).count()).sum::<usize>();
            let before = waiting.roles_left.filter(|(before, _)| *before == left);
            let (_, since) = *waiting.roles_left.insert(before.unwrap_or((left, now)));
            if left > 0 && now >= since + patience {
                let stay = waiting.drains.iter().flat_map(|node| roles.on(*node));
                let ages = self.ages();
                waiting.stayed.extend(stay.map(|role| why_role_stays(role, roles, ages)));
            }
        }
        self.moves.pending = pending;
    }

    /// Answers those whose moves are over.
    pub fn watch_moves(&mut self) {
        self.watch_roles_left();
        let (ranks, roles) = (&*self.ranks, self.roles);
        let is_over = |pending: &Pending| {
            let free = pending.drains.iter().all(|node| roles.is_free(ranks, *node));
            pending.ranks.is_empty() && (free || !pending.stayed.is_empty())
        };
        for Pending { request, drains, stayed, .. } in self.moves.take_pending(is_over) {
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
