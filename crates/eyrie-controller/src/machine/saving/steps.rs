//! Saving a job, so that it can be gone on with when all of its hosts are gone: an image of each
//! rank; then all ranks are fenced as if they had died, then the routers save what they hold. What
//! cannot be saved goes on: its ranks come back as after a death. Nothing of a saved job may run
//! on.
//!
//! Where all stores are on nodes, there is an archive: a store beside the controller, in the
//! directory that outlives the job. It is handed no images; those that the job is saved with are
//! copied there while its ranks run, so that they stand still only while routers save what they
//! hold. Meanwhile no image is taken but of ranks that need one.

use super::phase::{Phase, Saving, Step};
use crate::machine::config::Config;
use crate::machine::images::overdue::Overdue;
use crate::machine::images::schedule::Schedule;
use crate::machine::images::stores::{copy_image, SAVED};
use crate::machine::io::Command;
use crate::machine::outbox::consequence::Consequence;
use crate::machine::outbox::Outbox;
use crate::machine::ranks::entry::RankEntry;
use crate::machine::ranks::Ranks;
use crate::machine::recovery::stop::{stop_of, Stop};
use crate::machine::roles::Roles;
use crate::machine::state::RankStateName;
use crate::machine::timeouts::WRITE_TIMEOUT;
use crate::machine::users::answer::{Answer, RequestId};
use crate::record::Record;
use eyrie_wire::{ImageId, Rank, RankInstance, RouterId};
use std::collections::BTreeSet;
use std::time::Duration;

/// Exit code of a job that was saved: sysexits' EX_TEMPFAIL, try again.
pub const SAVED_CODE: i32 = 75;
/// How long ranks may take that cannot be imaged just now: then an older image and the log must do.
const IMAGES_TIMEOUT: Duration = Duration::from_secs(30);
/// Copies that may fail: their source may just be lost.
const FAILURES_MAX: u32 = 16;

/// The steps of saving a job, and of giving it up.
pub struct Saver<'a> {
    pub config: &'a Config,
    pub out: &'a mut Outbox,
    pub ranks: &'a mut Ranks,
    pub roles: &'a Roles,
    pub schedule: &'a mut Schedule,
    pub overdue: &'a mut Overdue,
    pub saving: &'a mut Saving,
}

