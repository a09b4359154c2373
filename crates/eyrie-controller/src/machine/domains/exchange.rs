//! The exchange with other domains: what is told to them, and what follows from what they say.

use super::entry::{OtherDomain, FIRST_LINE_TIMEOUT};
use super::{Going, OtherDomains, FINISH_TIMEOUT, LINE_TIMEOUT};
use crate::machine::config::Config;
use crate::machine::io::{Command, ToPeer};
use crate::machine::outbox::consequence::Consequence;
use crate::machine::outbox::Outbox;
use crate::machine::pmi::Pmi;
use crate::machine::ranks::Ranks;
use crate::machine::roles::Roles;
use crate::record::Record;
use eyrie_router::RouterCommand;
use eyrie_wire::domains::{DomainSays, Domains, Letter};
use eyrie_wire::entries::Entry;
use eyrie_wire::{DomainId, Rank};

pub struct Exchange<'a> {
    pub config: &'a mut Config,
    pub out: &'a mut Outbox,
    pub ranks: &'a Ranks,
    pub roles: &'a Roles,
    pub pmi: &'a mut Pmi,
    pub domains: &'a mut OtherDomains,
}

impl Exchange<'_> {
    /// The gateway has a line to another domain, or has none any more.
    pub fn line(&mut self, id: DomainId, up: bool) {
        let now = self.out.now();
        let Some(other) = self.domains.all.get_mut(&id) else { return };
        let changes = other.set_line(up, now);
        let domain = other.name().to_string();
        // Also a line that takes the place of another one has lost what was on its way.
        let letters = if up { other.send_again(now) } else { vec![] };
        // A domain that the job needs no more ends, and its gateway with it.
        let is_over = other.finished().is_some() && self.domains.finished_here.is_some();
        let is_needed = !is_over && !other.is_gone() && other.told_until().is_none();
        if changes && up && !other.is_gone() {
            self.out.record(Record::LineUp { domain });
        } else if changes && is_needed {
            self.out.record(Record::LineDown { domain });
        }
        self.send(id, letters);
    }

    /// No line is made any more to domains that have gone and need none.
    fn drop_lines(&mut self) {
        let now = self.out.now();
        let gateway = self.config.gateway_router();
        let (Some(domains), Some(gateway)) = (&mut self.config.domains, gateway) else { return };
        for (id, other) in &mut self.domains.all {
            if other.line_over_at().is_some_and(|at| at <= now) {
                other.end_line();
                domains.end(*id);
                let command = RouterCommand::Domains(domains.clone());
                self.out.push(Command::Send(ToPeer::Router(gateway, command)));
            }
        }
    }

    /// The gateway is gone, and with it all lines.
    pub fn lose_lines(&mut self) {
        for id in self.ids() {
            self.line(id, false);
        }
    }

    /// Sends again what was not confirmed in time. Ends the job when another domain never came, or
    /// is out of reach for too long.
    pub fn look(&mut self) {
        let now = self.out.now();
        self.finish_without_ranks();
        self.finish_when_told();
        for id in self.ids() {
            let Some(other) = self.domains.all.get_mut(&id) else { continue };
            if other.again().is_some_and(|at| at <= now) {
                let letters = other.send_again(now);
                self.send(id, letters);
            }
        }
        if self.out.has_ended() {
            return;
        }
        self.drop_lines();
        self.finish_of_those_without_ranks();
        let late = self.never_came().or_else(|| self.out_of_reach()).or_else(|| self.is_alone());
        if let Some(text) = late {
            return self.out.end(1, Some(text));
        }
        self.end_if_all_have();
    }

    /// A domain without ranks that has been out of reach for too long is not waited for. It may
    /// have ended, and not been able to say so.
    fn finish_of_those_without_ranks(&mut self) {
        let now = self.out.now();
        let Some(domains) = &self.config.domains else { return };
        let is_empty = |id: &DomainId| domains.all[id.index()].ranks.is_empty();
        let late =
            self.domains.out_of_reach().filter(|(id, _, until)| is_empty(id) && *until <= now);
        let late: Vec<DomainId> = late.map(|(id, ..)| id).collect();
        for id in late {
            self.domains.all.get_mut(&id).map(|other| other.finish(0));
        }
    }

    fn never_came(&self) -> Option<String> {
        let now = self.out.now();
        let is_late = |other: &&OtherDomain| other.first_line_until().is_some_and(|at| at <= now);
        let late = self.domains.all.values().find(is_late)?;
        let waited = eyrie_units::time(FIRST_LINE_TIMEOUT);
        Some(format!(
            "domain {} has not come within {waited}: does it run there, and do its gateway and this \
             domain's reach each other?",
            late.name()
        ))
    }

    fn out_of_reach(&self) -> Option<String> {
        let now = self.out.now();
        let (_, other, _) = self.domains.out_of_reach().find(|(.., until)| *until <= now)?;
        let waited = eyrie_units::time(LINE_TIMEOUT);
        Some(format!(
            "all ranks here have finished, and there was no line to domain {} for {waited}: whether \
             its ranks have finished is not known",
            other.name()
        ))
    }

    /// A letter of another domain has come. What it may not say is not taken.
    pub fn letter(&mut self, id: DomainId, letter: Letter) {
        let now = self.out.now();
        let Some(other) = self.domains.all.get_mut(&id) else { return };
        let is_answered = letter.number > 0;
        let is_member = other.is_member();
        let says = match other.hear(letter, now) {
            Ok(says) => says,
            Err(why) => return self.refuse(id, &why),
        };
        if is_answered {
            let confirmation = other.confirmation();
            self.domains.confirmed_at = Some(now);
            self.send(id, vec![confirmation]);
        }
        match says {
            // It may have confirmed the last letter.
            None if !self.out.has_ended() => self.end_if_all_have(),
            None => {}
            // What is no part of the job cannot end it.
            Some(says @ DomainSays::Ended { .. }) if !is_member => {
                self.out.follows(Consequence::DomainSaid { domain: id, says })
            }
            Some(DomainSays::Ended { code, cause, domain }) => self.ended(id, code, cause, domain),
            Some(
                says @ (DomainSays::Output { .. }
                | DomainSays::Shown { .. }
                | DomainSays::Line { .. }),
            ) => self.out.follows(Consequence::DomainSaid { domain: id, says }),
            // The job has ended here: nothing else counts.
            Some(_) if self.out.has_ended() => {}
            Some(DomainSays::Put(entries)) => self.put(id, entries),
            Some(DomainSays::Arrived { barrier }) => {
                let released = self.pmi.arrive_elsewhere(id, barrier);
                self.out.extend(released);
            }
            Some(DomainSays::Finished { code }) => self.finished(id, code),
            Some(says) => self.out.follows(Consequence::DomainSaid { domain: id, says }),
        }
    }

    /// The programs of all ranks of another domain have ended.
    fn finished(&mut self, id: DomainId, code: i32) {
        if self.domains.all.get_mut(&id).is_some_and(|other| other.finish(code)) {
            let domain = self.name(id);
            self.out.record(Record::DomainFinished { domain, code });
            self.end_if_all_have();
            self.end_if_one_never_joined();
        }
    }

    fn put(&mut self, id: DomainId, entries: Vec<Entry>) {
        let Some(domains) = &self.config.domains else { return };
        if domains.all.get(id.index()).is_none_or(|domain| domain.ranks.is_empty()) {
            // Its ranks are in another domain, which has told it.
            return;
        }
        for entry in entries {
            let is_its_own = is_of(domains, id, &entry);
            if !is_its_own || !self.pmi.put_elsewhere(id, entry) {
                return self.refuse(id, "it has put what another domain's rank has");
            }
        }
    }

    /// Another domain has ended the job, or passes on that one has.
    fn ended(&mut self, by: DomainId, code: i32, cause: String, first: DomainId) {
        if let Some(other) = self.domains.all.get_mut(&by) {
            other.end();
        }
        let first = if self.domains.all.contains_key(&first) { first } else { by };
        if !self.out.has_ended() {
            self.domains.ended_by = Some((first, cause.clone()));
        }
        self.out.end(code, Some(format!("domain {}: {cause}", self.name(first))));
    }

    fn refuse(&mut self, id: DomainId, why: &str) {
        let text = self.domains.not_believed(id, why);
        self.out.note(text);
    }

    fn name(&self, id: DomainId) -> String {
        self.domains.all.get(&id).map_or(String::new(), |other| other.name().into())
    }

    /// A rank here has arrived at a barrier: when it was the last one, all domains are told, and
    /// before it what was put.
    pub fn tell_arrival(&mut self) {
        for says in self.pmi.take_untold() {
            self.tell_all(&says);
        }
        self.end_if_one_never_joined();
    }

    /// The programs of all ranks here have ended by themselves.
    pub fn finish(&mut self) {
        self.domains.finishes = true;
        self.finish_when_told();
    }

    /// Who hears that all ranks have finished must know all that they have printed.
    fn finish_when_told(&mut self) {
        if !self.domains.finishes || !self.domains.outgoing.is_empty() || self.out.has_ended() {
            return;
        }
        self.domains.finishes = false;
        let code = self.ranks.code();
        self.domains.finished_here = Some(self.out.now());
        self.tell_all(&DomainSays::Finished { code });
        self.end_if_all_have();
    }

    /// All ranks of this domain have gone to another one: it has finished when all others have.
    fn finish_without_ranks(&mut self) {
        let Some(domains) = &self.config.domains else { return };
        let is_left = self.ranks.here() == 0
            && self.domains.finished_here.is_none()
            && !self.domains.finishes;
        let has_ranks = |id: &DomainId| !domains.all[id.index()].ranks.is_empty();
        let with_ranks = || self.domains.iter().filter(|(id, _)| has_ranks(id));
        let have_finished = || with_ranks().all(|(_, other)| other.finished().is_some());
        let is_told = matches!(self.domains.going, Some(Going::Told { .. }));
        let runs = self.out.has_started() && !self.out.has_ended() && !is_told;
        if runs && is_left && with_ranks().next().is_some() && have_finished() {
            self.finish();
        }
    }

    /// Ends the job when all domains have finished, and each other one knows that this one has.
    fn end_if_all_have(&mut self) {
        let code = self.domains.code().filter(|_| self.domains.finished_here.is_some());
        // A domain that joins is left out first.
        let Some(code) = code.filter(|_| self.domains.joining.is_none()) else { return };
        let now = self.out.now();
        let since = *self.domains.finished.get_or_insert(now);
        if !self.domains.must_confirm() || now >= since + FINISH_TIMEOUT {
            self.out.end(code | self.ranks.code(), None);
        }
    }

    /// A domain has finished whose ranks never came to a barrier at which those here wait.
    fn end_if_one_never_joined(&mut self) {
        let never = |(id, other): &(DomainId, &OtherDomain)| {
            other.finished().is_some() && self.pmi.waits_for(*id)
        };
        let found = self.domains.iter().find(never).map(|(_, other)| other.name().to_string());
        if let Some(name) = found {
            let text = format!(
                "the ranks of domain {name} have ended, and those here wait for them in MPI_Init or \
                 MPI_Finalize: the job ends"
            );
            self.out.end(1, Some(text));
        }
    }

    /// The job has come to its end here: the other domains must know how, before this one leaves.
    pub fn leave(&mut self, code: i32, cause: Option<String>) {
        let now = self.out.now();
        if let (Some(cause), Some(domains)) = (&cause, &self.config.domains) {
            let own = (domains.own, cause.clone());
            let (domain, cause) = self.domains.ended_by.clone().unwrap_or(own);
            self.tell_all(&DomainSays::Ended { code, cause, domain });
        }
        // Once more: nothing answers when this domain has left.
        for id in self.ids() {
            let confirmation = self.domains.all.get(&id).map(OtherDomain::confirmation);
            self.send(id, confirmation.into_iter().collect());
        }
        self.domains.leave(code, cause, now);
        if self.roles.gateway().is_none_or(|(_, gateway)| !gateway.is_up()) {
            self.domains.hurry();
        }
    }

    fn tell_all(&mut self, says: &DomainSays) {
        for id in self.ids() {
            self.tell(id, says.clone());
        }
    }

    /// Another domain, or all of them, are told this.
    pub fn tell_to(&mut self, to: Option<DomainId>, says: DomainSays) {
        match to {
            Some(to) => self.tell(to, says),
            None => self.tell_all(&says),
        }
    }

    fn tell(&mut self, id: DomainId, says: DomainSays) {
        let now = self.out.now();
        let Some(other) = self.domains.all.get_mut(&id) else { return };
        let letters = other.tell(says, now);
        self.send(id, letters);
    }

    fn ids(&self) -> Vec<DomainId> {
        self.domains.all.keys().copied().collect()
    }

    fn send(&mut self, domain: DomainId, letters: Vec<Letter>) {
        let Some(gateway) = self.config.gateway_router() else { return };
        for letter in letters {
            let letter = RouterCommand::ToDomain { domain, letter };
            self.out.push(Command::Send(ToPeer::Router(gateway, letter)));
        }
    }
}

