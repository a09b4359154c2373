//! What is printed in one domain and shown by another one
//! ([`eyrie_wire::domains::Domains::shows`]): output of ranks, and Eyrie's own lines. Both sides of
//! it are here. The domain that shows it says how much was written, so that a reader who is slow
//! holds the ranks of all domains back.

use super::outgoing::Window;
use super::OtherDomains;
use crate::machine::config::Config;
use crate::machine::io::{Command, ToPeer};
use crate::machine::nodes::Nodes;
use crate::machine::outbox::consequence::Consequence;
use crate::machine::outbox::Outbox;
use crate::machine::ranks::Ranks;
use eyrie_wire::control::{StandardStream, ToAgent};
use eyrie_wire::domains::DomainSays;
use eyrie_wire::DomainId;

pub struct Printing<'a> {
    pub config: &'a Config,
    pub out: &'a mut Outbox,
    pub nodes: &'a Nodes,
    pub ranks: &'a Ranks,
    pub domains: &'a mut OtherDomains,
}

impl Printing<'_> {
    /// Output of a rank here, of which these bytes are new and may be none, after so many that an
    /// earlier incarnation had printed. Another domain shows it, if that can be told.
    pub fn print(&mut self, window: Window, known: u64, bytes: Vec<u8>) {
        let Window { node, instance, stream, end } = window;
        let is_over = self.out.has_ended() && !self.domains.are_being_left();
        if is_over || self.is_told().is_none() {
            return self.out.push(Command::Show { node, instance, stream, bytes, end });
        }
        // They take no room: else a rank that repeats itself might wait for what others print.
        if known > 0 {
            self.open(Window { end: end.saturating_sub(bytes.len() as u64), ..window });
        }
        if !bytes.is_empty() {
            self.domains.outgoing.add(window, bytes);
        }
    }

    /// A line of Eyrie's own, which another domain shows, unless this one has begun to meanwhile.
    pub fn say(&mut self, is_error: bool, text: String) {
        if self.shown_by().is_none() {
            return self.out.push(Command::Line { is_error, text });
        }
        let Some(to) = self.is_told() else { return };
        let letters = self.domains.get(to).map_or(0, |other| other.waiting());
        for text in self.domains.outgoing.lines(text, letters) {
            self.tell(to, DomainSays::Line { is_error, text });
        }
    }

    /// Tells as much of the output as may be on its way.
    pub fn tell_output(&mut self) {
        let Some(to) = self.is_told() else { return };
        let Some(other) = self.domains.get(to) else { return };
        let mut letters = other.waiting();
        let mut unconfirmed = other.unconfirmed_output();
        while let Some((stream, bytes)) = self.domains.outgoing.next(letters, unconfirmed) {
            letters += 1;
            unconfirmed += bytes.len();
            self.tell(to, DomainSays::Output { stream, bytes });
        }
    }

    /// Tells all of it: the end of the job follows.
    pub fn tell_all_output(&mut self) {
        let Some(to) = self.is_told() else { return };
        for (stream, bytes) in self.domains.outgoing.take_all() {
            self.tell(to, DomainSays::Output { stream, bytes });
        }
    }

    /// Shows here what the other domain may not have: it is told nothing any more.
    pub fn show_rest(&mut self) {
        let told_to = self.domains.succession.predecessor().into_iter().chain(self.shown_by());
        let told = told_to.filter_map(|to| self.domains.get(to));
        let told: Vec<_> = told.flat_map(|other| other.output_told()).collect();
        for (stream, bytes) in told.into_iter().chain(self.domains.outgoing.take_all()) {
            self.out.push(Command::Print { from: None, stream, bytes });
        }
    }

    /// Another domain has printed this.
    pub fn output(&mut self, from: DomainId, stream: StandardStream, bytes: Vec<u8>) {
        if self.is_shown_here(from) {
            let Some(other) = self.domains.all.get_mut(&from) else { return };
            let from = Some((from, other.print(bytes.len())));
            self.out.push(Command::Print { from, stream, bytes });
        }
    }

    /// Another domain's Eyrie has said this.
    pub fn line(&mut self, from: DomainId, is_error: bool, text: &str) {
        if self.is_shown_here(from) {
            let name = self.domains.get(from).map_or("", |other| other.name());
            self.out.push(Command::Line { is_error, text: format!("{name}: {text}") });
        }
    }

    /// The domain that shows it has written so much of what was printed here.
    pub fn was_shown(&mut self, by: DomainId, bytes: u64) {
        let shown = match self.shown_by() {
            Some(shows) if shows == by => self.domains.outgoing.shown(bytes),
            _ if self.domains.succession.predecessor() == Some(by) => {
                self.domains.succession.shown(bytes)
            }
            _ => Err("it does not show what is printed here".into()),
        };
        match shown {
            Ok(windows) => windows.into_iter().for_each(|window| self.open(window)),
            Err(why) => self.out.note(self.domains.not_believed(by, &why)),
        }
    }

    /// So many bytes of what has come from a domain were written.
    pub fn shown(&mut self, domain: DomainId, bytes: u64) {
        let Some(other) = self.domains.all.get_mut(&domain) else { return };
        if other.has_shown(bytes) {
            self.tell(domain, DomainSays::Shown { bytes });
        }
    }

    /// Another controller goes on: what an earlier one had written it may not have said.
    pub fn resumed(&mut self) {
        let printed = self.domains.iter().map(|(id, other)| (id, other.printed()));
        let printed: Vec<_> = printed.collect();
        printed.into_iter().for_each(|(id, bytes)| self.shown(id, bytes));
    }

    /// Whether this domain shows what another one prints.
    fn is_shown_here(&mut self, from: DomainId) -> bool {
        let is_here = self.shown_by().is_none();
        if !is_here {
            let text = self.domains.not_believed(from, "another domain shows what it prints");
            self.out.note(text);
        }
        is_here
    }

    /// The agent of a rank is told that there is room for more.
    pub fn open(&mut self, window: Window) {
        let Window { node, instance, stream, end: offset } = window;
        if self.nodes.is_up(node) && self.ranks.runs_on(instance, node) {
            let shown = ToAgent::OutputShown { instance, stream, offset };
            self.out.push(Command::Send(ToPeer::Agent(node, shown)));
        }
    }

    fn tell(&mut self, to: DomainId, says: DomainSays) {
        self.out.follows(Consequence::Tell { to: Some(to), says: Box::new(says) });
    }

    /// The domain that shows what is printed here.
    fn shown_by(&self) -> Option<DomainId> {
        self.config.domains.as_ref()?.shown_by()
    }

    /// That domain, while it can be told.
    fn is_told(&self) -> Option<DomainId> {
        let other = |by: &DomainId| self.domains.get(*by);
        self.shown_by().filter(|by| other(by).is_some_and(|other| !other.has_ended()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::{told, Job, B, FIRST};
    use super::*;
    use crate::machine::said;
    use crate::machine::Event;
    use eyrie_wire::control::{FromAgent, RankReport};
    use eyrie_wire::NodeId;
    use std::time::Duration;

    const NODE: NodeId = NodeId(2);
    const OUT: StandardStream = StandardStream::Stdout;

    fn prints(job: &mut Job, offset: u64, text: &str) -> Vec<Command> {
        let bytes = text.as_bytes().to_vec();
        let output = FromAgent::Output { instance: FIRST, stream: OUT, offset, bytes };
        job.trial.handle(said::agent(NODE, output))
    }

    fn output(text: &str) -> DomainSays {
        DomainSays::Output { stream: OUT, bytes: text.into() }
    }

    /// Up to where agents are told that output was shown.
    fn opened(commands: &[Command]) -> Vec<u64> {
        let of = |command: &Command| match said::to_agent(command) {
            Some((_, ToAgent::OutputShown { offset, .. })) => Some(*offset),
            _ => None,
        };
        commands.iter().filter_map(of).collect()
    }

    #[test]
    fn what_ranks_print_is_told_and_windows_open_when_it_is_written() {
        let mut job = Job::shown_by_b();
        job.runs();
        let commands = prints(&mut job, 0, "abc");
        assert_eq!((told(&commands), opened(&commands)), (vec![output("abc")], vec![]));
        // An agent that says it again gets room for it at once.
        let commands = prints(&mut job, 1, "bcde");
        assert_eq!((told(&commands), opened(&commands)), (vec![output("de")], vec![3]));
        let commands = job.says(0, DomainSays::Shown { bytes: 4 });
        assert_eq!(opened(&commands), [3]);
        let commands = job.says(0, DomainSays::Shown { bytes: 5 });
        assert_eq!(opened(&commands), [5]);
    }

    #[test]
    fn ranks_have_finished_when_all_that_they_have_printed_is_told() {
        let mut job = Job::shown_by_b();
        job.runs();
        let piece = "x".repeat(64 << 10);
        let mut heard = 0;
        for n in 0..5 {
            heard += told(&prints(&mut job, n * (64 << 10), &piece)).len() as u64;
        }
        assert_eq!(heard, 4, "as much as may be on its way");
        assert!(told(&job.finish(0)).is_empty(), "some waits");
        let rest = told(&job.confirms(heard));
        assert_eq!(rest, [output(&piece), DomainSays::Finished { code: 0 }]);
    }

    #[test]
    fn what_another_domain_prints_is_shown_and_that_is_told() {
        let mut job = Job::new();
        let shown = |commands: Vec<Command>| {
            let of = |command| match command {
                Command::Print { from: Some((_, end)), bytes, .. } => Some((end, bytes)),
                _ => None,
            };
            commands.into_iter().filter_map(of).collect::<Vec<_>>()
        };
        assert_eq!(shown(job.says(0, output("ab"))), [(2, b"ab".to_vec())]);
        assert_eq!(shown(job.says(0, output("c"))), [(3, b"c".to_vec())]);
        let line = DomainSays::Line { is_error: false, text: "rank 1 was lost".into() };
        let text = "b: rank 1 was lost".to_string();
        let commands = job.says(0, line);
        assert!(commands.contains(&Command::Line { is_error: false, text }), "{commands:?}");
        let mut hears = |event| told(&job.trial.handle(event));
        let written = |bytes| Event::Shown { domain: B, bytes };
        assert_eq!(hears(written(2)), [DomainSays::Shown { bytes: 2 }]);
        assert!(hears(written(2)).is_empty(), "it knows");
        // What an earlier controller had written it may not have said.
        assert!(hears(Event::Resumed).contains(&DomainSays::Shown { bytes: 3 }));
    }

    #[test]
    fn the_last_output_comes_before_the_end_and_what_is_not_confirmed_is_shown_here() {
        let mut job = Job::shown_by_b();
        job.line(false);
        job.runs();
        assert!(told(&prints(&mut job, 0, "abort")).is_empty(), "there is no line");
        job.report(RankReport::PmiAbort { code: 3 });
        let says = told(&job.line(true));
        assert_eq!(says[0], output("abort"));
        assert!(matches!(&says[1], DomainSays::Ended { code: 3, .. }), "{says:?}");
        let mut shown = Vec::new();
        for _ in 0..100 {
            job.trial.now += Duration::from_secs(1);
            shown.extend(job.trial.handle(Event::Tick));
        }
        let here = Command::Print { from: None, stream: OUT, bytes: b"abort".to_vec() };
        assert!(shown.contains(&here), "{shown:?}");
    }
}
