//! Ranks that have had no new image for too long, whatever the cause: each is told of once, with
//! the reason, and once more when it has one; `eyrie status` shows them. It never decides when
//! images are taken.

use super::rank::{Capture, RankEntry};
use super::reactor::Machine;
use super::state::RankStateName;
use crate::record::Record;
use eyrie_wire::Rank;
use std::collections::BTreeMap;
use std::time::Duration;

/// So many intervals may pass without a new image.
const INTERVALS: u32 = 3;
/// It is never told of sooner: with short intervals a busy machine is no news.
const LEAST: Duration = Duration::from_secs(3);
/// An image that has been under way for so long is the reason itself; before, it is why the last
/// one failed.
const LONG_UNDER_WAY: Duration = Duration::from_secs(10);

impl Machine {
    /// How long a rank may be without a new image; `None` where none are taken by themselves.
    fn image_patience(&self, r: &RankEntry) -> Option<Duration> {
        let interval = self.schedule.longest_interval(r.images.is_empty())?;
        Some(interval.saturating_mul(INTERVALS).max(LEAST))
    }

    /// For how long a rank has had no new image, if that is too long.
    fn overdue_for(&self, r: &RankEntry) -> Option<Duration> {
        let age = self.now.saturating_sub(r.imaged);
        let patience =
            self.image_patience(r).filter(|_| r.can_be_overdue() && !self.is_saving())?;
        (age >= patience).then_some(age)
    }

    /// For each rank for how long it has had no new image, and why, if that is too long.
    pub fn overdue(&self) -> impl Iterator<Item = Option<(Duration, String)>> + '_ {
        let of = |r: &RankEntry| Some((self.overdue_for(r)?, self.why_no_image(r.rank)));
        self.ranks.iter().map(of)
    }

    /// When the next rank may have to be told of.
    pub(super) fn next_overdue(&self) -> Option<Duration> {
        let said = &self.notes.overdue;
        let silent = self.ranks.iter().filter(|r| r.can_be_overdue() && !said.contains(&r.rank));
        let due = silent.filter_map(|r| Some(r.imaged + self.image_patience(r)?));
        due.min().map(|due| due.max(self.notes.overdue_next))
    }

    /// Tells of ranks that are overdue since the last time, and of those that no longer are.
    pub(super) fn watch_overdue(&mut self) {
        if self.is_saving() {
            return;
        }
        let is_over = |rank: &Rank| self.overdue_for(&self.ranks[*rank as usize]).is_none();
        let ranks: Vec<Rank> = self.notes.overdue.iter().copied().filter(is_over).collect();
        if !ranks.is_empty() {
            self.notes.overdue.retain(|rank| !ranks.contains(rank));
            self.record(Record::ImagesAgain { ranks });
        }
        if self.now < self.notes.overdue_next {
            return;
        }
        let mut reasons: BTreeMap<(String, Duration), Vec<Rank>> = BTreeMap::new();
        for r in &self.ranks {
            let is_new = !self.notes.overdue.contains(&r.rank);
            let Some(limit) = self.overdue_for(r).and_then(|_| self.image_patience(r)) else {
                continue;
            };
            if is_new {
                let reason = (self.why_no_image(r.rank), limit);
                reasons.entry(reason).or_default().push(r.rank);
            }
        }
        if !reasons.is_empty() {
            self.notes.overdue_next = self.now + LEAST;
        }
        for ((cause, limit), ranks) in reasons {
            self.notes.overdue.extend(&ranks);
            self.record(Record::ImagesOverdue { ranks, limit, cause });
        }
    }

    /// Why there is no newer image of the rank.
    pub(super) fn why_no_image(&self, rank: Rank) -> String {
        let r = &self.ranks[rank as usize];
        let long = |c: &&Capture| self.now >= c.asked + LONG_UNDER_WAY;
        if let Some(capture) = r.capture().filter(|c| long(c) || r.refused.is_none()) {
            return format!("one is under way, but {}", capture.lacks());
        }
        let state = match (r.state.name(), r.on_node()) {
            (RankStateName::Finished, _) => "it has finished",
            (RankStateName::Waiting | RankStateName::Starting, _) => "it is being started",
            (RankStateName::Lost | RankStateName::Restoring, _) => "it is being recovered",
            (_, Some(on_node)) if !on_node.loaded => "its program has not called MPI_Init yet",
            (_, Some(on_node)) if on_node.finalized => {
                "its program has called MPI_Finalize, after which none is taken"
            }
            _ => "",
        };
        if !state.is_empty() {
            return state.into();
        }
        if let Some(cause) = &r.refused {
            return cause.clone();
        }
        if self.store_for(rank, &Default::default()).is_none() {
            return "no store is up that could take it".into();
        }
        let captured = |other: &&Rank| self.ranks[**other as usize].capture().is_some();
        match self.asked.iter().find(captured) {
            Some(other) if self.schedule.one_by_one() => format!(
                "images are taken of one rank after the other, and one of rank {other} is under way"
            ),
            _ => "none was due yet".into(),
        }
    }
}