/// Whether an entry can be one of this domain's ranks. That a text is one of them is not seen in
/// it; it is taken only where no other rank has put its key.
pub(super) fn is_of(domains: &Domains, id: DomainId, entry: &Entry) -> bool {
    let Entry::Addresses { first, last, .. } = entry else { return true };
    let domain = domains.all.get(id.index());
    domain.is_some_and(|domain| (first.0..=last.0).all(|rank| domain.has(Rank(rank))))
}

#[cfg(test)]
mod tests {
    use super::super::trial::{end, told, Job, B, GATEWAY};
    use super::*;
    use crate::machine::{said, Event};
    use eyrie_router::RouterEvent;
    use eyrie_wire::control::{RankReport, ToAgent};
    use eyrie_wire::entries::Entries;
    use eyrie_wire::rank_address::address;
    use eyrie_wire::RouterId;
    use std::time::Duration;

    fn released(commands: &[Command]) -> Option<(usize, u32)> {
        commands.iter().find_map(|command| match command {
            Command::Send(ToPeer::Agents(ToAgent::Pmi { entries, barriers })) => {
                Some((entries.len(), *barriers))
            }
            _ => None,
        })
    }

    fn text(key: &str, value: &str) -> Entry {
        Entry::Text { key: key.into(), value: value.into() }
    }

