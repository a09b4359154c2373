//! The domain of `eyrie run` leaves the job: another one, its successor, shows from then on what
//! the ranks of all domains print. First the successor says whether it can. Then it is told that it
//! shows, and when it has said that it has told all that it had to show before, so are the others,
//! who say the same. So each line is shown by one domain, and what a rank prints stays in order:
//! all that one domain has shown of it comes before what the next one shows. Nothing is taken back
//! once the successor was told. The domain that leaves must never end before it has all that was
//! printed before.

use super::entry::OtherDomain;
use super::handover::Handover;
use super::printing::Printing;
use super::succession::{Leave, Predecessor, Stage, Succession};
use super::{Going, OtherDomains};
use crate::machine::config::Config;
use crate::machine::io::Command;
use crate::machine::nodes::Nodes;
use crate::machine::outbox::consequence::Consequence;
use crate::machine::outbox::Outbox;
use crate::machine::ranks::Ranks;
use crate::machine::users::answer::{Answer, RequestId};
use eyrie_wire::domains::DomainSays;
use eyrie_wire::DomainId;
use std::collections::BTreeSet;
use std::time::Duration;

/// How long the successor may take to say whether it can show what is printed.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// What changes when another domain shows what is printed, and what is asked.
pub struct Succeeding<'a> {
    pub config: &'a mut Config,
    pub out: &'a mut Outbox,
    pub nodes: &'a Nodes,
    pub ranks: &'a Ranks,
    pub domains: &'a mut OtherDomains,
    pub handover: &'a Handover,
}

