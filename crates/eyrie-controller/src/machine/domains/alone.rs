//! What a domain does of which no `eyrie run` sees that it is there, or that the controllers of the
//! others are: it does not wait for ever.

use super::entry::OtherDomain;
use super::exchange::Exchange;
use super::{OtherDomains, LINE_TIMEOUT};
use crate::machine::config::Config;
use eyrie_wire::DomainId;
use std::time::Duration;

impl Exchange<'_> {
    /// The `eyrie run` that has started the job has ended, or the way to it is cut.
    pub fn unwatched(&mut self) {
        self.domains.unwatch(self.out.now());
        let shown_by = self.config.domains.as_ref().and_then(|domains| domains.shown_by());
        let other = shown_by.and_then(|by| self.domains.get(by));
        if self.domains.is_not_ready() {
            // `eyrie run` sees that it does not join, or has ended itself.
            let cause = "the domain has not joined the job, and nothing waits for it any more";
            return self.out.end(1, Some(cause.into()));
        }
        let has_begun = self.domains.succession().has_happened();
        if !has_begun && other.is_some_and(|other| other.line().since.is_none()) {
            let cause =
                "the `eyrie run` that has started the job has ended, or the way to it is cut";
            self.out.end(1, Some(cause.into()));
        }
    }

    /// Why the job ends when that time has come.
    pub(super) fn is_alone(&self) -> Option<String> {
        let (at, patience, lost) = self.domains.lost_line(self.config)?;
        let waited = eyrie_units::time(patience);
        (self.out.now() >= at).then(|| {
            format!(
                "there was no line to domain {} for {waited}, and no `eyrie run` that could bring \
                 its controller back",
                lost.name()
            )
        })
    }
}

impl OtherDomains {
    /// When the job ends because there is no line, if there will be none: to the domain that shows
    /// it or, where this one does, to any.
    pub fn alone_at(&self, config: &Config) -> Option<Duration> {
        self.lost_line(config).map(|(at, ..)| at)
    }

    /// That time, for how long there was no line then, and to whom.
    fn lost_line(&self, config: &Config) -> Option<(Duration, Duration, &OtherDomain)> {
        let unwatched = self.unwatched?;
        let shown_by = config.domains.as_ref()?.shown_by();
        let patience = if shown_by.is_some() { config.alone_for } else { LINE_TIMEOUT };
        let counts = |id: DomainId, other: &OtherDomain| {
            shown_by.is_none_or(|by| by == id) && !other.is_gone()
        };
        let there = self.members().filter(|(id, other)| counts(*id, other));
        let lost = there.filter_map(|(_, other)| {
            let since = other.line().since.filter(|_| !other.line().up)?;
            Some((since.max(unwatched) + patience, patience, other))
        });
        lost.min_by_key(|(at, ..)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::{end, Job};
    use crate::machine::Event;
    use std::time::Duration;

    /// As in the configuration of these jobs.
    const ALONE_FOR: Duration = Duration::from_secs(60);
    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn without_a_line_to_where_it_is_shown_and_without_eyrie_run_a_domain_ends() {
        let mut job = Job::shown_by_b();
        job.runs();
        job.trial.handle(Event::Unwatched);
        assert_eq!(job.pass(ALONE_FOR * 2), None, "there is a line");
        job.line(false);
        assert_eq!(job.pass(ALONE_FOR / 2), None, "it waits");
        job.line(true);
        job.line(false);
        assert_eq!(job.pass(ALONE_FOR / 2), None, "it waits anew");
        assert_eq!(job.pass(MINUTE), Some(1));
    }

    #[test]
    fn one_that_eyrie_run_watches_waits_for_its_line() {
        let mut job = Job::shown_by_b();
        job.runs();
        job.trial.handle(Event::Resumed);
        job.trial.handle(Event::Watched);
        job.line(false);
        assert_eq!(job.pass(ALONE_FOR * 10), None);
        job.trial.handle(Event::Unwatched);
        assert_eq!(job.pass(ALONE_FOR / 2), None);
        assert_eq!(job.pass(MINUTE), Some(1));
    }

    #[test]
    fn where_the_job_is_shown_a_resumed_controller_waits_an_hour() {
        let mut job = Job::new();
        job.runs();
        job.line(false);
        assert_eq!(job.pass(MINUTE * 100), None, "`eyrie run` sees to it");
        job.trial.handle(Event::Resumed);
        assert_eq!(job.pass(MINUTE * 59), None);
        assert_eq!(job.pass(MINUTE * 2), Some(1));
    }

    #[test]
    fn before_the_first_line_the_end_of_eyrie_run_is_that_of_the_domain() {
        let mut job = Job::shown_by_b_without_line();
        job.runs();
        assert_eq!(job.pass(MINUTE), None);
        let commands = job.trial.handle(Event::Unwatched);
        assert!(end(&commands).is_some() || job.pass(MINUTE).is_some());
    }
}