    /// What an MPI library puts for a rank: its address.
    fn addresses(rank: Rank) -> Vec<Entry> {
        let hex: String = address(rank).iter().map(|byte| format!("{byte:02X}")).collect();
        let mut entries = Entries::default();
        entries.put(rank, format!("bc-{rank}"), hex);
        entries.iter().collect()
    }

    #[test]
    fn a_barrier_is_passed_when_all_domains_have_arrived_and_all_entries_are_known() {
        let mut job = Job::new();
        job.put("k0", "v0");
        let arrived = DomainSays::Arrived { barrier: 1 };
        let here = job.report(RankReport::PmiBarrier { barrier: 1 });
        assert_eq!(told(&here), [DomainSays::Put(vec![text("k0", "v0")]), arrived.clone()]);
        assert_eq!(released(&here), None);
        assert_eq!(released(&job.says(2, DomainSays::Put(vec![text("k1", "v1")]))), None);
        assert_eq!(released(&job.says(2, arrived)), Some((2, 1)));
        // The other one comes first; what was told is not told again.
        assert_eq!(released(&job.says(2, DomainSays::Arrived { barrier: 2 })), None);
        let here = job.report(RankReport::PmiBarrier { barrier: 2 });
        assert_eq!((told(&here).len(), released(&here)), (1, Some((0, 2))));
    }

