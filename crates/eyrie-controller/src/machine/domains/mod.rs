//! What the controllers of a job's domains tell each other, and nothing else goes between them:
//! what ranks have put and which barriers they have arrived at, that they have finished, that the
//! job must end. It must never wait for another domain because of a failure in this one, nor take
//! from a domain what it may not say.

pub mod arriving;
pub mod entry;
pub mod exchange;
mod give;
pub mod handover;
pub mod leaving;
mod passing;
mod take;

use super::config::Config;
use super::outbox::End;
use entry::OtherDomain;
use eyrie_wire::DomainId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

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
    /// The domain that has ended the job, and why.
    ended_by: Option<(DomainId, String)>,
}

impl OtherDomains {
    pub fn new(config: &Config) -> OtherDomains {
        let others = config.domains.iter().flat_map(|domains| domains.others());
        let all = others.map(|(id, domain)| (id, OtherDomain::new(domain.name.clone()))).collect();
        OtherDomains { all, ..OtherDomains::default() }
    }

    /// The other domains, by their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (DomainId, &OtherDomain)> {
        self.all.iter().map(|(id, domain)| (*id, domain))
    }

    /// Another domain.
    pub fn get(&self, id: DomainId) -> Option<&OtherDomain> {
        self.all.get(&id)
    }

    /// Whether each of them has confirmed all that it was told.
    pub fn have_confirmed(&self) -> bool {
        !self.must_confirm()
    }

    /// The exit code of all their ranks, once all have finished.
    fn code(&self) -> Option<i32> {
        self.all.values().try_fold(0, |code, domain| Some(code | domain.finished()?))
    }

    /// Whether one of them may not know yet what it was told.
    fn must_confirm(&self) -> bool {
        self.all.values().any(OtherDomain::must_confirm)
    }

    /// Those that may not have finished and are out of reach, and until when they are waited for
    /// once this one has finished.
    fn out_of_reach(&self) -> impl Iterator<Item = (&OtherDomain, Duration)> {
        let until = move |domain: &OtherDomain| {
            let since = domain.line().since.filter(|_| !domain.line().up)?;
            Some(self.finished_here?.max(since) + LINE_TIMEOUT)
        };
        let unknown = self.all.values().filter(|domain| domain.finished().is_none());
        unknown.filter_map(move |domain| Some((domain, until(domain)?)))
    }

    /// The job ends here, and not before the other domains know it.
    pub fn leave(&mut self, code: i32, cause: Option<String>, now: Duration) {
        self.leaving = Some(Leaving { code, cause, until: now + END_TIMEOUT });
    }

    /// Whether the job has ended here, and other domains may not know it yet.
    pub fn are_being_left(&self) -> bool {
        self.leaving.is_some()
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
        let line = self.out_of_reach().map(|(_, until)| until);
        let finished = self.finished.map(|since| since + FINISH_TIMEOUT);
        again.chain(first).chain(line).chain(finished).min()
    }
}
