//! What the controllers of a job's domains tell each other, and nothing else goes between them:
//! what ranks have put and which barriers they have arrived at, what they print, that they have
//! finished, that the job must end. It must never wait for another domain because of a failure in
//! this one, nor take from a domain what it may not say.

mod alone;
pub mod arriving;
pub mod entry;
pub mod exchange;
mod give;
pub mod going;
pub mod handover;
mod in_place;
pub mod joining;
pub mod leaving;
pub mod newcomers;
pub mod outgoing;
mod passing;
mod prepare;
pub mod printing;
pub mod progress;
pub mod succeeding;
pub mod succession;
mod take;
#[cfg(test)]
mod trial;

use super::config::Config;
use super::outbox::End;
use entry::OtherDomain;
use eyrie_wire::domains::DomainSays;
use eyrie_wire::entries::{Entries, Entry};
use eyrie_wire::DomainId;
use joining::{Coming, Joining};
use outgoing::Outgoing;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use succession::Succession;

/// How long a domain that had to end the job waits until the others have confirmed that.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one that knows that all have finished waits until all have confirmed that it has. That
/// is longer than lines are broken as a rule: a domain that does not know it waits on.
const FINISH_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// How long one that has finished waits for a line to another one that may not have.
const LINE_TIMEOUT: Duration = Duration::from_secs(3600);
/// How long it stays after the last letter that it has confirmed, so that the confirmation leaves.
const LINGER: Duration = Duration::from_millis(300);

/// The end of the job in this domain, which the other domains are told.
#[derive(Debug, Serialize, Deserialize)]
struct Leaving {
    code: i32,
    cause: Option<String>,
    until: Duration,
}

/// How far this domain is on its way to its end while the job goes on.
#[derive(Debug, Serialize, Deserialize)]
enum Going {
    /// Others may not have confirmed yet all that it has said.
    Decided,
    /// They were told, and have until then to confirm that.
    Told { until: Duration },
    /// It has gone.
    Gone,
}

impl Going {
    /// When it goes at the latest.
    fn until(&self) -> Option<Duration> {
        match self {
            Going::Decided | Going::Gone => None,
            Going::Told { until } => Some(*until),
        }
    }
}

/// The other domains of the job; none where it has one.
#[derive(Default, Serialize, Deserialize)]
pub struct OtherDomains {
    all: BTreeMap<DomainId, OtherDomain>,
    /// When a letter of another domain was last confirmed.
    confirmed_at: Option<Duration>,
    leaving: Option<Leaving>,
    /// Since when the ranks of this domain have finished, and since when it is known of all.
    finished_here: Option<Duration>,
    finished: Option<Duration>,
    /// This one ends while the job goes on, because it has no ranks any more.
    going: Option<Going>,
    /// The domain that has ended the job, and why.
    ended_by: Option<(DomainId, String)>,
    /// What ranks here print, where another domain shows it.
    outgoing: Outgoing,
    /// Which domain shows it after which.
    succession: Succession,
    /// The ranks here have finished, and the others are told when they know all that these have
    /// printed.
    finishes: bool,
    /// Since when no `eyrie run` sees what becomes of the controllers of domains.
    unwatched: Option<Duration>,
    /// Another domain that this one lets join.
    joining: Option<Joining>,
    /// This one is to join, until it hears that it has.
    coming: Option<Coming>,
}

impl OtherDomains {
    pub fn new(config: &Config) -> OtherDomains {
        let Some(domains) = &config.domains else { return OtherDomains::default() };
        let others = domains.present().filter(|(id, _)| *id != domains.own);
        let all = others.map(|(id, domain)| (id, OtherDomain::new(domain.name.clone()))).collect();
        let coming = config.joins.then_some(Coming::Begun);
        OtherDomains { all, coming, ..OtherDomains::default() }
    }