impl Succeeding<'_> {
    /// This domain, which shows what is printed and has no ranks, is to end when that one shows it.
    pub fn leave(&mut self, to: DomainId, request: Option<RequestId>) {
        if let Some(why) = self.obstacle(to) {
            return self.refuse(request, why);
        }
        let until = self.out.now() + ANSWER_TIMEOUT;
        let stage = Stage::Asked { until };
        let file = String::new();
        self.domains.succession.leave = Some(Leave { to, request, file, stage });
        self.domains.succession.asked += 1;
        self.ask(to, true);
    }

    fn ask(&mut self, to: DomainId, wanted: bool) {
        let number = self.domains.succession.asked;
        self.tell(to, DomainSays::AskSuccessor { number, wanted });
    }

    fn obstacle(&self, to: DomainId) -> Option<String> {
        let succession = &self.domains.succession;
        if succession.leave.is_some() {
            return Some("this domain is about to end already".into());
        }
        if self.out.has_ended() || self.domains.has_finished_here() {
            return Some("the job is about to end".into());
        }
        if self.domains.get(to).is_none_or(OtherDomain::is_gone) {
            return Some(format!("domain {} has ended", self.name(to)));
        }
        if self.handover.may_bring_ranks() {
            return Some("ranks of another domain are on their way to this one".into());
        }
        if let Some(why) = self.domains.joins_forbid_moves() {
            return Some(why);
        }
        succession.forbids_moves(|id| self.name(id))
    }

    fn refuse(&mut self, request: Option<RequestId>, why: String) {
        match request {
            Some(request) => self.out.answer(request, Answer::Refused(why)),
            None => self.out.note(why),
        }
    }

    /// A user wants this domain to stay after all.
    pub fn cancel(&mut self, request: RequestId) {
        self.stay("it was cancelled");
        self.out.answer(request, Answer::Accepted);
    }

    /// This domain stays, and goes on to show what is printed.
    fn stay(&mut self, why: &str) {
        if !self.domains.succession.can_stay() {
            return;
        }
        let Some(Leave { to, request, .. }) = self.domains.succession.leave.take() else { return };
        self.ask(to, false);
        let own = self.config.domains.as_ref().map_or("", |domains| &domains.own().name);
        let why = format!("domain {own} stays, without ranks: {why}");
        self.refuse(request, why);
    }

    /// The successor can show it, in this file; or why not.
    pub fn can_succeed(&mut self, from: DomainId, number: u64, result: Result<String, String>) {
        let name = self.name(from);
        let Succession { leave, asked, .. } = &mut self.domains.succession;
        let is_it = |leave: &&mut Leave| leave.to == from && *asked == number;
        let Some(leave) = leave.as_mut().filter(is_it) else { return };
        match (&leave.stage, result) {
            (Stage::Asked { .. }, Ok(file)) => {
                leave.file = file;
                leave.stage = Stage::Told;
                self.tell(from, DomainSays::Successor { is: from });
            }
            (Stage::Asked { .. }, Err(why)) => self.stay(&format!("domain {name}: {why}")),
            // It has said so before, as an earlier controller.
            _ => {}
        }
    }

    /// Another domain has told all that it had to show here.
    pub fn output_ends(&mut self, from: DomainId) {
        let Some(leave) = &mut self.domains.succession.leave else { return };
        let to = leave.to;
        match &mut leave.stage {
            Stage::Told if from == to => {
                let others = self.domains.all.iter();
                let others = others
                    .filter(|(id, other)| **id != to && !other.is_gone() && other.is_member());
                let others: BTreeSet<DomainId> = others.map(|(id, _)| *id).collect();
                leave.stage = Stage::OthersTold(others.clone());
                for id in others {
                    self.tell(id, DomainSays::Successor { is: to });
                }
            }
            Stage::OthersTold(waits) => {
                waits.remove(&from);
            }
            Stage::Asked { .. } | Stage::Told | Stage::Over => {}
        }
    }

    /// Goes on when nothing is waited for any more.
    pub fn look(&mut self) {
        let now = self.out.now();
        let Some(leave) = &mut self.domains.succession.leave else { return };
        let to = leave.to;
        match &leave.stage {
            Stage::Asked { until } if now >= *until => {
                let name = self.name(to);
                self.stay(&format!("domain {name} has not answered in time"));
            }
            Stage::OthersTold(waits) if waits.is_empty() => {
                leave.stage = Stage::Over;
                let request = leave.request.take();
                self.domains.going = Some(Going::Decided);
                if let Some(request) = request {
                    self.out.answer(request, Answer::Accepted);
                }
            }
            _ => {}
        }
    }

    /// A domain has ended: nothing more comes from it, and all that it had to write is written.
    pub fn gone(&mut self, id: DomainId) {
        if let Some(leave) = &mut self.domains.succession.leave {
            if let Stage::OthersTold(waits) = &mut leave.stage {
                waits.remove(&id);
            }
            if leave.to == id {
                let name = self.name(id);
                self.stay(&format!("domain {name} has ended"));
            }
        }
        let is_it = |before: &mut Predecessor| before.id == id;
        if let Some(before) = self.domains.succession.predecessor.take_if(is_it) {
            self.open_all(before);
        }
    }

    /// The domain that shows what is printed asks whether this one can, or has asked in vain.
    pub fn asked(&mut self, from: DomainId, number: u64, wanted: bool) {
        if self.shown_by() != Some(from) {
            return self.not_believed(from, "it does not show what is printed here");
        }
        self.domains.succession.is_asked = None;
        if !wanted {
            return;
        }
        if let Some(why) = self.why_not() {
            return self.tell(from, DomainSays::CanSucceed { number, result: Err(why) });
        }
        self.domains.succession.is_asked = Some(number);
        self.out.push(Command::OpenOutput);
    }

    fn why_not(&self) -> Option<String> {
        if self.domains.are_to_be_left() {
            return Some("its ranks have left it, and it is about to end".into());
        }
        if let Some(why) = self.handover.forbids_moves() {
            return Some(why);
        }
        self.domains.succession.forbids_moves(|id| self.name(id))
    }

    /// The files in which output is to be shown are open: the path of the first one, or why they
    /// are not.
    pub fn opened(&mut self, result: Result<String, String>) {
        let is_asked = &mut self.domains.succession.is_asked;
        let Some(number) = is_asked.take_if(|_| result.is_err()).or(*is_asked) else { return };
        let Some(by) = self.shown_by() else { return };
        self.tell(by, DomainSays::CanSucceed { number, result });
    }

    /// Another controller goes on: what an earlier one was about to open it may not have said.
    pub fn resumed(&mut self) {
        if self.domains.succession.is_asked.is_some() {
            self.out.push(Command::OpenOutput);
        }
    }

    /// The domain that has shown what is printed says which one shows it from now on.
    pub fn succeeded(&mut self, from: DomainId, by: DomainId) {
        let Some(own) = self.config.domains.as_ref().map(|domains| domains.own) else { return };
        if self.shown_by() != Some(from) {
            return self.not_believed(from, "it does not show what is printed here");
        }
        let is_known = self.domains.get(by).is_some_and(|other| !other.is_gone());
        if !(is_known || by == own && self.domains.succession.is_asked.is_some()) {
            return self.not_believed(from, "it names a domain that cannot show what is printed");
        }
        self.domains.succession.is_asked = None;
        self.domains.succession.has_happened = true;
        if let Some(domains) = &mut self.config.domains {
            domains.shows = by;
        }
        let rest = self.domains.outgoing.split_off();
        let outgoing = std::mem::replace(&mut self.domains.outgoing, rest);
        let before = Predecessor { id: from, outgoing };
        if let Some(older) = self.domains.succession.predecessor.replace(before) {
            self.open_all(older);
        }
        self.out.follows(Consequence::ShownElsewhere);
        self.tell(from, DomainSays::OutputEnds);
        let name = self.name(from);
        if by == own {
            self.show_here();
            self.out.note(format!(
                "domain {name} is about to end: what all ranks print is shown here from now on"
            ));
        } else {
            let by = self.name(by);
            self.out.note(format!(
                "domain {name} is about to end: {by} shows from now on what all ranks print"
            ));
        }
    }

    /// This domain shows what is printed from now on, also what waited to be told.
    fn show_here(&mut self) {
        self.domains.succession.in_files = true;
        self.domains.all.values_mut().for_each(|other| other.begin_to_print());
        self.out.push(Command::TakeOutput);
        for (stream, bytes) in self.domains.outgoing.take_all() {
            self.out.push(Command::Print { from: None, stream, bytes });
        }
        // Once more than they hold is written without being waited for.
        let windows = self.domains.outgoing.open_all();
        windows.into_iter().for_each(|window| self.printing().open(window));
    }

    fn open_all(&mut self, mut before: Predecessor) {
        let windows = before.outgoing.open_all();
        windows.into_iter().for_each(|window| self.printing().open(window));
    }

    fn printing(&mut self) -> Printing<'_> {
        let Succeeding { config, out, nodes, ranks, domains, .. } = self;
        Printing { config, out, nodes, ranks, domains }
    }

    fn tell(&mut self, to: DomainId, says: DomainSays) {
        self.out.follows(Consequence::Tell { to: Some(to), says: Box::new(says) });
    }

    fn not_believed(&mut self, from: DomainId, why: &str) {
        let text = self.domains.not_believed(from, why);
        self.out.note(text);
    }

    fn name(&self, id: DomainId) -> String {
        self.domains.get(id).map_or(String::new(), |other| other.name().into())
    }

    /// The domain that shows what is printed here.
    fn shown_by(&self) -> Option<DomainId> {
        self.config.domains.as_ref()?.shown_by()
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::{told, Job, FIRST};
    use super::*;
    use crate::machine::{said, Event};
    use crate::record::Record;
    use eyrie_wire::control::{FromAgent, StandardStream, ToAgent};
    use eyrie_wire::NodeId;

    const A: DomainId = DomainId(0);
    const NODE: NodeId = NodeId(2);
    const OUT: StandardStream = StandardStream::Stdout;

    fn prints(job: &mut Job, offset: u64, text: &str) -> Vec<Command> {
        let bytes = text.as_bytes().to_vec();
        let output = FromAgent::Output { instance: FIRST, stream: OUT, offset, bytes };
        job.trial.handle(said::agent(NODE, output))
    }

    fn notes(commands: &[Command]) -> Vec<&str> {
        let notes = commands.iter().filter_map(|command| match command {
            Command::Record(Record::Note { text }) => Some(text.as_str()),
            _ => None,
        });
        notes.collect()
    }

    fn opened(commands: &[Command]) -> Vec<u64> {
        let of = |command: &Command| match said::to_agent(command) {
            Some((_, ToAgent::OutputShown { offset, .. })) => Some(*offset),
            _ => None,
        };
        commands.iter().filter_map(of).collect()
    }

    /// A domain that was asked, and can.
    fn asked() -> Job {
        let mut job = Job::shown_by_b();
        job.runs();
        let commands = job.says(0, DomainSays::AskSuccessor { number: 1, wanted: true });
        assert!(commands.contains(&Command::OpenOutput), "{commands:?}");
        let file = || Ok("/eyrie-j.out".to_string());
        let commands = job.trial.handle(Event::OutputOpened(file()));
        assert_eq!(told(&commands), [DomainSays::CanSucceed { number: 1, result: file() }]);
        job
    }

    #[test]
    fn a_successor_shows_what_was_not_told_and_counts_what_was() {
        let mut job = asked();
        assert_eq!(told(&prints(&mut job, 0, "abc")).len(), 1);
        // As much as may be on its way: the rest waits.
        let piece = "x".repeat(256 << 10);
        assert_eq!(told(&prints(&mut job, 3, &piece)).len(), 1);
        assert!(told(&prints(&mut job, 3 + (256 << 10), "rest")).is_empty());
        let commands = job.says(0, DomainSays::Successor { is: A });
        let at = |wanted: &Command| commands.iter().position(|command| command == wanted);
        let bytes = b"rest".to_vec();
        let rest = at(&Command::Print { from: None, stream: OUT, bytes });
        let taken = at(&Command::TakeOutput);
        assert!(taken.is_some() && taken < rest, "{commands:?}");
        assert_eq!(told(&commands), [DomainSays::OutputEnds]);
        assert_eq!(opened(&commands), [7 + (256 << 10)]);
        let commands = prints(&mut job, 7 + (256 << 10), "here");
        let is_it = |c: &Command| matches!(c, Command::Show { bytes, .. } if bytes == b"here");
        assert!(commands.iter().any(is_it), "{commands:?}");
        assert_eq!(opened(&job.says(0, DomainSays::Shown { bytes: 3 })), [3]);
        assert!(opened(&job.says(0, DomainSays::Gone)).is_empty(), "it has ranks");
    }

    #[test]
    fn only_a_domain_that_shows_the_job_names_its_successor_and_one_that_can() {
        let refused = |mut job: Job, says| {
            let commands = job.says(0, says);
            let notes = notes(&commands);
            let is_it = |text: &&str| text.starts_with("domain b is not believed: ");
            assert!(notes.iter().any(is_it), "{commands:?}");
            assert!(!commands.contains(&Command::TakeOutput) && told(&commands).is_empty());
        };
        let asks = DomainSays::AskSuccessor { number: 1, wanted: true };
        refused(Job::new(), asks);
        refused(Job::new(), DomainSays::Successor { is: A });
        refused(Job::shown_by_b(), DomainSays::Successor { is: A });
        let mut job = asked();
        job.says(0, DomainSays::AskSuccessor { number: 1, wanted: false });
        refused(job, DomainSays::Successor { is: A });
    }

    #[test]
    fn one_that_cannot_write_or_whose_controller_died_says_so() {
        let mut job = asked();
        // What an earlier controller was about to open.
        assert!(job.trial.handle(Event::Resumed).contains(&Command::OpenOutput));
        let why = || Err("the disk is full".to_string());
        let commands = job.trial.handle(Event::OutputOpened(why()));
        assert_eq!(told(&commands), [DomainSays::CanSucceed { number: 1, result: why() }]);
        assert!(!job.trial.handle(Event::Resumed).contains(&Command::OpenOutput));
    }
}
