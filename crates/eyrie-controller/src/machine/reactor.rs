//! One event after another: time passes, its handler takes it, what follows is taken, and the ranks
//! start or the job ends when that has come of it.

use super::components::Machine;
use super::io::{Command, Event, FromPeer};
use crate::record::Record;
use eyrie_router::RouterEvent;
use eyrie_wire::control::FromAgent;
use std::time::Duration;

impl Machine {
    /// Handles one event at `now` (since the job's start, never going back) and returns what to do,
    /// in order.
    pub fn handle(&mut self, now: Duration, event: Event) -> Vec<Command> {
        if self.out.has_ended() {
            self.handle_after_end(now, event);
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
        self.succeeding().look();
        self.parting().look();
        self.follow();
        self.look_at_domains();
        if self.out.has_started() && !self.out.has_ended() && !self.contact.is_cut_off() {
            self.injecting().inject_due();
            self.saver().go_on_saving();
            self.follow();
            self.handing_over().go_on();
            self.follow();
            self.newcomers().go_on();
            self.follow();
            self.captures().capture_due();
        }
        self.end();
        let mut commands = self.out.take_commands();
        self.complete(&mut commands);
        commands
    }

    /// The job has ended: only output counts, and what other domains say, until they know it.
    fn handle_after_end(&mut self, now: Duration, event: Event) {
        if let Event::From(FromPeer::Agent(
            node,
            FromAgent::Output { instance, stream, offset, bytes },
        )) = event
        {
            self.output_arrived(node, instance, stream, offset, bytes);
            if self.domains.are_being_left() {
                self.look_at_domains();
            }
            return;
        }
        if !self.domains.are_being_left() {
            return;
        }
        self.out.set_now(now.max(self.out.now()));
        match event {
            Event::From(FromPeer::Router(role, message @ RouterEvent::Line { .. }))
            | Event::From(FromPeer::Router(role, message @ RouterEvent::FromDomain { .. })) => {
                self.router_says(role, message)
            }
            Event::RoleLost { role, .. } if self.is_gateway(role) => self.domains.hurry(),
            // The user waits no longer.
            Event::Stop { .. } => self.domains.hurry(),
            Event::DomainLost { domain, .. } if self.is_member(domain) => self.domains.hurry(),
            _ => {}
        }
        self.follow();
        self.look_at_domains();
        self.leave();
    }

    /// Tells other domains what is to be told by now.
    fn look_at_domains(&mut self) {
        self.printing().tell_output();
        self.follow();
        self.exchange().look();
    }

    /// When [`super::Event::Tick`] is due at the latest.
    pub fn next_tick(&self) -> Option<Duration> {
        let alone = self.domains.alone_at(&self.config);
        let of_domains = self.domains.next().into_iter().chain(alone).min();
        if self.out.has_ended() {
            return of_domains.filter(|_| self.domains.are_being_left());
        }
        let look = [Some(self.out.look_at()), of_domains];
        if !self.out.has_started() {
            return look.into_iter().flatten().min();
        }
        let handover = self.handover.next();
        let soon = [self.schedule.next_after(self.out.now()), self.faults.next(), handover];
        soon.into_iter().chain(look).flatten().min()
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
            self.handover.extend(late);
            self.domains.extend(late);
        }
    }

    /// The job is over, if that has come of this event.
    fn end(&mut self) {
        let Some((code, cause)) = self.out.take_end() else { return };
        let here = !self.domains.have_ended_it();
        let silent = if here { self.watch().which_are_silent() } else { String::new() };
        let cause = cause.map(|cause| cause + &silent);
        self.injecting().miss_all();
        self.printing().tell_all_output();
        self.follow();
        self.exchange().leave(code, cause);
        self.leave();
    }

    /// Once other domains know that the job is over: its record is the last one.
    fn leave(&mut self) {
        let Some((code, cause)) = self.domains.take_left(self.out.now()) else { return };
        self.printing().show_rest();
        let summary = self.out.summary();
        self.out.record(Record::JobEnded { code, cause, summary });
        self.out.push(Command::End { code });
    }
}