    /// The other domains, by their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (DomainId, &OtherDomain)> {
        self.all.iter().map(|(id, domain)| (*id, domain))
    }

    /// Another domain.
    pub fn get(&self, id: DomainId) -> Option<&OtherDomain> {
        self.all.get(&id)
    }

    /// Those that are a part of the job.
    fn members(&self) -> impl Iterator<Item = (DomainId, &OtherDomain)> {
        self.iter().filter(|(_, other)| other.is_member())
    }

    /// Why no ranks of domains may begin to go to others.
    pub fn joins_forbid_moves(&self) -> Option<String> {
        let joins =
            self.all.values().find(|other| !other.is_member() && other.told_until().is_none());
        let name = joins?.name();
        Some(format!("domain {name} is just joining the job: try again when it has"))
    }

    /// Whether the ranks of this domain have finished, and the others were told.
    pub fn has_finished_here(&self) -> bool {
        self.finished_here.is_some()
    }

    /// Whether each of them has confirmed all that it was told, but for what is printed.
    pub fn have_confirmed(&self) -> bool {
        !self.members().any(|(_, other)| other.must_confirm_but_output())
    }

    /// Whether all that ranks here have printed is known where it is shown.
    pub fn have_confirmed_output(&self) -> bool {
        let unconfirmed = |other: &OtherDomain| other.unconfirmed_output() > 0;
        self.outgoing.is_empty() && !self.all.values().any(unconfirmed)
    }

    /// What is said of a domain that says what it may not.
    pub fn not_believed(&self, id: DomainId, why: &str) -> String {
        let name = self.get(id).map_or("", OtherDomain::name);
        format!("domain {name} is not believed: {why}")
    }

    /// An `eyrie run` sees what becomes of this controller.
    pub fn watch(&mut self) {
        self.unwatched = None;
    }

    /// No `eyrie run` sees any more what becomes of the controllers of domains.
    pub fn unwatch(&mut self, now: Duration) {
        self.unwatched.get_or_insert(now);
    }

    /// What ranks of this domain have put that some other one may not know yet, though it was told;
    /// and the first barrier of which that is so.
    fn unknown_elsewhere(&self) -> (Vec<Entry>, Option<u32>) {
        let mut entries = Entries::default();
        let mut barriers = Vec::new();
        for says in self.all.values().flat_map(OtherDomain::unconfirmed) {
            match says {
                DomainSays::Put(put) => put.iter().for_each(|entry| entries.add(entry.clone())),
                DomainSays::Arrived { barrier } => barriers.push(*barrier),
                _ => {}
            }
        }
        (entries.iter().collect(), barriers.into_iter().min())
    }

    /// The exit code of all their ranks, once all have finished.
    fn code(&self) -> Option<i32> {
        let mut there = self.members().filter(|(_, domain)| !domain.is_gone());
        there.try_fold(0, |code, (_, domain)| Some(code | domain.finished()?))
    }

    /// Whether this domain is about to end while the job goes on.
    pub fn are_to_be_left(&self) -> bool {
        self.going.is_some() || self.succession.is_left()
    }

    /// Whether this domain has ended, and the job goes on.
    pub fn are_left(&self) -> bool {
        matches!(self.going, Some(Going::Gone))
    }

    /// How one domain shows what is printed after another one.
    pub fn succession(&self) -> &Succession {
        &self.succession
    }

    /// Whether one of them may not know yet what it was told.
    fn must_confirm(&self) -> bool {
        self.members().any(|(_, other)| other.must_confirm())
    }

    /// Those that may not have finished and are out of reach, and until when they are waited for
    /// once this one has finished.
    fn out_of_reach(&self) -> impl Iterator<Item = (DomainId, &OtherDomain, Duration)> {
        let until = move |domain: &OtherDomain| {
            let since = domain.line().since.filter(|_| !domain.line().up)?;
            Some(self.finished_here?.max(since) + LINE_TIMEOUT)
        };
        let is_unknown = |domain: &OtherDomain| domain.finished().is_none() && !domain.is_gone();
        let unknown = self.members().filter(move |(_, domain)| is_unknown(domain));
        unknown.filter_map(move |(id, domain)| Some((id, domain, until(domain)?)))
    }

    /// The job ends here, and not before the other domains know it.
    pub fn leave(&mut self, code: i32, cause: Option<String>, now: Duration) {
        self.leaving = Some(Leaving { code, cause, until: now + END_TIMEOUT });
    }

    /// Whether the job has ended here, and other domains may not know it yet.
    pub fn are_being_left(&self) -> bool {
        self.leaving.is_some()
    }

    /// Whether this domain is to join the job, and has not said that it is ready: so it has not
    /// joined either.
    fn is_not_ready(&self) -> bool {
        self.coming == Some(Coming::Begun)
    }

    /// The controller itself stood still for so long.
    pub fn extend(&mut self, gap: Duration) {
        if let Some(coming) = &mut self.coming {
            coming.extend(gap);
        }
        if let Some(joining) = &mut self.joining {
            joining.extend(gap);
        }
    }

    /// Nothing more is waited for.
    pub fn hurry(&mut self) {
        if let Some(leaving) = &mut self.leaving {
            leaving.until = Duration::ZERO;
        }
    }

    /// When this domain has left at the latest, as far as is known now. One to which there was no
    /// line yet has not begun, and does not begin alone.
    fn left_at(&self) -> Option<Duration> {
        let until = self.leaving.as_ref()?.until;
        let has_begun = |other: &&OtherDomain| other.line().since.is_some();
        let waits = self.all.values().filter(has_begun).any(OtherDomain::must_confirm);
        let linger = self.confirmed_at.map_or(Duration::ZERO, |at| at + LINGER);
        Some(if waits { until } else { linger.min(until) })
    }

    /// How the job has ended, once the other domains know it, or have had the time to.
    pub fn take_left(&mut self, now: Duration) -> Option<End> {
        let has_left = self.left_at().is_some_and(|at| now >= at);
        let Leaving { code, cause, .. } = self.leaving.take_if(|_| has_left)?;
        Some((code, cause))
    }

    /// Whether another domain has ended the job.
    pub fn have_ended_it(&self) -> bool {
        self.ended_by.is_some()
    }

    /// Another controller speaks for this domain from now on.
    pub fn forget(&mut self) {
        self.all.clear();
    }

    /// When something is to be looked at.
    pub fn next(&self) -> Option<Duration> {
        let again = self.all.values().filter_map(OtherDomain::again);
        if self.are_being_left() {
            return again.chain(self.left_at()).min();
        }
        let first = self.all.values().filter_map(OtherDomain::first_line_until);
        let line = self.out_of_reach().map(|(.., until)| until);
        let finished = self.finished.map(|since| since + FINISH_TIMEOUT);
        let finished = finished.into_iter().chain(self.going.as_ref().and_then(Going::until));
        let leave = self.succession.next();
        let told = self.all.values().filter_map(OtherDomain::told_until);
        let told = told.chain(self.all.values().filter_map(OtherDomain::line_over_at));
        let joining = self.joining.as_ref().map(Joining::until);
        let coming = self.coming.and_then(|coming| coming.until());
        let rest = leave.into_iter().chain(told).chain(joining).chain(coming);
        again.chain(first).chain(line).chain(finished).chain(rest).min()
    }
}