    #[test]
    fn a_domain_speaks_for_its_own_ranks_only() {
        let mut job = Job::new();
        job.put("k0", "v0");
        let bad = |put: Vec<Entry>| {
            let mut job = Job::new();
            job.put("k0", "v0");
            let told = format!("{:?}", job.says(0, DomainSays::Put(put)));
            told.contains("domain b is not believed")
        };
        assert!(bad(addresses(Rank(0))) && bad(vec![text("k0", "other")]));
        assert!(!bad(addresses(Rank(1))) && !bad(vec![text("k1", "v1")]));
        assert!(!bad(vec![text("k1", "v1"), text("k1", "new")]), "its own it may change");
        let letter = Letter { number: 0, heard: 7, says: None };
        assert!(format!("{:?}", job.letter(letter)).contains("it confirms letter 7"));
        // Only the gateway brings letters.
        let letter = Letter { number: 1, heard: 0, says: Some(DomainSays::Finished { code: 0 }) };
        let event = RouterEvent::FromDomain { domain: B, letter };
        assert!(job.trial.handle(said::router(RouterId(0), event)).is_empty());
    }

    #[test]
    fn a_domain_that_goes_gets_another_line_until_it_knows_that_it_can_go() {
        let has_key = |commands: &[Command]| {
            commands.iter().find_map(|command| match command {
                Command::Send(ToPeer::Router(GATEWAY, RouterCommand::Domains(domains))) => {
                    Some(domains.key(B).is_some())
                }
                _ => None,
            })
        };
        let gone = || {
            let mut job = Job::new();
            job.trial.machine.domains.all.get_mut(&B).unwrap().go();
            job
        };
        // The confirmation was lost with a gateway, or with the line: it asks once more.
        let mut job = gone();
        assert_eq!(has_key(&job.line(false)), None);
        let mut up = job.line(true);
        up.extend(job.says(0, DomainSays::Left));
        assert_eq!(has_key(&up), None);
        assert_eq!(has_key(&job.line(false)), Some(false));
        // It has ended, and its last word was lost.
        let mut job = gone();
        assert_eq!(has_key(&job.line(false)), None);
        let looks = |seconds| {
            let machine = &mut job.trial.machine;
            machine.out.set_now(Duration::from_secs(seconds));
            machine.exchange().look();
            has_key(&machine.out.take_commands())
        };
        assert_eq!([1, 61, 122].map(looks), [None, Some(false), None]);
    }