impl Saver<'_> {
    fn stop(&mut self) -> Stop<'_> {
        stop_of!(self)
    }

    /// The job is to be saved.
    pub fn save_asked(&mut self, request: Option<RequestId>) {
        let refused = match (self.saving.is_possible(), self.out.has_started()) {
            (false, _) if self.config.archive => {
                "it cannot be saved: the host of its controller does not have its --images directory"
            }
            (false, _) => "it cannot be saved: it was not started with --images",
            (true, false) => "it is just starting: it can be saved when its ranks run",
            (true, true) => "",
        };
        if !refused.is_empty() {
            return self.out.refuse(request, refused.into());
        }
        self.saving.join(request);
        if self.saving.is_going_on() {
            return;
        }
        let now = self.out.now();
        let waiting: BTreeSet<Rank> = self.ranks.unfinished().collect();
        waiting.iter().for_each(|rank| self.schedule.want(*rank, now));
        self.saving.begin(now, waiting, now + IMAGES_TIMEOUT);
        self.out.record(Record::Saving);
    }

    /// The rank could not be imaged. `passing`: for a reason that passes, so that it is tried
    /// `again` then; else its older image must do.
    pub fn not_imaged(&mut self, rank: Rank, passing: bool, again: Duration) {
        if passing && self.saving.is_imaging() {
            self.schedule.retry(rank, again);
        } else if !passing {
            self.saving.do_without_image(rank);
        }
    }

    /// Goes on with saving, as far as what it waits for has come.
    pub fn go_on_saving(&mut self) {
        let now = self.out.now();
        match self.saving.phase() {
            Phase::Running | Phase::Saved => {}
            Phase::Images { waiting, until } => {
                let here = |rank: &Rank| &self.ranks[*rank];
                let mut open = waiting.iter().filter(|r| !here(r).is(RankStateName::Finished));
                let over = if now >= *until {
                    !open.any(|rank| here(rank).capture().is_some())
                } else {
                    open.next().is_none()
                };
                if over && self.config.archive {
                    self.begin_to_archive();
                } else if over {
                    self.stop_ranks();
                }
            }
            Phase::Copies { .. } => self.go_on_archiving(),
            Phase::Fences { waiting } => {
                if waiting.is_empty() {
                    let waiting = RouterId::first(self.config.routers).collect();
                    self.saving.advance(Step::Fenced { waiting, until: now + WRITE_TIMEOUT });
                    self.out.push(Command::SaveRouters);
                }
            }
            Phase::Routers { until, .. } | Phase::Rest { until, .. } => {
                if now >= *until {
                    let waited = eyrie_units::time(WRITE_TIMEOUT);
                    self.give_up(&format!("it is not written after {waited}"));
                }
            }
        }
    }

    /// No rank has to be imaged any more: they are fenced, as if they had died.
    pub fn stop_ranks(&mut self) {
        if let Some(why) = self.ranks.no_way_back() {
            return self.give_up(&why);
        }
        let all: Vec<Rank> = self.ranks.unfinished().collect();
        let waiting = all.iter().copied().filter(|rank| !self.ranks.is_fenced(*rank)).collect();
        self.saving.advance(Step::Stopped { waiting });
        for rank in all {
            self.stop().stop(rank);
        }
    }

    /// Every router refuses older incarnations of the rank.
    pub fn fenced(&mut self, rank: Rank) {
        self.saving.fenced(rank);
    }

    pub fn router_saved(&mut self, router: RouterId, saved: Result<u64, String>) {
        let until = self.out.now() + WRITE_TIMEOUT;
        match saved {
            Err(why) if self.saving.waits_for_routers() => {
                self.give_up(&format!("router {router}: {why}"))
            }
            Err(_) => {}
            Ok(bytes) => {
                if let Some(bytes) = self.saving.router_saved(router, bytes) {
                    // Images may have been lost with their store meanwhile.
                    if let Some(why) = self.ranks.no_way_back() {
                        return self.give_up(&why);
                    }
                    self.saving.advance(Step::RoutersSaved { bytes, until });
                    self.out.push(Command::SaveJob);
                }
            }
        }
    }

    pub fn job_saved(&mut self, saved: Result<String, String>) {
        let Phase::Rest { bytes, .. } = *self.saving.phase() else { return };
        match saved {
            Err(why) => self.give_up(&why),
            Ok(dir) => {
                self.saving.advance(Step::Written);
                let cause = format!("it is saved: `eyrie run --resume-from {dir}` goes on with it");
                self.out.record(Record::Saved { dir, bytes });
                for request in self.saving.take_users() {
                    self.out.answer(request, Answer::Accepted);
                }
                self.out.end(SAVED_CODE, Some(cause));
            }
        }
    }

    /// The job cannot be saved, and goes on.
    pub fn give_up(&mut self, why: &str) {
        if !self.saving.advance(Step::GivenUp) {
            return;
        }
        let text = format!("the job could not be saved, and goes on: {why}");
        for request in self.saving.take_users() {
            self.out.answer(request, Answer::Refused(text.clone()));
        }
        self.out.record(Record::Note { text });
        let fenced = self.ranks.iter().filter(|r| self.ranks.is_fenced(r.rank()));
        self.out.follows(Consequence::RanksReturn(fenced.map(RankEntry::instance).collect()));
    }

    /// Each rank has the image that the job is saved with: all that the archive lacks is copied.
    pub fn begin_to_archive(&mut self) {
        let until = self.out.now() + WRITE_TIMEOUT;
        let waiting = self.not_in_archive();
        waiting.iter().for_each(|(rank, image)| self.archive(*rank, *image));
        self.saving.advance(Step::ImagesMissing { waiting, until });
    }

    /// Images that count, and are not in the archive.
    fn not_in_archive(&self) -> BTreeSet<(Rank, ImageId)> {
        let images =
            self.ranks.living().flat_map(|r| r.images().iter().map(move |kept| (r.rank(), kept)));
        let missing = images.filter(|(_, kept)| !kept.copies.has(SAVED));
        missing.map(|(rank, kept)| (rank, kept.image.image)).collect()
    }

    fn archive(&mut self, rank: Rank, image: ImageId) {
        let images = self.ranks[rank].images_mut();
        let Some(instance) = images.get(image).map(|kept| kept.instance) else { return };
        let Some(copies) = images.copies_mut(image) else { return };
        let Some(from) = copies.source(rank, None) else { return };
        if copies.order(SAVED) {
            copy_image(self.out, SAVED, from, instance, image);
        }
    }

    /// When all are there, and no router is new to a rank, the ranks are stopped.
    pub fn go_on_archiving(&mut self) {
        let now = self.out.now();
        let ranks = &*self.ranks;
        let Phase::Copies { until, .. } = *self.saving.phase() else { return };
        let is_missing = self.saving.lacks_images(|rank, image| {
            ranks[rank].images().get(image).is_some_and(|kept| !kept.copies.has(SAVED))
        });
        if now >= until {
            let waited = eyrie_units::time(WRITE_TIMEOUT);
            return self.give_up(&format!("its images are not copied after {waited}"));
        }
        if is_missing || !self.roles.ranks_can_stop(self.config, self.ranks) {
            return;
        }
        // Ranks that lost their router have had a new one since.
        if self.not_in_archive().is_empty() {
            self.stop_ranks();
        } else {
            self.begin_to_archive();
        }
    }

    /// Copies that were on their way there are not made any more: the archive was the last
    /// controller's.
    pub fn forget_copies_to_archive(&mut self) {
        if self.config.archive {
            self.ranks.iter_mut().for_each(|r| r.images_mut().cancel_copies_to(SAVED));
        }
    }

    /// An image could not be copied to the archive.
    pub fn not_archived(&mut self, instance: RankInstance, image: ImageId, reason: &str) {
        if let Some(copies) = self.ranks.copies_mut(instance, image) {
            copies.cancel(SAVED);
        }
        let Some(failures) = self.saving.count_failed_copy() else { return };
        if failures > FAILURES_MAX {
            self.give_up(reason);
        } else {
            self.archive(instance.rank, image);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{said, Config, Event, Machine, Source};
    use eyrie_store::role::Stored;
    use eyrie_wire::control::{RankReport, ToAgent};
    use eyrie_wire::role_address::Addr;
    use eyrie_wire::StoreId;
    use eyrie_wire::{Incarnation, NodeId};
    use std::time::Duration;

    const RANK: RankInstance = RankInstance { rank: Rank(0), incarnation: Incarnation(1) };

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
            (0..3).for_each(|node| drop(job.handle(said::joined(NodeId(node)))));
            assert!(job.machine.has_started());
            let fetched = Duration::ZERO;
            let restored = Duration::ZERO;
            job.handle(said::rank(RANK, RankReport::Started { fetched, restored }));
            job.handle(said::rank(RANK, RankReport::ProviderLoaded));
            job
        }

        /// Roles that are started listen at once.
        fn handle(&mut self, event: Event) -> Vec<Command> {
            self.now += Duration::from_millis(1);
            let mut commands = self.machine.handle(self.now, event);
            for command in commands.clone() {
                let Command::StartRole { role, .. } = command else { continue };
                let addr = Addr::Unix(format!("/{role}").into());
                commands.extend(self.handle(said::listens(role, addr)));
            }
            let shown = |c: &Command| matches!(c, Command::Record(_) | Command::Answer { .. });
            commands.retain(|c| !shown(c) && !said::confirms(c));
            commands
        }

        fn stored(&mut self, store: StoreId, image: ImageId) -> Vec<Command> {
            let image = Stored {
                image,
                clock: image.0,
                rsn: image.0,
                observed: 0,
                stdin: 0,
                bytes: 1000,
                file_bytes: 0,
            };
            self.handle(said::stored(store, RANK, image))
        }

        /// The image that is being taken is whole in both stores; returns what follows.
        fn imaged(&mut self, asked: &[Command]) -> Vec<Command> {
            let [(_, Source { image, store })] =
                asked.iter().map(|c| said::capture(c).unwrap()).collect::<Vec<_>>()[..]
            else {
                panic!("{asked:?}")
            };
            self.stored(store, image);
            self.handle(said::rank(RANK, RankReport::ImageUsable { image, output: [0; 2] }));
            self.stored(StoreId(3 - store.0), image)
        }

        fn save(&mut self) -> Vec<Command> {
            self.handle(Event::Save { request: None })
        }
    }

    /// Which image is copied to the archive, and from where.
    fn to_archive(commands: &[Command]) -> Vec<(ImageId, StoreId)> {
        let copy = |c: &Command| match said::copy(c) {
            Some((SAVED, from, _, image)) => Some((image, from)),
            _ => None,
        };
        commands.iter().filter_map(copy).collect()
    }

    #[test]
    fn ranks_are_stopped_when_all_their_images_are_in_the_archive() {
        let mut job = Job::new();
        let asked = job.handle(Event::Checkpoint { request: 1, rank: None });
        job.imaged(&asked);
        let asked = job.save();
        let copied = job.imaged(&asked);
        assert_eq!(to_archive(&copied), [1, 2].map(|image| (ImageId(image), StoreId(1))));
        // No image is taken meanwhile.
        assert!(job.handle(Event::Checkpoint { request: 2, rank: None }).is_empty());
        assert!(job.stored(SAVED, ImageId(2)).is_empty());
        let stopped = job.stored(SAVED, ImageId(1));
        let kill = |c: &Command| matches!(said::to_agent(c), Some((_, ToAgent::Kill(RANK))));
        assert!(stopped.iter().any(kill), "{stopped:?}");
        let saved = job.machine.saved();
        assert_eq!(saved.images(), BTreeSet::from([1, 2].map(|image| (Rank(0), ImageId(image)))));
        assert_eq!(saved.primaries, [0].map(RouterId));
    }

    #[test]
    fn a_copy_that_fails_is_made_again_and_too_many_end_the_saving() {
        let mut job = Job::new();
        let asked = job.save();
        let mut copied = job.imaged(&asked);
        for _ in 0..=FAILURES_MAX {
            assert_eq!(to_archive(&copied), [(ImageId(1), StoreId(1))]);
            let instance = RANK;
            let image = 1;
            let reason = "the disk is full".to_string();
            copied = job.handle(said::failed(SAVED, instance, ImageId(image), reason));
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
        job.handle(Event::Resumed);
        assert!(!job.machine.is_saving());
        let asked = job.save();
        assert_eq!(
            to_archive(&job.imaged(&asked)),
            [1, 2].map(|image| (ImageId(image), StoreId(1)))
        );
        // Without the directory it cannot be saved at all.
        job.handle(Event::Resumed);
        job.handle(Event::StoreLost { store: SAVED });
        assert!(job.save().is_empty() && !job.machine.is_saving());
    }
}
