//! Moving ranks to other nodes, and making nodes free: a rank is imaged, stopped as if it had died,
//! and comes back elsewhere from that image. It must never run twice: the routers refuse the old
//! one first. Whatever fails meanwhile, it is recovered as after a death.

use super::answer::{Answer, RequestId};
use super::checkpoint::RETRY;
use super::io::Command;
use super::moves::{Manner, Move, Pending};
use super::rank::Capture;
use super::reactor::Machine;
use super::state::RankStateName;
use super::timeouts::IMAGE_TIMEOUT;
use crate::record::Record;
use eyrie_placement::placement::JobNode;
use eyrie_wire::{Node, Rank};
use std::collections::BTreeSet;
use std::time::Duration;

/// Why a node cannot be drained, and the remedy.
pub(super) const NO_OTHER_NODE: &str =
    "no other node is up that could take its ranks; `eyrie join` adds one";
/// Why nothing moves.
const NOT_NOW: &str = "the job is starting, or being saved: nothing can move now";

impl Machine {
    /// Ranks are to go to another node: `to`, or where the placement says.
    pub(super) fn migrate_asked(
        &mut self,
        request: Option<RequestId>,
        ranks: &[Rank],
        to: Option<Node>,
        manner: Manner,
    ) {
        if let Some(why) = self.cannot_migrate(ranks, to) {
            return self.refuse(request, why);
        }
        self.begin_moves(request, ranks.iter().copied().collect(), to, manner, None);
    }

    /// Why these ranks cannot go there.
    pub(super) fn cannot_migrate(&self, ranks: &[Rank], to: Option<Node>) -> Option<String> {
        let mut seen = BTreeSet::new();
        if let Some(why) = self.cannot_move_now() {
            return Some(why);
        }
        if let Some(to) = to {
            match self.nodes.get(to as usize) {
                None => {
                    let last = self.nodes.len() - 1;
                    return Some(format!("there is no node {to}: the job has nodes 0 to {last}"));
                }
                Some(node) if !node.is_up() => return Some(format!("node {to} is not up")),
                Some(node) if node.drained => {
                    return Some(format!("node {to} is drained: `eyrie undrain` takes that back"));
                }
                Some(_) => {}
            }
        }
        for rank in ranks {
            let Some(r) = self.ranks.get(*rank as usize) else {
                return Some(self.no_such_rank(*rank));
            };
            let why = match r.state.name() {
                _ if !seen.insert(*rank) => "is named twice".into(),
                RankStateName::Finished => "has finished".into(),
                RankStateName::Running | RankStateName::Replaying if r.on_node().is_some() => {
                    match to {
                        _ if self.moves.ranks.contains_key(rank) => "is moving already".into(),
                        Some(to) if to == r.node => format!("is on node {to} already"),
                        None if !self.has_other_than(&[r.node]) => {
                            "cannot go anywhere: no other node is up; `eyrie join` adds one".into()
                        }
                        _ => continue,
                    }
                }
                _ => "is being recovered: try again when `eyrie status` shows that it runs".into(),
            };
            return Some(format!("rank {rank} {why}"));
        }
        None
    }

    /// Why nothing can move at present.
    pub(super) fn cannot_move_now(&self) -> Option<String> {
        (!self.started || self.is_saving()).then(|| NOT_NOW.into())
    }

    /// Whether ranks of these nodes could go to another one.
    pub(super) fn has_other_than(&self, nodes: &[Node]) -> bool {
        (0..).zip(&self.nodes).any(|(other, n)| !nodes.contains(&other) && n.is_up() && !n.drained)
    }

    /// All ranks of a node are to go elsewhere, and nothing is to come there. `at_once`: so many of
    /// them at a time.
    pub(super) fn drain_asked(&mut self, request: Option<RequestId>, node: Node, at_once: usize) {
        if let Some(why) = self.cannot_drain(node) {
            return self.refuse(request, why);
        }
        self.close_node(node);
        let ranks = self.ranks_on(node);
        self.record(Record::NodeDraining { node, ranks: ranks.clone() });
        let ranks = ranks.into_iter().collect();
        self.begin_moves(request, ranks, None, Manner::default(), Some((node, at_once)));
    }