    #[test]
    fn the_job_ends_when_all_have_finished_and_each_knows_it() {
        let mut job = Job::new();
        assert_eq!(told(&job.finish(2)), [DomainSays::Finished { code: 2 }]);
        assert_eq!(job.pass(Duration::from_secs(5)), None);
        assert_eq!(end(&job.says(0, DomainSays::Finished { code: 5 })), None);
        assert_eq!(job.pass(Duration::from_secs(5)), None, "the other one may not know it");
        assert_eq!(end(&job.letter(Letter { number: 0, heard: 1, says: None })), Some(7));
    }

    #[test]
    fn without_a_confirmation_it_ends_all_the_same() {
        let mut job = Job::new();
        job.finish(2);
        job.says(0, DomainSays::Finished { code: 5 });
        assert_eq!(job.pass(FINISH_TIMEOUT * 2), Some(7));
        let mut job = Job::new();
        job.finish(2);
        job.line(false);
        assert_eq!(job.pass(LINE_TIMEOUT * 2), Some(1));
    }

    #[test]
    fn an_end_is_told_and_waited_for_shortly() {
        let stop = |code| Event::Stop { code, cause: "interrupted".into() };
        for confirmed in [true, false] {
            let mut job = Job::new();
            let ended = job.trial.handle(stop(130));
            let (cause, domain) = ("interrupted".into(), DomainId(0));
            assert_eq!(told(&ended), [DomainSays::Ended { code: 130, cause, domain }]);
            assert_eq!(end(&ended), None);
            if confirmed {
                let all = job.letter(Letter { number: 0, heard: 1, says: None });
                assert_eq!(end(&all), Some(130));
            } else {
                assert_eq!(job.pass(Duration::from_secs(9)), None);
                assert_eq!(job.pass(Duration::from_secs(2)), Some(130));
            }
        }
        // Who interrupts once more waits no longer.
        let mut job = Job::new();
        job.trial.handle(stop(130));
        assert_eq!(end(&job.trial.handle(stop(130))), Some(130));
        // Another controller speaks for this domain.
        let mut job = Job::new();
        let replaced = job.trial.handle(Event::Replaced { by: "h2".into() });
        assert_eq!((told(&replaced).len(), end(&replaced)), (0, Some(1)));
    }

    #[test]
    fn the_end_of_another_domain_is_that_of_this_one_with_its_cause() {
        let mut job = Job::new();
        let (cause, domain) = ("no node is left".to_string(), B);
        let ended = job.says(0, DomainSays::Ended { code: 3, cause, domain });
        let confirmed = ended.iter().any(|command| {
            let Command::Send(ToPeer::Router(_, RouterCommand::ToDomain { letter, .. })) = command
            else {
                return false;
            };
            (letter.number, letter.heard) == (0, 1)
        });
        assert!(confirmed && end(&ended).is_none() && job.trial.machine.has_ended());
        let until = job.trial.machine.next_tick().unwrap();
        job.trial.now = until;
        let last = job.trial.handle(Event::Tick);
        assert_eq!(end(&last), Some(3));
        assert!(format!("{last:?}").contains("domain b: no node is left"), "{last:?}");
    }

    #[test]
    fn a_domain_that_never_comes_ends_the_job_with_its_name() {
        let mut job = Job::without_line(Config::of_domain(3));
        assert_eq!(job.pass(Duration::from_secs(14 * 60)), None);
        assert_eq!(job.pass(Duration::from_secs(2 * 60)), Some(1));
    }
}
