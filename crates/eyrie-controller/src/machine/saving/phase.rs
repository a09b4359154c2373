//! How far saving the job has come, and who waits for it. It changes by the table of
//! [`crate::machine::state`] and by nothing else. Decides nothing.

use crate::machine::state::{next, SavingEvent, SavingName, SAVING};
use crate::machine::users::answer::RequestId;
use eyrie_wire::{ImageId, Rank, RouterId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// How far it has come ([`SavingName`] says what each means), with what is known in it.
#[derive(Debug, Serialize, Deserialize)]
pub enum Phase {
    Running,
    /// These ranks have had no image since it began.
    Images {
        waiting: BTreeSet<Rank>,
        until: Duration,
    },
    /// These images are not in the archive yet. `failures`: copies that could not be made.
    Copies {
        waiting: BTreeSet<(Rank, ImageId)>,
        failures: u32,
        until: Duration,
    },
    /// These ranks can still speak.
    Fences {
        waiting: BTreeSet<Rank>,
    },
    /// These routers have not saved what they hold; the others have written so many bytes.
    Routers {
        waiting: BTreeSet<RouterId>,
        bytes: u64,
        until: Duration,
    },
    Rest {
        bytes: u64,
        until: Duration,
    },
    Saved,
}

/// An event of the table with what comes with it.
#[derive(Debug)]
pub enum Step {
    Asked { waiting: BTreeSet<Rank>, until: Duration },
    ImagesMissing { waiting: BTreeSet<(Rank, ImageId)>, until: Duration },
    Stopped { waiting: BTreeSet<Rank> },
    Fenced { waiting: BTreeSet<RouterId>, until: Duration },
    RoutersSaved { bytes: u64, until: Duration },
    Written,
    GivenUp,
}

impl Step {
    fn event(&self) -> SavingEvent {
        match self {
            Step::Asked { .. } => SavingEvent::Asked,
            Step::ImagesMissing { .. } => SavingEvent::ImagesMissing,
            Step::Stopped { .. } => SavingEvent::Stopped,
            Step::Fenced { .. } => SavingEvent::Fenced,
            Step::RoutersSaved { .. } => SavingEvent::RoutersSaved,
            Step::Written => SavingEvent::Written,
            Step::GivenUp => SavingEvent::GivenUp,
        }
    }

    /// The phase named `name`; `None` when the table leads there by another step.
    fn enter(self, name: SavingName) -> Option<Phase> {
        use SavingName as N;
        Some(match (name, self) {
            (N::Running, _) => Phase::Running,
            (N::Images, Step::Asked { waiting, until }) => Phase::Images { waiting, until },
            (N::Copies, Step::ImagesMissing { waiting, until }) => {
                Phase::Copies { waiting, failures: 0, until }
            }
            (N::Fences, Step::Stopped { waiting }) => Phase::Fences { waiting },
            (N::Routers, Step::Fenced { waiting, until }) => {
                Phase::Routers { waiting, bytes: 0, until }
            }
            (N::Rest, Step::RoutersSaved { bytes, until }) => Phase::Rest { bytes, until },
            (N::Saved, _) => Phase::Saved,
            _ => return None,
        })
    }
}

impl Phase {
    pub fn name(&self) -> SavingName {
        match self {
            Phase::Running => SavingName::Running,
            Phase::Images { .. } => SavingName::Images,
            Phase::Copies { .. } => SavingName::Copies,
            Phase::Fences { .. } => SavingName::Fences,
            Phase::Routers { .. } => SavingName::Routers,
            Phase::Rest { .. } => SavingName::Rest,
            Phase::Saved => SavingName::Saved,
        }
    }
}

/// Whether the job can be saved, and whether it is.
#[derive(Debug, Serialize, Deserialize)]
pub struct Saving {
    can_be_saved: bool,
    phase: Phase,
    /// When it was asked for.
    since: Duration,
    /// Users who wait for it.
    users: Vec<RequestId>,
}

impl Saving {
    pub fn new(can_be_saved: bool) -> Saving {
        Saving { can_be_saved, phase: Phase::Running, since: Duration::ZERO, users: Vec::new() }
    }

    /// Whether images outlive the job, so that it can be saved.
    pub fn is_possible(&self) -> bool {
        self.can_be_saved
    }

    /// What it would be saved with is lost.
    pub fn no_longer_possible(&mut self) {
        self.can_be_saved = false;
    }

    /// Whether the job is being saved.
    pub fn is_going_on(&self) -> bool {
        !matches!(self.phase, Phase::Running | Phase::Saved)
    }

    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Whether ranks are being imaged for it.
    pub fn is_imaging(&self) -> bool {
        matches!(self.phase, Phase::Images { .. })
    }

    /// An older image of the rank must do.
    pub fn do_without_image(&mut self, rank: Rank) {
        if let Phase::Images { waiting, .. } = &mut self.phase {
            waiting.remove(&rank);
        }
    }

    /// Whether the archive still lacks an image that it waited for. `lacks`: whether that is so of
    /// this image, which may have been discarded since. False, too, when none is copied.
    pub fn lacks_images(&mut self, lacks: impl Fn(Rank, ImageId) -> bool) -> bool {
        let Phase::Copies { waiting, .. } = &mut self.phase else { return false };
        while waiting.first().is_some_and(|(rank, image)| !lacks(*rank, *image)) {
            waiting.pop_first();
        }
        !waiting.is_empty()
    }

    /// An image could not be copied to the archive: how often that was so. `None` when none is
    /// copied.
    pub fn count_failed_copy(&mut self) -> Option<u32> {
        let Phase::Copies { failures, .. } = &mut self.phase else { return None };
        *failures += 1;
        Some(*failures)
    }

    /// Every router refuses older incarnations of the rank.
    pub fn fenced(&mut self, rank: Rank) {
        if let Phase::Fences { waiting } = &mut self.phase {
            waiting.remove(&rank);
        }
    }

    /// Whether routers write what they hold.
    pub fn waits_for_routers(&self) -> bool {
        matches!(self.phase, Phase::Routers { .. })
    }

    /// A router has written so many bytes. The bytes of all, when it was the last one.
    pub fn router_saved(&mut self, router: RouterId, more: u64) -> Option<u64> {
        let Phase::Routers { waiting, bytes, .. } = &mut self.phase else { return None };
        waiting.remove(&router);
        *bytes += more;
        waiting.is_empty().then_some(*bytes)
    }

    /// Changes the phase as the table says; false, and nothing else, when it has no row for it.
    pub fn advance(&mut self, step: Step) -> bool {
        let entered = next(SAVING, self.phase.name(), step.event()).and_then(|to| step.enter(to));
        entered.map(|phase| self.phase = phase).is_some()
    }

    /// The job is to be saved, from `now` on.
    pub fn begin(&mut self, now: Duration, waiting: BTreeSet<Rank>, until: Duration) {
        if self.advance(Step::Asked { waiting, until }) {
            self.since = now;
        }
    }

    /// One more user waits for it.
    pub fn join(&mut self, user: Option<RequestId>) {
        self.users.extend(user);
    }

    /// The users who have waited for it.
    pub fn take_users(&mut self) -> Vec<RequestId> {
        std::mem::take(&mut self.users)
    }

    /// Whether ranks that are fenced stay so, because the job is being saved.
    pub fn ranks_stay_fenced(&self) -> bool {
        !matches!(self.phase, Phase::Running | Phase::Images { .. } | Phase::Copies { .. })
    }

    /// Whether the images are being copied that the job is saved with.
    pub fn images_are_settled(&self) -> bool {
        matches!(self.phase, Phase::Copies { .. })
    }

    /// Whether no more images are begun for saving the job.
    pub fn imaging_is_over(&self, now: Duration) -> bool {
        matches!(self.phase, Phase::Images { until, .. } if now >= until)
    }

    /// An image of the rank counts that was asked for then.
    pub fn imaged(&mut self, rank: Rank, asked: Duration) {
        if let Phase::Images { waiting, .. } = &mut self.phase {
            if asked >= self.since {
                waiting.remove(&rank);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(event: SavingEvent) -> Step {
        let until = Duration::from_secs(9);
        let bytes = 0;
        match event {
            SavingEvent::Asked => Step::Asked { waiting: BTreeSet::new(), until },
            SavingEvent::ImagesMissing => Step::ImagesMissing { waiting: BTreeSet::new(), until },
            SavingEvent::Stopped => Step::Stopped { waiting: BTreeSet::new() },
            SavingEvent::Fenced => Step::Fenced { waiting: BTreeSet::new(), until },
            SavingEvent::RoutersSaved => Step::RoutersSaved { bytes, until },
            SavingEvent::Written => Step::Written,
            SavingEvent::GivenUp => Step::GivenUp,
        }
    }

    /// One that has come to this phase by rows of the table.
    fn saving_in(name: SavingName) -> Saving {
        use SavingEvent::{Asked, Fenced, ImagesMissing, RoutersSaved, Stopped, Written};
        let way: &[SavingEvent] = match name {
            SavingName::Running => &[],
            SavingName::Images => &[Asked],
            SavingName::Copies => &[Asked, ImagesMissing],
            SavingName::Fences => &[Asked, Stopped],
            SavingName::Routers => &[Asked, Stopped, Fenced],
            SavingName::Rest => &[Asked, Stopped, Fenced, RoutersSaved],
            SavingName::Saved => &[Asked, Stopped, Fenced, RoutersSaved, Written],
        };
        let mut saving = Saving::new(true);
        way.iter().for_each(|event| assert!(saving.advance(step(*event)), "{name:?}: {event:?}"));
        saving
    }

    #[test]
    fn what_it_waits_for_is_counted_in_its_own_phase_only() {
        let until = Duration::from_secs(9);
        let mut saving = Saving::new(true);
        assert!(
            saving.router_saved(RouterId(0), 5).is_none() && saving.count_failed_copy().is_none()
        );
        saving.begin(Duration::from_secs(1), BTreeSet::from([0, 1].map(Rank)), until);
        saving.imaged(Rank(0), Duration::ZERO);
        assert!(matches!(saving.phase(), Phase::Images { waiting, .. } if waiting.len() == 2));
        saving.imaged(Rank(0), Duration::from_secs(1));
        saving.do_without_image(Rank(1));
        assert!(matches!(saving.phase(), Phase::Images { waiting, .. } if waiting.is_empty()));
        saving.advance(Step::ImagesMissing {
            waiting: BTreeSet::from([(Rank(0), ImageId(7)), (Rank(1), ImageId(8))]),
            until,
        });
        assert!(
            saving.lacks_images(|rank, _| rank == Rank(1)) && !saving.lacks_images(|_, _| false)
        );
        assert_eq!((saving.count_failed_copy(), saving.count_failed_copy()), (Some(1), Some(2)));
        saving.advance(Step::Stopped { waiting: BTreeSet::from([Rank(0)]) });
        saving.fenced(Rank(0));
        assert!(matches!(saving.phase(), Phase::Fences { waiting } if waiting.is_empty()));
        saving.advance(Step::Fenced { waiting: BTreeSet::from([0, 1].map(RouterId)), until });
        assert_eq!(
            (saving.router_saved(RouterId(1), 5), saving.router_saved(RouterId(0), 6)),
            (None, Some(11))
        );
    }

    #[test]
    fn saving_goes_by_every_row_of_the_table_and_by_nothing_else() {
        use SavingEvent::*;
        use SavingName::*;
        for name in [Running, Images, Copies, Fences, Routers, Rest, Saved] {
            for event in [Asked, ImagesMissing, Stopped, Fenced, RoutersSaved, Written, GivenUp] {
                let mut saving = saving_in(name);
                let wanted = next(SAVING, name, event);
                assert_eq!(saving.advance(step(event)), wanted.is_some(), "{name:?}: {event:?}");
                assert_eq!(saving.phase().name(), wanted.unwrap_or(name));
            }
        }
    }
}
