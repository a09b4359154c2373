//! From the death of a rank to the end of its recovery.

use super::io::{Command, Mark, Source};
use super::placement::{place, Choice};
use super::rank::{Capture, Death, RankState, Step, RESTORE_ATTEMPTS};
use super::reactor::Machine;
use super::signal::{self, is_own_fault};
use super::state::RankStateName;
use super::timeouts::{RESTORE_TIMEOUT, SLOWEST_TRANSFER, START_TIMEOUT};
use crate::record::Record;
use eyrie_wire::control::StartFault;
use eyrie_wire::{Rank, RankInstance};
use std::time::Duration;

impl Machine {
    /// The rank's present incarnation is dead: the routers are told to refuse it. `unheard`: how
    /// long ago the last sign of it was, if that is known.
    pub(super) fn fail(
        &mut self,
        rank: Rank,
        death: Death,
        cause: String,
        unheard: Option<Duration>,
    ) {
        let node = self.ranks[rank as usize].node;
        let Some((dead, capture)) = self.replace(rank, death, unheard) else { return };
        self.summary.rank_failures += 1;
        self.record(Record::RankFailed { instance: dead, node, cause });
        self.drop_capture(rank, capture, "the rank died meanwhile");
        self.not_imaged_for_saving(rank, true);
        self.died_while_it_moves(rank);
        self.commands.push(Command::Fence(self.ranks[rank as usize].instance()));
    }

    /// The present incarnation of the rank ends, and the next one is to be fenced off from it.
    /// Returns the one that ended, with the capture that was under way; `None` when it had ended.
    pub(super) fn replace(
        &mut self,
        rank: Rank,
        death: Death,
        unheard: Option<Duration>,
    ) -> Option<(RankInstance, Option<Capture>)> {
        let (now, fence) = (self.now, self.new_fence());
        let r = &mut self.ranks[rank as usize];
        let (ended, capture) = (r.instance(), r.end_capture());
        if !r.advance(Step::Died { now, death, unheard, fence }) {
            return None;
        }
        r.incarnation += 1;
        self.notes.overdue.remove(&rank);
        Some((ended, capture))
    }

    /// An image that was under way does not count: its rank is there no more.
    pub(super) fn drop_capture(&mut self, rank: Rank, capture: Option<Capture>, cause: &str) {
        let Some(Capture { image, copies, .. }) = capture else { return };
        self.schedule.ended(rank, self.now, None);
        self.discard(rank, image, &copies);
        let cause = cause.into();
        self.record(Record::CheckpointFailed { rank, image, cause, passing: true });
    }

    /// Older incarnations cannot speak any more: bring the rank back.
    pub(super) fn bring_back(&mut self, instance: RankInstance, mark: Mark) {
        let RankInstance { rank, .. } = instance;
        let r = &mut self.ranks[rank as usize];
        if let Some((signal, again)) = r.count_death(mark) {
            let words = signal::in_words(signal);
            let known = again.in_words(signal);
            let text = format!("rank {rank} was killed by {words} {known}, the job ends");
            return self.end(signal, Some(text));
        }
        let kept = match r.way_back() {
            Ok(kept) => kept.cloned(),
            Err(reason) => {
                let text = format!("rank {rank} cannot be recovered: {reason}");
                return self.end(1, Some(text));
            }
        };
        let died_on = r.node;
        let asked = self.asked_node(rank).map(|node| (node, Choice::Asked));
        let placed = || place(&*self.placement, &self.nodes_for(rank), rank, died_on);
        let Some((node, choice)) = asked.or_else(placed) else {
            return self.end(1, Some("no node is left".into()));
        };
        self.take_node(rank, node, choice, died_on);
        let now = self.now;
        let until = now
            + kept.as_ref().map_or(START_TIMEOUT, |kept| {
                RESTORE_TIMEOUT + Duration::from_secs(kept.image.bytes / SLOWEST_TRANSFER)
            });
        let avoid = self.ranks[rank as usize].state.recovery().and_then(|v| v.avoid);
        let from = kept.and_then(|kept| {
            let store = kept.copies.source(rank, avoid)?;
            Some(Source { image: kept.image.image, store })
        });
        let image = from.map(|from| from.image);
        let r = &mut self.ranks[rank as usize];
        r.node = node;
        r.advance(Step::Fenced { now, from, until });
        self.record(Record::Placed { instance, node, choice, image });
        self.commands.push(Command::Start { node, instance, from });
        self.faults_in_recovery(rank, false);
    }

