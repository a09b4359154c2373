//! Ranks that have had no new image for too long, whatever the cause: each is reported once, with
//! the reason, and once more when it has one; `eyrie status` shows them. It never decides when
//! images are taken.

use super::why::{ImageAges, LEAST};
use crate::machine::ranks::entry::RankEntry;
use crate::record::Record;
use eyrie_wire::Rank;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What was reported.
#[derive(Default, Serialize, Deserialize)]
pub struct Overdue {
    ranks: BTreeSet<Rank>,
    /// When others may be reported: those that come one shortly after another are reported
    /// together.
    next: Duration,
}

impl Overdue {
    /// No image of the rank is expected any more: it has died, or has finished.
    pub fn forget(&mut self, rank: Rank) {
        self.ranks.remove(&rank);
    }

    /// When the next rank may have to be reported.
    pub fn next(&self, ages: ImageAges<'_>) -> Option<Duration> {
        let silent = |r: &&RankEntry| r.can_be_overdue() && !self.ranks.contains(&r.rank());
        let silent = ages.ranks.iter().filter(silent);
        let due = silent.filter_map(|r| Some(r.images().since() + ages.image_patience(r)?));
        due.min().map(|due| due.max(self.next))
    }

    /// Reports ranks that are overdue since the last time, and those that no longer are. Not asked
    /// while the job is being saved.
    pub fn watch(&mut self, ages: ImageAges<'_>) -> Vec<Record> {
        let mut records = Vec::new();
        let is_over = |rank: &Rank| ages.overdue_for(&ages.ranks[*rank]).is_none();
        let ranks: Vec<Rank> = self.ranks.iter().copied().filter(is_over).collect();
        if !ranks.is_empty() {
            self.ranks.retain(|rank| !ranks.contains(rank));
            records.push(Record::ImagesAgain { ranks });
        }
        let now = ages.now;
        if now < self.next {
            return records;
        }
        let mut reasons: BTreeMap<(String, Duration), Vec<Rank>> = BTreeMap::new();
        for r in ages.ranks.iter().filter(|r| !self.ranks.contains(&r.rank())) {
            let limit = ages.overdue_for(r).and_then(|_| ages.image_patience(r));
            if let Some(limit) = limit {
                reasons.entry((ages.why_no_image(r.rank()), limit)).or_default().push(r.rank());
            }
        }
        if !reasons.is_empty() {
            self.next = now + LEAST;
        }
        for ((cause, limit), ranks) in reasons {
            self.ranks.extend(&ranks);
            records.push(Record::ImagesOverdue { ranks, limit, cause });
        }
        records
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::images::schedule::Interval;
    use crate::machine::said;
    use crate::machine::timeouts::IMAGE_TIMEOUT;
    use crate::machine::users::answer::Answer;
    use crate::machine::Source;
    use crate::machine::{Command, Config, Event, Machine};
    use eyrie_interface::answer::Outcome;
    use eyrie_interface::Manner;
    use eyrie_interface::Order;
    use eyrie_store::role::Stored;
    use eyrie_wire::control::{Ending, MpiStage, RankReport};
    use eyrie_wire::{ImageId, RankInstance};
    use eyrie_wire::{Incarnation, NodeId, StoreId};

    const INTERVAL: Duration = Duration::from_secs(10);

    /// A job of two ranks on two nodes, and the time.
    struct Job {
        machine: Machine,
        now: Duration,
        lines: Vec<String>,
        answers: Vec<Answer>,
        captures: BTreeMap<Rank, ImageId>,
        /// What becomes of images of rank 0 that are asked for.
        fate: fn(ImageId) -> Option<RankReport>,
    }

    fn first(rank: Rank) -> RankInstance {
        RankInstance { rank, incarnation: Incarnation(1) }
    }

    fn gone(image: ImageId) -> Option<RankReport> {
        Some(RankReport::ImageUnusable { image, reason: "a file was replaced".into() })
    }

    fn not_now(image: ImageId) -> Option<RankReport> {
        Some(RankReport::CaptureFailed { image, reason: "not now".into(), passing: true })
    }

    fn silent(_: ImageId) -> Option<RankReport> {
        None
    }

    impl Job {
        fn new(checkpoint_every: Interval, fate: fn(ImageId) -> Option<RankReport>) -> Job {
            Job::ordered(Order::Batch, checkpoint_every, fate)
        }

        fn ordered(
            checkpoint_order: Order,
            checkpoint_every: Interval,
            fate: fn(ImageId) -> Option<RankReport>,
        ) -> Job {
            let config = Config {
                ranks: 2,
                nodes: 2,
                start: vec![NodeId(0), NodeId(1)],
                checkpoint_every,
                checkpoint_order,
                can_be_saved: true,
                ..Config::of_one_rank()
            };
            let mut job = Job {
                machine: Machine::new(config),
                now: Duration::ZERO,
                lines: Vec::new(),
                answers: Vec::new(),
                captures: BTreeMap::new(),
                fate,
            };
            job.handle(said::store_up(StoreId(0)));
            (0..2).for_each(|node| job.handle(said::joined(NodeId(node))));
            for rank in 0..2 {
                let fetched = Duration::ZERO;
                let restored = Duration::ZERO;
                job.handle(said::rank(
                    first(Rank(rank)),
                    RankReport::Started { fetched, restored },
                ));
                job.handle(said::rank(first(Rank(rank)), RankReport::ProviderLoaded));
            }
            job
        }

        fn handle(&mut self, event: Event) {
            for command in self.machine.handle(self.now, event) {
                if let Some((instance, Source { image, .. })) = said::capture(&command) {
                    self.captures.insert(instance.rank, image);
                }
                match command {
                    Command::Answer { answer, .. } => self.answers.push(answer),
                    Command::Record(
                        record @ (Record::ImagesOverdue { .. } | Record::ImagesAgain { .. }),
                    ) => {
                        let (_, line) = record.line(&[]).unwrap();
                        self.lines.push(format!("{} s: {line}", self.now.as_secs()));
                    }
                    _ => {}
                }
            }
        }

        /// Images of rank 1 count, those of rank 0 have their fate.
        fn pass(&mut self, time: Duration) {
            let end = self.now + time;
            while self.now < end {
                for (rank, image) in std::mem::take(&mut self.captures) {
                    let instance = first(rank);
                    let fate = if rank == Rank(0) { self.fate } else { usable };
                    let Some(report) = fate(image) else { continue };
                    if !matches!(report, RankReport::CaptureFailed { .. }) {
                        self.handle(said::begun(instance, image));
                        let image = Stored {
                            image,
                            clock: 1,
                            rsn: 1,
                            observed: 0,
                            stdin: 0,
                            bytes: 1,
                            file_bytes: 0,
                        };
                        self.handle(said::stored(StoreId(0), instance, image));
                    }
                    self.handle(said::rank(instance, report));
                }
                let step = Duration::from_millis(100);
                let tick = self.machine.next_tick().unwrap_or(end);
                self.now = tick.clamp(self.now + Duration::from_millis(1), self.now + step);
                self.handle(Event::Tick);
            }
        }

        fn overdue(&self) -> Vec<Option<String>> {
            self.machine.overdue().map(|o| o.map(|(_, cause)| cause)).collect()
        }
    }

    fn usable(image: ImageId) -> Option<RankReport> {
        Some(RankReport::ImageUsable { image, output: [0; 2] })
    }

    #[test]
    fn a_rank_without_a_new_image_is_told_of_once_with_the_reason_and_when_it_has_one() {
        for (fate, cause) in [
            (gone as fn(ImageId) -> _, "a file was replaced"),
            (not_now, "not now"),
            (silent, "one is under way, but its image has not arrived"),
        ] {
            let mut job = Job::new(Interval::Every(INTERVAL), fate);
            job.pass(INTERVAL * 3 - Duration::from_secs(1));
            assert_eq!((job.lines.len(), job.overdue()), (0, vec![None, None]), "{cause}");
            job.pass(INTERVAL * 4);
            assert_eq!(job.lines.len(), 1, "{:?}", job.lines);
            let wanted = format!("30 s: rank 0 has had no new image for more than 30 s: {cause}; ");
            assert!(job.lines[0].starts_with(&wanted), "{:?}", job.lines);
            let overdue = job.overdue();
            assert!(overdue[0].is_some() && overdue[1].is_none(), "{overdue:?}");
            job.fate = usable;
            // One that never arrives is waited for.
            job.pass(Duration::from_secs(700));
            assert!(job.lines[1].ends_with("rank 0 has a new image again"), "{:?}", job.lines);
            assert_eq!((job.lines.len(), job.overdue()), (2, vec![None, None]));
        }
    }

    #[test]
    fn what_its_program_has_done_is_a_reason_too() {
        let mut job = Job::new(Interval::Every(INTERVAL), usable);
        job.pass(INTERVAL);
        job.handle(said::rank(first(Rank(0)), RankReport::PmiFinalized));
        job.pass(INTERVAL * 4);
        assert!(job.lines[0].contains("called MPI_Finalize"), "{:?}", job.lines);
        // So is that of another rank, where they are imaged one after the other.
        let mut job = Job::ordered(Order::Sequential, Interval::Every(INTERVAL), silent);
        job.pass(INTERVAL * 4);
        let other = job.lines.iter().find(|line| line.contains("rank 1 has had no new image"));
        assert!(other.is_some_and(|line| line.contains("one of rank 0")), "{:?}", job.lines);
        // Where no images are taken none is missing.
        let mut job = Job::new(Interval::Off, usable);
        job.pass(Duration::from_secs(600));
        assert!(job.lines.is_empty() && job.overdue() == [None, None], "{:?}", job.lines);
    }

    #[test]
    fn a_user_who_waits_for_an_image_learns_in_time_why_there_is_none() {
        let slack = Duration::from_secs(10);
        for interval in [Interval::Off, Interval::Every(INTERVAL)] {
            for fate in [gone, not_now] {
                let mut job = Job::new(interval, fate);
                let to = Some(NodeId(1));
                let manner = Manner::default();
                job.handle(Event::Migrate { request: Some(1), ranks: vec![Rank(0)], to, manner });
                job.pass(IMAGE_TIMEOUT - slack);
                assert_eq!(job.answers, []);
                job.pass(slack * 2);
                let [Answer::Refused(why)] = &job.answers[..] else { panic!("{:?}", job.answers) };
                let cause = if fate(ImageId(1)) == gone(ImageId(1)) {
                    "a file was replaced"
                } else {
                    "not now"
                };
                assert!(why.starts_with("rank 0 did not move") && why.ends_with(cause), "{why}");
                // The next one, and then it can: a drained node that is not free is drained again.
                job.handle(Event::Drain { request: Some(2), node: NodeId(0) });
                job.pass(IMAGE_TIMEOUT + slack);
                assert!(matches!(&job.answers[1..], [Answer::Refused(_)]), "{:?}", job.answers);
                job.fate = usable;
                job.handle(Event::Drain { request: Some(3), node: NodeId(0) });
                job.pass(Duration::from_secs(1));
                assert_eq!(job.answers.len(), 2, "{:?}", job.answers);
                assert!(job
                    .machine
                    .moves()
                    .any(|(rank, moving)| rank == Rank(0) && moving.live().is_some()));
            }
        }
    }

    #[test]
    fn a_user_whose_rank_ends_before_it_moves_learns_that() {
        let mut job = Job::new(Interval::Off, not_now);
        let to = Some(NodeId(1));
        let manner = Manner::default();
        job.handle(Event::Migrate { request: Some(1), ranks: vec![Rank(0)], to, manner });
        job.handle(said::rank(first(Rank(0)), RankReport::PmiFinalized));
        let ending = Ending::Code(0);
        let stage = MpiStage::After;
        job.handle(said::rank(first(Rank(0)), RankReport::Exited { ending, stage }));
        let [Answer::Refused(why)] = &job.answers[..] else { panic!("{:?}", job.answers) };
        assert_eq!(why, "rank 0 did not move: it has come to its end before");
        // The node of one that was to be drained is free.
        let mut job = Job::new(Interval::Off, not_now);
        job.handle(Event::Drain { request: Some(2), node: NodeId(0) });
        job.handle(said::rank(first(Rank(0)), RankReport::PmiFinalized));
        let ending = Ending::Code(0);
        let stage = MpiStage::After;
        job.handle(said::rank(first(Rank(0)), RankReport::Exited { ending, stage }));
        assert_eq!(job.answers, [Answer::Accepted]);
    }

    #[test]
    fn a_checkpoint_that_cannot_be_begun_is_answered_in_time() {
        let mut job = Job::new(Interval::Off, usable);
        job.handle(said::rank(first(Rank(0)), RankReport::PmiFinalized));
        job.handle(Event::Checkpoint { request: 1, rank: None });
        job.pass(IMAGE_TIMEOUT + Duration::from_secs(10));
        let [Answer::Checkpoints(outcomes)] = &job.answers[..] else { panic!("{:?}", job.answers) };
        let failed = outcomes.iter().find_map(|outcome| match outcome {
            Outcome::Failed { rank: Rank(0), failed } => Some(failed.as_str()),
            _ => None,
        });
        assert!(failed.is_some_and(|f| f.contains("called MPI_Finalize")), "{outcomes:?}");
        assert_eq!(outcomes.len(), 2);
    }

    #[test]
    fn saving_does_not_wait_for_ranks_that_are_never_imaged() {
        let mut job = Job::new(Interval::Off, not_now);
        job.handle(Event::Save { request: Some(1) });
        job.pass(Duration::from_secs(40));
        // Whatever images are under way, one rank after the other: they come back from the log.
        assert!(job.machine.saving.ranks_stay_fenced());
    }
}
