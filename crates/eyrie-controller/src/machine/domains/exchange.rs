//! The exchange with other domains: what is told to them, and what follows from what they say.

use super::entry::OtherDomain;
use super::{OtherDomains, FINISH_TIMEOUT, LINE_TIMEOUT};
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
    pub config: &'a Config,
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
        let is_needed = other.finished().is_none() || !self.ranks.have_all_finished();
        if changes && up {
            self.out.record(Record::LineUp { domain });
        } else if changes && is_needed {
            self.out.record(Record::LineDown { domain });
        }
        self.send(id, letters);
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
        if let Some(text) = self.never_came().or_else(|| self.out_of_reach()) {
            return self.out.end(1, Some(text));
        }
        self.end_if_all_have();
    }

    fn never_came(&self) -> Option<String> {
        let now = self.out.now();
        let is_late = |other: &&OtherDomain| other.first_line_until().is_some_and(|at| at <= now);
        let late = self.domains.all.values().find(is_late)?;
        let waited = eyrie_units::time(now);
        Some(format!(
            "domain {} has not come within {waited}: does it run there, and do its gateway and this \
             domain's reach each other?",
            late.name()
        ))
    }

    fn out_of_reach(&self) -> Option<String> {
        let now = self.out.now();
        let (other, _) = self.domains.out_of_reach().find(|(_, until)| *until <= now)?;
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
            Some(DomainSays::Ended { code, cause, domain }) => self.ended(id, code, cause, domain),
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
        let text = format!("domain {} is not believed: {why}", self.name(id));
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
        let code = self.ranks.code();
        self.domains.finished_here = Some(self.out.now());
        self.tell_all(&DomainSays::Finished { code });
        self.end_if_all_have();
    }

    /// All ranks of this domain have gone to another one: it has finished when all others have.
    fn finish_without_ranks(&mut self) {
        let Some(domains) = &self.config.domains else { return };
        let is_left = self.ranks.here() == 0 && self.domains.finished_here.is_none();
        let has_ranks = |id: &DomainId| !domains.all[id.index()].ranks.is_empty();
        let with_ranks = || self.domains.iter().filter(|(id, _)| has_ranks(id));
        let have_finished = || with_ranks().all(|(_, other)| other.finished().is_some());
        let runs = self.out.has_started() && !self.out.has_ended();
        if runs && is_left && with_ranks().next().is_some() && have_finished() {
            self.finish();
        }
    }

    /// Ends the job when all domains have finished, and each other one knows that this one has.
    fn end_if_all_have(&mut self) {
        let code = self.domains.code().filter(|_| self.domains.finished_here.is_some());
        let Some(code) = code else { return };
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
fn is_of(domains: &Domains, id: DomainId, entry: &Entry) -> bool {
    let Entry::Addresses { first, last, .. } = entry else { return true };
    let domain = domains.all.get(id.index());
    domain.is_some_and(|domain| (first.0..=last.0).all(|rank| domain.has(Rank(rank))))
}
