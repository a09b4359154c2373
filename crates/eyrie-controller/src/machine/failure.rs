//! From the death of a rank to the end of its recovery.

use super::placement::{place, Choice};
use super::rank::{Death, Recovery, State};
use super::signal;
use super::{Command, Life, Machine, Mark, RESTORE_TIMEOUT, SLOWEST_TRANSFER, START_TIMEOUT};
use crate::record::{Phases, Record};
use eyrie_wire::control::StartFault;
use eyrie_wire::Rank;
use std::time::Duration;

/// Restores of one image in a row that may fail, by no fault that is known to be the image's, before it is
/// given up.
const RESTORE_ATTEMPTS: u32 = 3;

impl Machine {
    /// The rank's present life is over. `silent`: how long ago the last sign of it was, if that is known.
    pub(super) fn fail(
        &mut self,
        rank: Rank,
        death: Death,
        cause: String,
        silent: Option<Duration>,
    ) {
        let now = self.now;
        let r = &mut self.ranks[rank as usize];
        let (incarnation, node) = (r.incarnation, r.node);
        let struck = r.struck.take().map(|at| now - at);
        r.incarnation += 1;
        r.state = State::Lost;
        r.loaded = false;
        r.finalized = false;
        r.deadline = None;
        r.replayed_early = None;
        let capture = r.capture.take();
        // A recovery that failed goes on under the same clock: what it took so far was detection.
        let before =
            r.recovery.map_or(Duration::ZERO, |v| v.phases.total() + now.saturating_sub(v.mark));
        let detected = before + silent.or(struck).unwrap_or(Duration::ZERO);
        let phases = Phases { detected, ..Phases::default() };
        let failed_attempts = r.recovery.map_or(0, |v| v.failed_attempts);
        r.recovery = Some(Recovery { death, image: None, phases, mark: now, failed_attempts });
        let life = r.life();
        self.summary.rank_failures += 1;
        self.record(Record::RankFailed { rank, incarnation, node, cause });
        if let Some(capture) = capture {
            self.schedule.ended(rank, now, None);
            if capture.stored.is_some() {
                self.commands.push(Command::ForgetImage { rank, image: capture.image });
            }
            let cause = "the rank died meanwhile".into();
            let image = capture.image;
            self.record(Record::CheckpointFailed { rank, image, cause, passing: true });
        }
        self.commands.push(Command::Fence(life));
    }