    fn take_node(
        &mut self,
        rank: Rank,
        node: eyrie_wire::Node,
        choice: Choice,
        from: eyrie_wire::Node,
    ) {
        let state = &mut self.nodes[node as usize];
        match choice {
            Choice::Same => {}
            Choice::Asked => state.free_spare = false,
            Choice::Spare => {
                if state.free_spare {
                    state.free_spare = false;
                    state.stands_for = Some(from);
                    self.summary.spares_used += 1;
                    self.record(Record::SpareUsed { spare: node, node: from });
                }
            }
            Choice::Shared => {
                // A spare that was held free is none any more.
                state.free_spare = false;
                let ranks = self.job_nodes()[node as usize].ranks + 1;
                self.record(Record::NodeShared { node, rank, ranks });
            }
        }
    }

    pub(super) fn rank_started(
        &mut self,
        instance: RankInstance,
        fetched: Duration,
        restored: Duration,
    ) {
        let now = self.now;
        let Some(r) = self.current(instance) else { return };
        let early = match &r.state {
            RankState::Restoring { replayed_early, .. } => *replayed_early,
            _ => None,
        };
        let starts = r.advance(Step::Started);
        if starts {
            (r.imaged, r.refused) = (now, None);
        }
        if !starts || !r.is(RankStateName::Replaying) {
            return;
        }
        if let Some(v) = r.state.recovery_mut() {
            v.phases.fetched = fetched;
            // Until it is connected to its router; what is left of the time since the order.
            v.phases.restored = (now - v.mark).saturating_sub(fetched);
            v.mark = now;
        }
        self.record(Record::Restored { instance, fetched, restored });
        self.faults_in_recovery(instance.rank, true);
        if let Some(messages) = early {
            self.replayed(instance, messages);
        }
    }

    pub(super) fn connected(&mut self, instance: RankInstance) {
        let now = self.now;
        let Some(r) = self.current(instance) else { return };
        if let RankState::Replaying { recovery: v, .. } = &mut r.state {
            v.phases.restored += now - v.mark;
            v.mark = now;
        }
        self.record(Record::Connected { instance });
    }

    pub(super) fn disconnected(&mut self, instance: RankInstance) {
        let on_node = self.current(instance).and_then(|r| r.on_node());
        if on_node.is_some_and(|on_node| !on_node.finalized) {
            self.record(Record::ConnectionLost { instance });
        }
    }

    /// The rank has caught up: its recovery is over.
    pub(super) fn replayed(&mut self, instance: RankInstance, messages: u64) {
        let now = self.now;
        let Some(r) = self.current(instance) else { return };
        if let RankState::Restoring { replayed_early, .. } = &mut r.state {
            // The router's word came before the agent's, which brings the durations.
            *replayed_early = Some(messages);
            return;
        }
        let (node, recovery) = (r.node, r.state.recovery().copied());
        let Some(mut v) = recovery.filter(|_| r.advance(Step::Replayed)) else { return };
        v.phases.replayed = now - v.mark;
        let total = v.phases.total();
        self.summary.recoveries += 1;
        self.summary.longest_recovery = self.summary.longest_recovery.max(total);
        let (image, phases) = (v.from.map(|from| from.image), v.phases);
        self.record(Record::Recovered { instance, node, image, messages, phases, total });
        self.arrived(instance.rank);
    }

    pub(super) fn start_failed(
        &mut self,
        instance: RankInstance,
        reason: String,
        fault: StartFault,
    ) {
        let Some(r) = self.current(instance) else { return };
        let from = match &r.state {
            RankState::Restoring { recovery, .. } => recovery.from,
            RankState::Starting { .. } => None,
            // It had been started: its end is reported by itself.
            _ => return,
        };
        let rank = instance.rank;
        let Some(Source { image, store }) = from else {
            return self.end(1, Some(format!("rank {rank} cannot be started: {reason}")));
        };
        match fault {
            // The image is as good as before.
            StartFault::Killed(signal) if !is_own_fault(signal) => {
                return self.fail(rank, Death::Signal(signal), reason, None);
            }
            // What has come of the image fails by itself: the older one may do.
            StartFault::Killed(_) | StartFault::Attempt | StartFault::Image => {}
        }
        self.end_move(rank, Some("it could not be restored there"));
        let r = &mut self.ranks[rank as usize];
        let attempts = r.state.recovery_mut().map_or(0, |v| {
            v.failed_attempts += 1;
            v.avoid = Some(store);
            v.failed_attempts
        });
        self.record(Record::RestoreFailed { instance, image: Some(image), cause: reason });
        let all = attempts >= RESTORE_ATTEMPTS;
        if fault == StartFault::Image || all {
            if let Some(v) = self.ranks[rank as usize].state.recovery_mut() {
                v.failed_attempts = 0;
            }
            self.drop_copies(rank, image, (!all).then_some(store));
        }
        self.fail(rank, Death::Outside, format!("image {image} could not be restored"), None);
    }