    /// Why a node cannot be drained.
    pub(super) fn cannot_drain(&self, node: Node) -> Option<String> {
        if let Some(why) = self.cannot_move_now() {
            return Some(why);
        }
        match self.nodes.get(node as usize) {
            None => Some(format!("there is no node {node}")),
            Some(n) if !n.is_up() => Some(format!("node {node} is not up")),
            Some(n) if n.drained && (self.is_free(node) || self.moves.is_draining(node)) => {
                Some(format!("node {node} is drained, or being drained"))
            }
            Some(_) if !self.has_other_than(&[node]) => {
                Some(format!("node {node} cannot be drained: {NO_OTHER_NODE}"))
            }
            Some(_) => None,
        }
    }

    /// Ranks may come to the node again; without any it is a spare.
    pub(super) fn undrain_asked(&mut self, request: RequestId, node: Node) {
        let answer = match self.nodes.get_mut(node as usize) {
            Some(n) if n.drained => {
                n.drained = false;
                self.nodes[node as usize].free_spare = self.ranks_on(node).is_empty();
                self.moves.no_longer_drains(node);
                // It may have what is missing.
                self.look_at = self.now;
                self.record(Record::NodeUndrained { node });
                Answer::Accepted
            }
            Some(_) => Answer::Refused(format!("node {node} is not drained")),
            None => Answer::Refused(format!("there is no node {node}")),
        };
        self.answer(request, answer);
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
        begin.sort_by_key(|rank| self.preciousness(*rank));
        for (n, rank) in begin.into_iter().enumerate() {
            match n < at_once {
                true => self.begin_move(rank, to, manner),
                false => self.queue_move(rank, to, manner),
            }
        }
        let drains = drains.into_iter().map(|(node, _)| node).collect();
        self.moves.pending.push(Pending::new(request, ranks, drains));
        self.watch_moves();
    }

    /// By what a rank would lose, the most precious first: one that could not come back at all, one
    /// without an image, the one with the oldest.
    fn preciousness(&self, rank: Rank) -> (bool, Duration, Rank) {
        let r = &self.ranks[rank as usize];
        let imaged = r.images.last().map_or(Duration::ZERO, |kept| kept.asked);
        (!r.is_exposed(), imaged, rank)
    }

    /// A rank has left this node, or stays: the most precious of those that wait for it begins.
    fn begin_next(&mut self, from: Node) {
        let queued = |(_, moving): &(&Rank, &Move)| {
            moving.from == from && moving.queued && moving.stopped.is_none()
        };
        let waiting = self.moves.ranks.iter().filter(queued).map(|(rank, _)| *rank);
        if let Some(rank) = waiting.min_by_key(|rank| self.preciousness(*rank)) {
            self.begin_live(rank);
        }
    }

    /// One that moves already does not stay.
    pub(super) fn begin_move(&mut self, rank: Rank, to: Option<Node>, manner: Manner) {
        if self.moves.ranks.contains_key(&rank) {
            return;
        }
        let from = self.ranks[rank as usize].node;
        self.moves.ranks.insert(rank, Move::new(from, to, self.now, manner));
        self.begin_live(rank);
    }

    /// Others go first: the rank only has an image taken.
    fn queue_move(&mut self, rank: Rank, to: Option<Node>, manner: Manner) {
        let from = self.ranks[rank as usize].node;
        let moving = Move { queued: true, ..Move::new(from, to, self.now, manner) };
        self.moves.ranks.insert(rank, moving);
        self.schedule.want(rank, self.now);
    }

