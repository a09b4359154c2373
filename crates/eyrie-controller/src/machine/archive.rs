//! The archive: a store beside the controller, in the directory that outlives the job, where all
//! others are on nodes. It is handed no images; those that a job is saved with are copied there
//! while its ranks run, so that they stand still only while routers save what they hold. Meanwhile
//! no image is taken but of ranks that need one.

use super::io::{Command, StoreId};
use super::reactor::Machine;
use super::save::WRITE_TIMEOUT;
use super::saved::STORE;
use super::saving::{Phase, Saving};
use super::state::RankStateName;
use eyrie_wire::{ImageId, Rank, RankInstance};
use std::collections::BTreeSet;

/// Copies that may fail: their source may just be lost.
const FAILURES_MAX: u32 = 16;

impl Machine {
    pub(super) fn is_archive(&self, store: StoreId) -> bool {
        self.config.archive && store == STORE
    }

    /// Whether the images are being copied that the job is saved with.
    pub(super) fn images_are_settled(&self) -> bool {
        matches!(self.saving, Some(Saving { phase: Phase::Copies { .. }, .. }))
    }

    /// Each rank has the image that the job is saved with: all that the archive lacks is copied.
    pub(super) fn begin_to_archive(&mut self) {
        let until = self.now + WRITE_TIMEOUT;
        let waiting = self.not_in_archive();
        waiting.iter().for_each(|(rank, image)| self.archive(*rank, *image));
        self.set_phase(Phase::Copies { waiting, failures: 0, until });
    }

    /// Images that count, and are not in the archive.
    fn not_in_archive(&self) -> BTreeSet<(Rank, ImageId)> {
        let living = self.ranks.iter().filter(|r| !r.is(RankStateName::Finished));
        let images = living.flat_map(|r| r.images.iter().map(move |kept| (r.rank, kept)));
        let missing = images.filter(|(_, kept)| !kept.copies.stores.contains(&STORE));
        missing.map(|(rank, kept)| (rank, kept.image.image)).collect()
    }

    fn archive(&mut self, rank: Rank, image: ImageId) {
        let kept = self.ranks[rank as usize].images.iter_mut();
        let Some(kept) = kept.into_iter().find(|kept| kept.image.image == image) else { return };
        let Some(from) = kept.copies.source(rank, None) else { return };
        let instance = kept.instance;
        if kept.copies.coming.insert(STORE) {
            self.commands.push(Command::CopyImage { store: STORE, from, instance, image });
        }
    }

    /// When all are there, and no router is new to a rank, the ranks are stopped.
    pub(super) fn go_on_archiving(&mut self) {
        let now = self.now;
        let Some(Saving { phase: Phase::Copies { waiting, until, .. }, .. }) = &mut self.saving
        else {
            return;
        };
        let (ranks, until) = (&self.ranks, *until);
        let lacks = |(rank, image): &(Rank, ImageId)| {
            let mut images = ranks[*rank as usize].images.iter();
            let kept = images.find(|kept| kept.image.image == *image);
            kept.is_some_and(|kept| !kept.copies.stores.contains(&STORE))
        };
        while waiting.first().is_some_and(|first| !lacks(first)) {
            waiting.pop_first();
        }
        if now >= until {
            let waited = eyrie_units::time(WRITE_TIMEOUT);
            return self.give_up_saving(&format!("its images are not copied after {waited}"));
        }
        if !waiting.is_empty() || !self.ranks_can_stop() {
            return;
        }
        // Ranks that lost their router have had a new one since.
        match self.not_in_archive().is_empty() {
            true => self.stop_ranks(),
            false => self.begin_to_archive(),
        }
    }

    /// Copies that were on their way there are not made any more: the archive was the last
    /// controller's.
    pub(super) fn forget_copies_to_archive(&mut self) {
        let images = self.ranks.iter_mut().flat_map(|r| &mut r.images);
        for kept in images.filter(|_| self.config.archive) {
            kept.copies.coming.remove(&STORE);
        }
    }

