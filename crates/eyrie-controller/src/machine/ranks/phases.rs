//! How far the recovery of a rank has come, what each phase of it took, and from what the rank is
//! brought back. The phases of a recovery must add up to the time since the death.

use crate::machine::io::Source;
use crate::record::Phases;
use eyrie_wire::{ImageId, StoreId};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Restores of one image in a row that may fail, by no fault that is known to be the image's,
/// before it is discarded.
pub const RESTORE_ATTEMPTS: u32 = 3;

/// How a death is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Death {
    Signal(i32),
    /// By no fault of the rank: its node, its restore.
    Outside,
    /// It did not die: it was stopped to be moved or saved, or comes from where it was saved.
    Stopped,
}

/// A recovery under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RankRecovery {
    death: Death,
    /// The image that the dead incarnation was started from, and the one that this one is.
    died_from: Option<ImageId>,
    from: Option<Source>,
    /// The store from which an image could not be fetched last.
    avoid: Option<StoreId>,
    phases: Phases,
    /// End of the last phase that is done.
    mark: Duration,
    /// Restores of the image that failed, in a row.
    failed_attempts: u32,
}

impl RankRecovery {
    /// That of a rank of a saved job.
    pub fn of_saved_job() -> RankRecovery {
        RankRecovery {
            death: Death::Stopped,
            died_from: None,
            from: None,
            avoid: None,
            phases: Phases::default(),
            mark: Duration::ZERO,
            failed_attempts: 0,
        }
    }

    /// The recovery that begins with a death `now`, known so long after it. One that failed goes on
    /// under the same clock: what it took so far was detection.
    pub fn after(
        failed: Option<&RankRecovery>,
        now: Duration,
        death: Death,
        detected: Duration,
        died_from: Option<ImageId>,
    ) -> RankRecovery {
        // One that failed stays one also where its rank is stopped meanwhile.
        let has_failed = failed.is_some_and(RankRecovery::is_of_failure);
        let death = if death == Death::Stopped && has_failed { Death::Outside } else { death };
        let before =
            failed.map_or(Duration::ZERO, |v| v.phases.total() + now.saturating_sub(v.mark));
        RankRecovery {
            death,
            died_from,
            from: None,
            avoid: failed.and_then(|v| v.avoid),
            phases: Phases { detected: before + detected, ..Phases::default() },
            mark: now,
            failed_attempts: failed.map_or(0, |v| v.failed_attempts),
        }
    }

    pub fn death(&self) -> Death {
        self.death
    }

    /// Whether it is the recovery of a rank that has failed.
    pub fn is_of_failure(&self) -> bool {
        self.death != Death::Stopped
    }

    /// The image that the dead incarnation was started from.
    pub fn died_from(&self) -> Option<ImageId> {
        self.died_from
    }

    /// The image that this one is brought back from.
    pub fn from(&self) -> Option<Source> {
        self.from
    }

    /// The store from which an image could not be fetched last.
    pub fn avoid(&self) -> Option<StoreId> {
        self.avoid
    }

    /// What each phase took.
    pub fn phases(&self) -> Phases {
        self.phases
    }

    /// Restores of the image that failed, in a row.
    pub fn failed_attempts(&self) -> u32 {
        self.failed_attempts
    }

    /// The job goes on: nothing of the time before counts.
    pub fn begin_now(&mut self, now: Duration) {
        self.mark = now;
    }

    /// It has a node, and is brought back from there.
    pub fn place(&mut self, now: Duration, from: Option<Source>) {
        self.from = from;
        self.phases.placed = self.since_mark(now);
    }

    /// Its process is there: of the time since the order the image took so much to be fetched, and
    /// what is left was the restore.
    pub fn restore(&mut self, now: Duration, fetched: Duration) {
        self.phases.fetched = fetched;
        self.phases.restored = self.since_mark(now).saturating_sub(fetched);
    }

    /// It is connected to its router: until then it was restored.
    pub fn connect(&mut self, now: Duration) {
        let connecting = self.since_mark(now);
        self.phases.restored += connecting;
    }

    /// It has caught up.
    pub fn catch_up(&mut self, now: Duration) {
        self.phases.replayed = self.since_mark(now);
    }

    /// The time since the end of the last phase; another one ends now.
    fn since_mark(&mut self, now: Duration) -> Duration {
        now - std::mem::replace(&mut self.mark, now)
    }

    /// The image could not be restored from this store. Returns how often it could not, in a row.
    pub fn fail_restore(&mut self, store: StoreId) -> u32 {
        self.failed_attempts += 1;
        self.avoid = Some(store);
        self.failed_attempts
    }

    /// Another image is tried, or another copy of it.
    pub fn try_another(&mut self) {
        self.failed_attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_phases_add_up_to_the_time_since_the_death_over_failed_attempts_too() {
        let mut first = RankRecovery::after(None, s(10), Death::Outside, s(2), None);
        first.place(s(13), Some(Source { image: ImageId(1), store: StoreId(4) }));
        assert_eq!(first.fail_restore(StoreId(4)), 1);
        let mut second =
            RankRecovery::after(Some(&first), s(20), Death::Outside, s(0), Some(ImageId(1)));
        second.place(s(21), None);
        second.restore(s(26), s(3));
        second.connect(s(27));
        second.catch_up(s(30));
        let phases = second.phases();
        assert_eq!((phases.detected, phases.placed, phases.fetched), (s(12), s(1), s(3)));
        assert_eq!((phases.restored, phases.replayed), (s(3), s(3)));
        assert_eq!(phases.total(), s(30 - 10 + 2));
    }

    #[test]
    fn a_rank_that_is_stopped_has_not_failed_unless_it_had_before() {
        let after = |failed, death| RankRecovery::after(failed, s(1), death, s(0), None);
        let moved = after(None, Death::Stopped);
        assert!(!moved.is_of_failure() && !RankRecovery::of_saved_job().is_of_failure());
        let failed = after(Some(&moved), Death::Signal(9));
        assert!(failed.is_of_failure());
        assert!(after(Some(&failed), Death::Stopped).is_of_failure());
    }

    #[test]
    fn what_failed_is_known_to_the_next_attempt_until_another_image_is_tried() {
        let mut first = RankRecovery::of_saved_job();
        assert_eq!((first.fail_restore(StoreId(4)), first.fail_restore(StoreId(5))), (1, 2));
        let mut second =
            RankRecovery::after(Some(&first), s(1), Death::Outside, s(0), Some(ImageId(7)));
        assert_eq!((second.avoid(), second.failed_attempts()), (Some(StoreId(5)), 2));
        assert_eq!((second.died_from(), second.from()), (Some(ImageId(7)), None));
        second.try_another();
        assert_eq!((second.fail_restore(StoreId(4)), second.avoid()), (1, Some(StoreId(4))));
    }
}