    /// An image of the rank counts. A rank that is to move goes with it, or it is one more that is
    /// put in place where the rank is going.
    pub(super) fn imaged_for_move(&mut self, rank: Rank, capture: &Capture) {
        // Only for a rank that is to move are all ranks looked at.
        let can_stop = self.moves.ranks.contains_key(&rank) && self.ranks_can_stop();
        let (now, is_saving) = (self.now, self.is_saving());
        let of_move = |moving: &&mut Move| {
            moving.stopped.is_none() && capture.asked >= moving.since && !is_saving
        };
        let Some(moving) = self.moves.ranks.get_mut(&rank).filter(of_move) else {
            // Its move has ended while it stood still, or was asked for again.
            return self.go_on_if_held(rank, capture);
        };
        if moving.queued {
            return;
        }
        if moving.live.is_some() && !capture.hold {
            return self.send_image(rank);
        }
        if can_stop {
            moving.stopped = Some(now);
            self.stop_rank(rank);
            return;
        }
        (moving.since, moving.still) = (now, None);
        let is_late = moving.is_late(now);
        self.schedule.retry(rank, now + RETRY);
        self.go_on_if_held(rank, capture);
        if is_late {
            let why = self.why_ranks_cannot_stop();
            self.end_late_move(rank, &why);
        }
    }

    /// A rank does not move that could not for too long.
    fn end_late_move(&mut self, rank: Rank, why: &str) {
        let waited = eyrie_units::time(IMAGE_TIMEOUT);
        self.end_move(rank, Some(&format!("it was tried for {waited}: {why}")));
    }

    /// Ends moves of ranks of which no image can be begun.
    pub(super) fn watch_stuck_moves(&mut self) {
        let now = self.now;
        let waits = |(rank, moving): &(&Rank, &Move)| {
            let is_sent = moving.live.is_some_and(|live| live.sent.is_some());
            let is_captured = self.ranks[**rank as usize].capture().is_some();
            moving.is_late(now) && !is_sent && !is_captured
        };
        let stuck = self.moves.ranks.iter().filter(waits);
        for rank in stuck.map(|(rank, _)| *rank).collect::<Vec<_>>() {
            let why = self.why_no_image(rank);
            self.end_late_move(rank, &why);
        }
    }

    /// The rank stands still for this image, if it was the last one of a move: it is not stopped
    /// now, and computes on. On a node that is lost, perhaps together with the store of the image,
    /// it does not.
    pub(super) fn go_on_if_held(&mut self, rank: Rank, capture: &Capture) {
        let r = &self.ranks[rank as usize];
        if capture.hold && self.nodes[r.node as usize].is_up() {
            let (node, instance, image) = (r.node, r.instance(), capture.image);
            self.commands.push(Command::GoOn { node, instance, image });
        }
    }

    /// The rank could not be imaged. `passing`: for a reason that passes soon; else it stays.
    pub(super) fn not_imaged_for_move(&mut self, rank: Rank, why: &str, passing: bool) {
        match self.moves.ranks.get(&rank) {
            Some(moving) if passing && moving.is_late(self.now) => self.end_late_move(rank, why),
            Some(Move { stopped: None, .. }) if passing => {
                self.schedule.retry(rank, self.now + RETRY);
            }
            Some(Move { stopped: None, .. }) => self.end_move(rank, Some(why)),
            _ => {}
        }
    }

    /// The rank has died: it comes back elsewhere all the same.
    pub(super) fn died_while_it_moves(&mut self, rank: Rank) {
        let now = self.now;
        if let Some(moving) = self.moves.ranks.get_mut(&rank) {
            moving.stopped.get_or_insert(now);
            // The new process is not slowed.
            moving.slowed = 0;
            let from = moving.from;
            self.depart(from);
        }
    }

    /// The rank has caught up. One that was just coming back when its move was asked for has not
    /// moved yet.
    pub(super) fn arrived(&mut self, rank: Rank) {
        let Some(Move { from, stopped, .. }) = self.moves.ranks.get(&rank) else { return };
        match (self.ranks[rank as usize].node == *from, stopped) {
            (false, _) => self.end_move(rank, None),
            (true, Some(_)) => self.end_move(rank, Some("no other node could take it")),
            (true, None) => self.schedule.want(rank, self.now),
        }
    }