    /// An image could not be copied to the archive.
    pub(super) fn not_archived(&mut self, instance: RankInstance, image: ImageId, reason: &str) {
        if let Some(copies) = self.copies_mut(instance, image) {
            copies.coming.remove(&STORE);
        }
        let Some(Saving { phase: Phase::Copies { failures, .. }, .. }) = &mut self.saving else {
            return;
        };
        *failures += 1;
        match *failures > FAILURES_MAX {
            true => self.give_up_saving(reason),
            false => self.archive(instance.rank, image),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Config, Event, Image};
    use eyrie_transport::Addr;
    use eyrie_wire::control::RankReport;
    use std::time::Duration;

    const RANK: RankInstance = RankInstance { rank: 0, incarnation: 1 };

    /// A machine of three nodes whose only rank runs, and the time.
    struct Job {
        machine: Machine,
        now: Duration,
    }

    impl Job {
        fn new() -> Job {
            let config = Config {
                nodes: 3,
                routers: 2,
                roles_on_nodes: true,
                stores: 2,
                image_copies: 2,
                can_be_saved: true,
                archive: true,
                ..Config::of_one_rank()
            };
            let mut job = Job { machine: Machine::new(config), now: Duration::ZERO };
            (0..3).for_each(|node| drop(job.tell(Event::AgentUp(node))));
            assert!(job.machine.has_started());
            let (fetched, restored) = (Duration::ZERO, Duration::ZERO);
            job.tell(Event::Rank(RANK, RankReport::Started { fetched, restored }));
            job.tell(Event::Rank(RANK, RankReport::ProviderLoaded));
            job
        }

        /// Roles that are started listen at once.
        fn tell(&mut self, event: Event) -> Vec<Command> {
            self.now += Duration::from_millis(1);
            let mut commands = self.machine.handle(self.now, event);
            for command in commands.clone() {
                let Command::StartRole { role, .. } = command else { continue };
                let addr = Addr::Unix(format!("/{role}").into());
                commands.extend(self.tell(Event::RoleUp { role, addr }));
            }
            commands.retain(|c| !matches!(c, Command::Record(_) | Command::Answer { .. }));
            commands
        }

        fn stored(&mut self, store: StoreId, image: ImageId) -> Vec<Command> {
            let image =
                Image { image, clock: image, rsn: image, observed: 0, stdin: 0, bytes: 1000 };
            self.tell(Event::ImageStored { store, instance: RANK, image })
        }

        /// The image that is being taken is whole in both stores; returns what follows.
        fn imaged(&mut self, asked: &[Command]) -> Vec<Command> {
            let [Command::Capture { image, store, .. }] = *asked else { panic!("{asked:?}") };
            self.stored(store, image);
            self.tell(Event::Rank(RANK, RankReport::ImageUsable { image, output: [0; 2] }));
            self.stored(3 - store, image)
        }

        fn save(&mut self) -> Vec<Command> {
            self.tell(Event::Save { request: None })
        }
    }

    /// Which image is copied to the archive, and from where.
    fn to_archive(commands: &[Command]) -> Vec<(ImageId, StoreId)> {
        let copy = |c: &Command| match *c {
            Command::CopyImage { store: STORE, from, image, .. } => Some((image, from)),
            _ => None,
        };
        commands.iter().filter_map(copy).collect()
    }

    #[test]
    fn ranks_are_stopped_when_all_their_images_are_in_the_archive() {
        let mut job = Job::new();
        let asked = job.tell(Event::Checkpoint { request: 1, rank: None });
        job.imaged(&asked);
        let asked = job.save();
        let copied = job.imaged(&asked);
        assert_eq!(to_archive(&copied), [(1, 1), (2, 1)]);
        // No image is taken meanwhile.
        assert!(job.tell(Event::Checkpoint { request: 2, rank: None }).is_empty());
        assert!(job.stored(STORE, 2).is_empty());
        let stopped = job.stored(STORE, 1);
        let kill = |c: &Command| matches!(c, Command::Kill { instance: RANK, .. });
        assert!(stopped.iter().any(kill), "{stopped:?}");
        let saved = job.machine.saved();
        assert_eq!(saved.images(), BTreeSet::from([(0, 1), (0, 2)]));
        assert_eq!(saved.home, [0]);
    }

    #[test]
    fn a_copy_that_fails_is_made_again_and_too_many_end_the_saving() {
        let mut job = Job::new();
        let asked = job.save();
        let mut copied = job.imaged(&asked);
        for _ in 0..=FAILURES_MAX {
            assert_eq!(to_archive(&copied), [(1, 1)]);
            let (instance, image, reason) = (RANK, 1, "the disk is full".to_string());
            copied = job.tell(Event::ImageFailed { store: STORE, instance, image, reason });
        }
        assert!(to_archive(&copied).is_empty() && !job.machine.is_saving());
        // The job goes on, and can be saved when there is room.
        let asked = job.save();
        assert_eq!(to_archive(&job.imaged(&asked)).len(), 2);
    }

    #[test]
    fn a_new_controller_gives_up_what_the_last_one_was_saving() {
        let mut job = Job::new();
        let asked = job.save();
        job.imaged(&asked);
        job.tell(Event::Resumed);
        assert!(!job.machine.is_saving());
        let asked = job.save();
        assert_eq!(to_archive(&job.imaged(&asked)), [(1, 1), (2, 1)]);
        // Without the directory it cannot be saved at all.
        job.tell(Event::Resumed);
        job.tell(Event::StoreLost { store: STORE });
        assert!(job.save().is_empty() && !job.machine.is_saving());
    }
}
