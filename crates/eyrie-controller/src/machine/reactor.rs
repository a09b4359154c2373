//! One event after another: time passes, its handler takes it, what follows is taken, and the ranks
//! start or the job ends when that has come of it.

use super::components::Machine;
use super::io::{Command, Event, FromPeer};
use crate::record::Record;
use eyrie_wire::control::FromAgent;
use std::time::Duration;

impl Machine {
    /// Handles one event at `now` (since the job's start, never going back) and returns what to do,
    /// in order.
    pub fn handle(&mut self, now: Duration, event: Event) -> Vec<Command> {
        if self.out.has_ended() {
            if let Event::From(FromPeer::Agent(
                node,
                FromAgent::Output { instance, stream, offset, bytes },
            )) = event
            {
                self.output_arrived(node, instance, stream, offset, bytes);
            }
            return self.out.take_commands();
        }
        self.pass_time(now.max(self.out.now()));
        let tick = event == Event::Tick;
        self.dispatch(event);
        self.follow();
        if self.starting().agents_are_up() && self.hosting().are_ready() {
            self.starting().start();
            self.follow();
        }
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
        let mut commands = self.out.take_commands();
        self.complete(&mut commands);
        commands
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
}