    /// The rank has come to another node, has finished, or (`stayed`) does not move.
    pub(super) fn end_move(&mut self, rank: Rank, stayed: Option<&str>) {
        self.slow(rank, 0);
        let Some(Move { from, stopped, still, live, .. }) = self.moves.end(rank, stayed) else {
            return;
        };
        let node = self.ranks[rank as usize].node;
        if let Some(live) = live.filter(|live| live.node != node) {
            self.unprepare(&live);
        }
        if let (Some(stopped), None, true) = (stopped, stayed, node != from) {
            let pause = self.now - still.unwrap_or(stopped);
            self.record(Record::RankMoved { rank, from, node, pause });
        }
        self.depart(from);
        self.begin_next(from);
        self.watch_moves();
    }

    /// The nodes as they are for a rank that comes back: those that are drained take none, nor does
    /// the one that it leaves; unless no other is left.
    pub(super) fn nodes_for(&self, rank: Rank) -> Vec<JobNode> {
        let mut nodes = self.job_nodes();
        for (node, entry) in nodes.iter_mut().zip(&self.nodes) {
            node.up &= !entry.drained;
        }
        if let Some(Move { from, to: None, .. }) = self.moves.ranks.get(&rank) {
            nodes[*from as usize].up = false;
        }
        let r = &self.ranks[rank as usize];
        let is_other = |(node, at): (usize, &JobNode)| node != r.node as usize && at.up;
        if r.node_may_be_at_fault() && nodes.iter().enumerate().any(is_other) {
            nodes[r.node as usize].up = false;
        }
        match nodes.iter().any(|node| node.up) {
            true => nodes,
            false => self.job_nodes(),
        }
    }

    /// The node that the rank was asked to go to, while it can.
    pub(super) fn asked_node(&self, rank: Rank) -> Option<Node> {
        let to = self.moves.ranks.get(&rank)?.to?;
        let node = self.nodes.get(to as usize)?;
        (node.is_up() && !node.drained).then_some(to)
    }

    /// Whether a node is drained and nothing is on it any more.
    pub(super) fn is_free(&self, node: Node) -> bool {
        self.ranks_on(node).is_empty() && !self.roles().any(|(_, on)| on == node)
    }

    /// Looks whether drained nodes without ranks are being left by their roles, too.
    fn watch_roles_left(&mut self) {
        let (now, mut pending) = (self.now, std::mem::take(&mut self.moves.pending));
        for waiting in pending.iter_mut().filter(|p| p.ranks.is_empty() && p.stayed.is_empty()) {
            let there = |node: &Node| self.roles_that_stay(*node).count();
            let left = waiting.drains.iter().map(there).sum::<usize>();
            let before = waiting.roles_left.filter(|(before, _)| *before == left);
            let (_, since) = *waiting.roles_left.insert(before.unwrap_or((left, now)));
            if left > 0 && now >= since + self.patience_with_roles() {
                let stay = waiting.drains.iter().flat_map(|node| self.roles_that_stay(*node));
                waiting.stayed.extend(stay.map(|role| self.why_role_stays(role)));
            }
        }
        self.moves.pending = pending;
    }

    /// Answers those whose moves are over.
    pub(super) fn watch_moves(&mut self) {
        self.watch_roles_left();
        let over = |machine: &Machine, pending: &Pending| {
            let free = pending.drains.iter().all(|node| machine.is_free(*node));
            pending.ranks.is_empty() && (free || !pending.stayed.is_empty())
        };
        let mut at = 0;
        while let Some(pending) = self.moves.pending.get(at) {
            if !over(self, pending) {
                at += 1;
                continue;
            }
            let Pending { request, drains, stayed, .. } = self.moves.pending.remove(at);
            if !stayed.is_empty() {
                self.refuse(request, stayed.join("; "));
                continue;
            }
            for node in drains {
                self.record(Record::NodeDrained { node });
                self.let_go(node);
            }
            if let Some(request) = request {
                self.answer(request, Answer::Accepted);
            }
        }
    }

    /// Ranks that move.
    pub fn moves(&self) -> impl Iterator<Item = (Rank, &Move)> + '_ {
        self.moves.ranks.iter().map(|(rank, moving)| (*rank, moving))
    }

    /// Nodes that are drained, or being drained.
    pub fn drained(&self) -> impl Iterator<Item = Node> + '_ {
        (0..).zip(&self.nodes).filter(|(_, n)| n.drained).map(|(node, _)| node)
    }
}