    /// Older lives cannot speak any more: bring the rank back.
    pub(super) fn fenced(&mut self, life: Life, mark: Mark) {
        let Some(r) = self.ranks.get_mut(life.rank as usize) else { return };
        if r.incarnation != life.incarnation || r.state != State::Lost {
            return;
        }
        let mark = Mark { output: mark.output.max(r.output), ..mark };
        if let Some((signal, again)) = r.count_death(mark) {
            let words = signal::in_words(signal);
            let known = again.in_words(signal);
            let text = format!("rank {} was killed by {words} {known}, the job ends", life.rank);
            return self.end(signal, Some(text));
        }
        let image = match r.way_back() {
            Ok(image) => image,
            Err(reason) => {
                let text = format!("rank {} cannot be recovered: {reason}", life.rank);
                return self.end(1, Some(text));
            }
        };
        let from = r.node;
        let Some((node, choice)) = place(&*self.placement, &self.job_nodes(), life.rank, from)
        else {
            return self.end(1, Some("no node is left".into()));
        };
        self.take_node(life.rank, node, choice, from);
        let now = self.now;
        let r = &mut self.ranks[life.rank as usize];
        r.node = node;
        r.state = State::Restoring;
        let image_id = image.map(|i| i.image);
        r.started_from = image_id;
        r.deadline = Some(match image {
            Some(i) => now + RESTORE_TIMEOUT + Duration::from_secs(i.bytes / SLOWEST_TRANSFER),
            None => now + START_TIMEOUT,
        });
        if let Some(v) = &mut r.recovery {
            v.image = image_id;
            v.phases.placed = now - v.mark;
            v.mark = now;
        }
        let Life { rank, incarnation } = life;
        self.record(Record::Placed { rank, incarnation, node, choice, image: image_id });
        self.commands.push(Command::Start { node, life, image: image_id });
        self.strike_recovery(rank, false);
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

    pub(super) fn rank_started(&mut self, life: Life, fetched: Duration, restored: Duration) {
        let now = self.now;
        let Some(r) = self.current(life) else { return };
        r.deadline = None;
        match r.state {
            State::Starting => r.state = State::Running,
            State::Restoring => {
                r.state = State::Replaying;
                if let Some(v) = &mut r.recovery {
                    v.phases.fetched = fetched;
                    // Until it is connected to its router; what is left of the time since the order.
                    v.phases.restored = (now - v.mark).saturating_sub(fetched);
                    v.mark = now;
                }
                let early = r.replayed_early.take();
                let Life { rank, incarnation } = life;
                self.record(Record::Restored { rank, incarnation, fetched, restored });
                self.strike_recovery(rank, true);
                if let Some(messages) = early {
                    self.replayed(life, messages);
                }
            }
            _ => {}
        }
    }

    pub(super) fn connected(&mut self, life: Life) {
        let now = self.now;
        let Some(r) = self.current(life) else { return };
        if let (State::Replaying, Some(v)) = (r.state, &mut r.recovery) {
            v.phases.restored += now - v.mark;
            v.mark = now;
        }
        let Life { rank, incarnation } = life;
        self.record(Record::Connected { rank, incarnation });
    }

    /// The rank has caught up: its recovery is over.
    pub(super) fn replayed(&mut self, life: Life, messages: u64) {
        let now = self.now;
        let Some(r) = self.current(life) else { return };
        match r.state {
            State::Replaying => r.state = State::Running,
            // The router's word came before the agent's, which brings the durations.
            State::Restoring => {
                r.replayed_early = Some(messages);
                return;
            }
            _ => return,
        }
        let node = r.node;
        let Some(mut v) = r.recovery.take() else { return };
        v.phases.replayed = now - v.mark;
        let total = v.phases.total();
        self.summary.recoveries += 1;
        self.summary.longest_recovery = self.summary.longest_recovery.max(total);
        let Life { rank, incarnation } = life;
        let (image, phases) = (v.image, v.phases);
        self.record(Record::Recovered { rank, incarnation, node, image, messages, phases, total });
    }

    pub(super) fn start_failed(&mut self, life: Life, reason: String, fault: StartFault) {
        let Some(r) = self.current(life) else { return };
        let image = match r.state {
            State::Restoring => r.recovery.and_then(|v| v.image),
            State::Starting => None,
            // It had been started: its end is reported by itself.
            _ => return,
        };
        let Life { rank, incarnation } = life;
        let Some(image) = image else {
            return self.end(1, Some(format!("rank {rank} cannot be started: {reason}")));
        };
        if let StartFault::Killed(signal) = fault {
            // The image is as good as before.
            return self.fail(rank, Death::Signal(signal), reason, None);
        }
        let attempts = r.recovery.as_mut().map_or(0, |v| {
            v.failed_attempts += 1;
            v.failed_attempts
        });
        let cause = reason.clone();
        self.record(Record::RestoreFailed { rank, incarnation, image: Some(image), cause });
        if fault == StartFault::Image || attempts >= RESTORE_ATTEMPTS {
            let r = &mut self.ranks[rank as usize];
            r.images.retain(|i| i.image != image);
            if let Some(v) = &mut r.recovery {
                v.failed_attempts = 0;
            }
            self.commands.push(Command::ForgetImage { rank, image });
        }
        self.fail(rank, Death::Outside, format!("image {image} could not be restored"), None);
    }

    /// Ranks that did not come up in time.
    pub(super) fn watch_ranks(&mut self) {
        let now = self.now;
        let late: Vec<Rank> = (self.ranks.iter())
            .filter(|r| r.deadline.is_some_and(|d| d <= now))
            .map(|r| r.rank)
            .collect();
        for rank in late {
            if self.ended {
                return;
            }
            let r = &self.ranks[rank as usize];
            let (life, node) = (r.life(), r.node);
            self.commands.push(Command::Kill { node, life });
            let reason = format!("node {node} did not bring it up in time");
            self.start_failed(life, reason, StartFault::Attempt);
        }
    }

    pub(super) fn unprotected(&mut self, rank: Rank, cause: String) {
        let now = self.now;
        let Some(r) = self.ranks.get_mut(rank as usize) else { return };
        if r.state == State::Finished {
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