impl RankEntry {
    /// Whether images of it are expected.
    fn can_be_overdue(&self) -> bool {
        self.is(RankStateName::Running) || self.is(RankStateName::Replaying)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::answer::{Answer, Outcome};
    use crate::machine::schedule::{Interval, Order};
    use crate::machine::timeouts::IMAGE_TIMEOUT;
    use crate::machine::{Command, Config, Event, Image, Manner};
    use eyrie_wire::control::RankReport;
    use eyrie_wire::{ImageId, RankInstance};

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
        RankInstance { rank, incarnation: 1 }
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
                start: vec![0, 1],
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
            job.tell(Event::StoreUp { store: 0 });
            (0..2).for_each(|node| job.tell(Event::AgentUp(node)));
            for rank in 0..2 {
                let (fetched, restored) = (Duration::ZERO, Duration::ZERO);
                job.tell(Event::Rank(first(rank), RankReport::Started { fetched, restored }));
                job.tell(Event::Rank(first(rank), RankReport::ProviderLoaded));
            }
            job
        }

        fn tell(&mut self, event: Event) {
            for command in self.machine.handle(self.now, event) {
                match command {
                    Command::Capture { instance, image, .. } => {
                        self.captures.insert(instance.rank, image);
                    }
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
                    let fate = if rank == 0 { self.fate } else { usable };
                    let Some(report) = fate(image) else { continue };
                    if !matches!(report, RankReport::CaptureFailed { .. }) {
                        self.tell(Event::ImageBegun { instance, image });
                        let image =
                            Image { image, clock: 1, rsn: 1, observed: 0, stdin: 0, bytes: 1 };
                        self.tell(Event::ImageStored { store: 0, instance, image });
                    }
                    self.tell(Event::Rank(instance, report));
                }
                let step = Duration::from_millis(100);
                let tick = self.machine.next_tick().unwrap_or(end);
                self.now = tick.clamp(self.now + Duration::from_millis(1), self.now + step);
                self.tell(Event::Tick);
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
        job.tell(Event::Rank(first(0), RankReport::PmiFinalized));
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
    fn whoever_waits_for_an_image_is_told_in_time_why_there_is_none() {
        let slack = Duration::from_secs(10);
        for interval in [Interval::Off, Interval::Every(INTERVAL)] {
            for fate in [gone, not_now] {
                let mut job = Job::new(interval, fate);
                let (to, manner) = (Some(1), Manner::default());
                job.tell(Event::Migrate { request: Some(1), ranks: vec![0], to, manner });
                job.pass(IMAGE_TIMEOUT - slack);
                assert_eq!(job.answers, []);
                job.pass(slack * 2);
                let [Answer::Refused(why)] = &job.answers[..] else { panic!("{:?}", job.answers) };
                let cause = if fate(1) == gone(1) { "a file was replaced" } else { "not now" };
                assert!(why.starts_with("rank 0 did not move") && why.ends_with(cause), "{why}");
                // The next one, and then it can: a drained node that is not free is drained again.
                job.tell(Event::Drain { request: Some(2), node: 0 });
                job.pass(IMAGE_TIMEOUT + slack);
                assert!(matches!(&job.answers[1..], [Answer::Refused(_)]), "{:?}", job.answers);
                job.fate = usable;
                job.tell(Event::Drain { request: Some(3), node: 0 });
                job.pass(Duration::from_secs(1));
                assert_eq!(job.answers.len(), 2, "{:?}", job.answers);
                assert!(job
                    .machine
                    .moves()
                    .any(|(rank, moving)| rank == 0 && moving.live.is_some()));
            }
        }
    }

    #[test]
    fn a_checkpoint_that_cannot_be_begun_is_answered_in_time() {
        let mut job = Job::new(Interval::Off, usable);
        job.tell(Event::Rank(first(0), RankReport::PmiFinalized));
        job.tell(Event::Checkpoint { request: 1, rank: None });
        job.pass(IMAGE_TIMEOUT + Duration::from_secs(10));
        let [Answer::Checkpoints(outcomes)] = &job.answers[..] else { panic!("{:?}", job.answers) };
        let failed = outcomes.iter().find_map(|outcome| match outcome {
            Outcome::Failed { rank: 0, failed } => Some(failed.as_str()),
            _ => None,
        });
        assert!(failed.is_some_and(|f| f.contains("called MPI_Finalize")), "{outcomes:?}");
        assert_eq!(outcomes.len(), 2);
    }

    #[test]
    fn saving_does_not_wait_for_ranks_that_are_never_imaged() {
        let mut job = Job::new(Interval::Off, not_now);
        job.tell(Event::Save { request: Some(1) });
        job.pass(Duration::from_secs(40));
        // Whatever images are under way, one rank after the other: they come back from the log.
        assert!(job.machine.ranks_stay_fenced());
    }
}
