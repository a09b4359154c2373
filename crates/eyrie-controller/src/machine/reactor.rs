//! One event after another: time passes, its handler takes it, what follows is taken, and the ranks
//! start or the job ends when that has come of it.

use super::components::Machine;
use super::config::Config;
use super::io::{Command, Event, Mark};
use super::outbox::consequence::Consequence;
use super::ranks::entry::Step;
use super::state::RankStateName;
use super::timeouts::START_TIMEOUT;
use crate::record::Record;
use std::time::Duration;

impl Machine {
    /// Handles one event at `now` (since the job's start, never going back) and returns what to do,
    /// in order.
    pub fn handle(&mut self, now: Duration, event: Event) -> Vec<Command> {
        if self.out.has_ended() {
            if let Event::Output { instance, stream, offset, bytes } = event {
                self.output_arrived(instance, stream, offset, bytes);
            }
            return self.out.take_commands();
        }
        self.pass_time(now.max(self.out.now()));
        let tick = event == Event::Tick;
        self.dispatch(event);
        self.follow();
        self.begin_when_all_are_up();
        if tick || self.out.now() >= self.out.look_at() {
            self.look();
        }
        if self.out.has_started() && !self.out.has_ended() && !self.contact.is_cut_off() {
            self.injecting().inject_due();
            self.saver().go_on_saving();
            self.follow();
            self.captures().capture_due();
        }
        self.end();
        self.out.take_commands()
    }

    /// When [`super::Event::Tick`] is due at the latest.
    pub fn next_tick(&self) -> Option<Duration> {
        if self.out.has_ended() {
            return None;
        }
        if !self.out.has_started() {
            return Some(self.out.look_at());
        }
        let soon = [self.schedule.next_after(self.out.now()), self.faults.next()];
        soon.into_iter().flatten().chain([self.out.look_at()]).min()
    }

    /// Time goes on. When this comes later than it should have, the controller itself was stopped,
    /// or had no processor: all deadlines move by as much. So they do while it stands aside.
    fn pass_time(&mut self, now: Duration) {
        let before = self.out.now();
        let due = self.next_tick().unwrap_or(now).max(before);
        self.out.set_now(now);
        let is_cut_off = self.contact.is_cut_off();
        let late = now.saturating_sub(if is_cut_off { before } else { due });
        if late > self.nodes.heartbeat_interval() / 8 || is_cut_off {
            self.nodes.extend(late);
            self.ranks.extend(late);
            self.moves.extend(late);
            self.roles.extend(late);
            self.reach.extend(late);
        }
    }

    /// The job is over, if that has come of this event: its record is the last one.
    fn end(&mut self) {
        let Some((code, cause)) = self.out.take_end() else { return };
        let cause = cause.map(|cause| cause + &self.watch().which_are_silent());
        self.injecting().miss_all();
        let summary = self.out.summary();
        self.out.record(Record::JobEnded { code, cause, summary });
        self.out.push(Command::End { code });
    }

    /// Starts the ranks once every agent is there.
    fn begin_when_all_are_up(&mut self) {
        if self.out.has_started() || self.out.has_ended() {
            return;
        }
        if self.nodes.missing() > 0 {
            if self.out.now() >= self.config.agents_timeout {
                let text = format!(
                    "the agents of {} did not come up within {}",
                    self.nodes.missing_in_words().join(", "),
                    eyrie_units::time(self.config.agents_timeout)
                );
                self.out.end(1, Some(text));
            }
            return;
        }
        if self.hosting().are_ready() {
            self.start();
        }
    }

    /// Starts the ranks, or brings those of a saved job back that have not finished.
    fn start(&mut self) {
        let now = self.out.now();
        self.out.start();
        let Config { ranks, nodes, routers, ref job, .. } = self.config;
        let (spares, hosts) = (self.nodes.spares(), self.nodes.hosts().to_vec());
        let job = job.clone();
        self.out.record(Record::JobStarted { job, ranks, nodes, spares, hosts, routers });
        self.schedule.begin(now);
        self.faults.begin(now);
        self.out.extend(self.pmi.so_far(None));
        for rank in self.ranks.numbers() {
            let r = &mut self.ranks[rank];
            if r.is(RankStateName::Waiting) {
                r.advance(Step::JobStarted { until: now + START_TIMEOUT });
                let (instance, node) = (r.instance(), r.node);
                self.out.push(Command::Start { node, instance, from: None });
                self.out.record(Record::RankStarted { instance, node, image: None });
            } else if let Some(recovery) = r.state.recovery_mut() {
                recovery.mark = now;
                let (instance, mark) = (r.instance(), Mark::default());
                self.out.follows(Consequence::RankReturns { instance, mark });
                self.follow();
            }
        }
    }
}