    /// Ranks that did not come up in time, and routers that did not answer.
    pub(super) fn watch_ranks(&mut self) {
        let now = self.now;
        let late: Vec<Rank> = (self.ranks.iter())
            .filter(|r| r.state.until().is_some_and(|until| until <= now))
            .map(|r| r.rank)
            .collect();
        for rank in late {
            if self.ended {
                return;
            }
            let r = &self.ranks[rank as usize];
            if r.is(RankStateName::Lost) {
                return self.router_is_late(rank);
            }
            let (instance, node) = (r.instance(), r.node);
            self.commands.push(Command::Kill { node, instance });
            let reason = format!("node {node} did not bring it up in time");
            self.start_failed(instance, reason, StartFault::Attempt);
        }
    }

    pub(super) fn unprotected(&mut self, rank: Rank, cause: String) {
        let now = self.now;
        let Some(r) = self.ranks.get_mut(rank as usize) else { return };
        if r.is(RankStateName::Finished) {
            return;
        }
        let first = r.unprotected.is_none();
        r.unprotected = Some(now);
        if first {
            self.record(Record::Unprotected { rank, cause });
            // An image makes it whole again.
            self.schedule.want(rank, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Config, Event, Image};
    use eyrie_wire::control::{Ending, MpiStage, RankReport};
    use eyrie_wire::Node;

    fn start_of(commands: &[Command]) -> (Node, RankInstance) {
        let start = |c: &Command| match c {
            Command::Start { node, instance, .. } => Some((*node, *instance)),
            _ => None,
        };
        commands.iter().find_map(start).unwrap_or_else(|| panic!("no start: {commands:?}"))
    }

    /// A rank on a node with two spares, which has an image or not, and then loses its node.
    /// `fails` is how an attempt to bring it back fails. Returns the nodes of three attempts.
    fn nodes_of_attempts(with_image: bool, fails: &RankReport) -> [Node; 3] {
        let mut machine = Machine::new(Config { spares: 2, ..Config::of_one_rank() });
        let mut tell = |event| machine.handle(Duration::ZERO, event);
        let up = [0, 1, 2].map(|node| tell(Event::AgentUp(node)));
        let (_, first) = start_of(&up[2]);
        let (fetched, restored) = (Duration::ZERO, Duration::ZERO);
        tell(Event::Rank(first, RankReport::Started { fetched, restored }));
        tell(Event::Rank(first, RankReport::ProviderLoaded));
        if with_image {
            tell(Event::Checkpoint { request: 1, rank: Some(0) });
            let image = Image { image: 1, clock: 5, rsn: 5, observed: 0, stdin: 0, bytes: 1000 };
            tell(Event::ImageStored { store: 0, instance: first, image });
            let (image, output) = (1, [0; 2]);
            tell(Event::Rank(first, RankReport::ImageUsable { image, output }));
        }
        tell(Event::AgentGone(0));
        let mut incarnation = 2;
        [(); 3].map(|()| {
            let instance = RankInstance { incarnation, ..first };
            let (node, _) = start_of(&tell(Event::Fenced { router: 0, instance, rsn: 0 }));
            if !with_image {
                tell(Event::Rank(instance, RankReport::Started { fetched, restored }));
            }
            tell(Event::Rank(instance, fails.clone()));
            incarnation += 1;
            node
        })
    }

    #[test]
    fn the_last_attempt_is_made_on_another_node() {
        let (reason, fault) = ("no space is left in /dev/shm".into(), StartFault::Attempt);
        assert_eq!(nodes_of_attempts(true, &RankReport::StartFailed { reason, fault }), [1, 1, 2]);
        let ending = Ending::Signal(libc::SIGBUS);
        let killed = RankReport::Exited { ending, stage: MpiStage::Before };
        assert_eq!(nodes_of_attempts(false, &killed), [1, 1, 2]);
    }
}
