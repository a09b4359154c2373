//! Stores: which are up, which of them have which image, and the copies that are made until as many
//! stores have it as are promised. An image that lay only in a store that is lost does not count
//! any more; a store that is lost stays lost, whatever is still heard of it.

use super::counting::Counting;
use super::schedule::Schedule;
use super::stores::{copy_image, discard};
use crate::machine::outbox::consequence::Consequence;
use crate::machine::outbox::Outbox;
use crate::machine::ranks::kept::KeptImage;
use crate::machine::ranks::Ranks;
use crate::machine::timeouts::STORE_TIMEOUT;
use crate::record::{list, Record};
use eyrie_store::role::{StoreCommand, Stored};
use eyrie_wire::{ImageId, Rank, RankInstance, StoreId};

impl Counting<'_> {
    /// A store more can be used: images of which copies are missing are copied to it.
    pub fn store_up(&mut self, store: StoreId) {
        if self.stores.add(store) {
            self.want_copies();
        }
    }

    /// A store is gone. Ranks whose only image was there are captured at once.
    pub fn store_lost(&mut self, store: StoreId) {
        if !self.stores.lose(store) {
            return;
        }
        if self.stores.is_archive(store) {
            self.out.follows(Consequence::ArchiveLost);
        }
        let now = self.out.now();
        let mut without = Vec::new();
        for rank in self.ranks.numbers() {
            let r = &mut self.ranks[rank];
            if r.images_mut().lose_store(store) && r.is_living() {
                without.push(rank);
            }
            let instance = r.instance();
            let Some(capture) = r.capture_mut() else { continue };
            if capture.lose_store(store) {
                let image = capture.image();
                let cause = format!("store {store} is lost");
                self.capture_failed(instance, image, cause, true, now);
                self.schedule.want(rank, now);
            }
        }
        if !without.is_empty() {
            let text = format!("with store {store} all images of {} are lost", list(&without));
            self.out.record(Record::Note { text });
        }
        for rank in without {
            self.schedule.want(rank, now);
        }
        self.want_copies();
    }

    /// Has those images copied of which copies are missing, the newest of all ranks first.
    pub fn want_copies(&mut self) {
        for age in 0..3 {
            self.ranks.numbers().into_iter().for_each(|rank| self.want_copies_of(rank, age));
        }
    }

    /// Has an image of this rank copied when copies of it are missing. `age`: 0 for one that is
    /// being taken, then from the newest that counts on.
    fn want_copies_of(&mut self, rank: Rank, age: usize) {
        let r = &self.ranks[rank];
        let found = match age {
            0 => r
                .capture()
                .filter(|c| c.stored().is_some())
                .map(|c| (r.instance(), c.image(), c.copies())),
            _ if !r.is_living() => None,
            _ => r.images().iter().rev().nth(age - 1).map(|kept| {
                let KeptImage { image, instance, copies, .. } = kept;
                (*instance, image.image, copies)
            }),
        };
        let Some((instance, image, mut copies)) = found.map(|(i, n, c)| (i, n, c.clone())) else {
            return;
        };
        while copies.expected() < self.roles.promised_copies(self.config) {
            let (Some(from), Some(store)) =
                (copies.source(rank, None), self.choice().store_for(rank, &copies))
            else {
                break;
            };
            copies.order(store);
            copy_image(self.out, store, from, instance, image);
        }
        if let Some(known) = self.ranks.copies_mut(instance, image) {
            *known = copies;
        }
    }

    /// A store has an image whole. It is of use when it counts already, or shows an incarnation
    /// that is still the rank's: a later incarnation may have taken another way since.
    pub fn image_stored(&mut self, store: StoreId, instance: RankInstance, stored: Stored) {
        if !self.stores.is_up(store) {
            return;
        }
        let rank = instance.rank;
        let image = stored.image;
        let mut came = false;
        if let Some(capture) = self.ranks.capture_of(instance, image).filter(|c| c.store() == store)
        {
            capture.store_whole(stored, self.out.now() + STORE_TIMEOUT);
            came = true;
        }
        let Some(copies) = self.ranks.copies_mut(instance, image) else {
            return self.out.send_store(store, StoreCommand::Discard { rank, image });
        };
        if copies.arrive(store, came) {
            self.want_copies_of(rank, 0);
            self.count_image(instance, image);
        } else if !copies.has(store) {
            self.out.send_store(store, StoreCommand::Discard { rank, image });
        }
    }

    /// A store could not take an image in, or copy it. One that counts already has a copy less than
    /// promised: a new one is taken.
    pub fn image_failed(
        &mut self,
        store: StoreId,
        instance: RankInstance,
        image: ImageId,
        reason: String,
    ) {
        if self.stores.is_archive(store) {
            return self.out.follows(Consequence::NotArchived { instance, image, cause: reason });
        }
        let uploaded = self.ranks.capture_of(instance, image).is_some_and(|c| c.store() == store);
        let copies = self.ranks.copies_mut(instance, image);
        let copied = copies.is_some_and(|copies| copies.copy_failed(store));
        if self.ranks.capture_of(instance, image).is_some() {
            if uploaded || copied {
                // A store says this itself when no agent was left to hear it: one that is there
                // tells, with the rank's own reason. What is left is a rank that has died.
                self.capture_refused(instance, image, reason, uploaded);
            }
        } else if copied {
            self.out.note(reason);
            self.schedule.want(instance.rank, self.out.now());
        }
    }
}

/// The copies of an image in all stores, or in this one, cannot be used.
pub fn drop_copies(
    out: &mut Outbox,
    ranks: &mut Ranks,
    schedule: &mut Schedule,
    (rank, image): (Rank, ImageId),
    only: Option<StoreId>,
) {
    let dropped = ranks[rank].images_mut().drop_copies(image, only);
    let Some((bad, is_left)) = dropped else { return };
    if is_left {
        // A new image soon has all copies.
        schedule.want(rank, out.now());
    }
    discard(out, rank, image, &bad);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{said, Command, Config, Event, Machine, Source, ToPeer};
    use eyrie_interface::Order;
    use eyrie_router::RouterCommand;
    use eyrie_wire::control::{Ending, MpiStage, RankReport, StartFault, StoreAt};
    use eyrie_wire::{Incarnation, NodeId, RouterId};
    use std::time::Duration;

    /// A machine whose ranks run, and the time.
    struct Running {
        machine: Machine,
        now: Duration,
    }

    fn first(rank: Rank) -> RankInstance {
        RankInstance { rank, incarnation: Incarnation(1) }
    }

    impl Running {
        fn new(stores: u32, image_copies: u32) -> Running {
            let machine = Machine::new(Config {
                ranks: 2,
                start: vec![NodeId(0), NodeId(0)],
                stores,
                image_copies,
                checkpoint_order: Order::Batch,
                ..Config::of_one_rank()
            });
            let mut running = Running { machine, now: Duration::ZERO };
            running.handle(said::joined(NodeId(0)));
            (0..2).for_each(|rank| running.goes_on(first(Rank(rank))));
            running
        }

        fn handle(&mut self, event: Event) -> Vec<Command> {
            self.now += Duration::from_millis(1);
            let commands = self.machine.handle(self.now, event);
            let shown = |c: &Command| matches!(c, Command::Record(_) | Command::Answer { .. });
            commands.into_iter().filter(|c| !shown(c) && !said::confirms(c)).collect()
        }

        fn goes_on(&mut self, instance: RankInstance) {
            let fetched = Duration::ZERO;
            let restored = Duration::ZERO;
            self.handle(said::rank(instance, RankReport::Started { fetched, restored }));
            self.handle(said::rank(instance, RankReport::ProviderLoaded));
        }

        /// Asks for a checkpoint; returns the image and the store that it goes to.
        fn capture(&mut self, rank: Rank) -> (ImageId, StoreId) {
            let asked = self.handle(Event::Checkpoint { request: 1, rank: Some(rank) });
            let (_, Source { image, store }) = captured(&asked);
            (image, store)
        }

        fn stored(&mut self, store: StoreId, rank: Rank, image: ImageId) -> Vec<Command> {
            let rsn = 10 * image.0;
            let image = Stored {
                image,
                clock: rsn,
                rsn,
                observed: 0,
                stdin: 0,
                bytes: 1000,
                file_bytes: 0,
            };
            self.handle(said::stored(store, first(rank), image))
        }

        fn checked(&mut self, rank: Rank, image: ImageId) -> Vec<Command> {
            let output = [0; 2];
            self.handle(said::rank(first(rank), RankReport::ImageUsable { image, output }))
        }

        /// A checkpoint that counts, in both stores.
        fn imaged(&mut self, rank: Rank) -> ImageId {
            let (image, store) = self.capture(rank);
            self.stored(store, rank, image);
            self.checked(rank, image);
            self.stored(StoreId(1 - store.0), rank, image);
            assert_eq!(self.images(rank).last(), Some(&image));
            image
        }

        fn images(&self, rank: Rank) -> Vec<ImageId> {
            self.machine.ranks[rank].images().iter().map(|i| i.image.image).collect()
        }

        /// The rank dies; returns where its next incarnation comes from.
        fn dies(&mut self, instance: RankInstance) -> (RankInstance, Option<Source>) {
            let ending = Ending::Signal(libc::SIGKILL);
            self.handle(said::rank(
                instance,
                RankReport::Exited { ending, stage: MpiStage::Within },
            ));
            self.fenced(RankInstance { incarnation: instance.incarnation.next(), ..instance })
        }

        fn fenced(&mut self, instance: RankInstance) -> (RankInstance, Option<Source>) {
            let told = self.handle(said::fenced(RouterId(0), instance, 0));
            let start = told.iter().find_map(said::start);
            let (_, instance, from) = start.unwrap_or_else(|| panic!("{told:?}"));
            (instance, from)
        }
    }

    /// The capture that is all of this.
    fn captured(commands: &[Command]) -> (RankInstance, Source) {
        let all: Vec<_> = commands.iter().map(said::capture).collect();
        let [Some(captured)] = all[..] else { panic!("{commands:?}") };
        captured
    }

    fn copy(store: StoreId, from: StoreId, rank: Rank, image: ImageId) -> Command {
        let from = StoreAt { store: from, addr: None };
        let copy = StoreCommand::Copy { instance: first(rank), image, from };
        Command::Send(ToPeer::Store(store, copy))
    }

    #[test]
    fn an_image_counts_when_all_copies_are_there_and_its_agent_has_checked_it() {
        for checked_first in [true, false] {
            let mut job = Running::new(2, 2);
            let (image, store) = job.capture(Rank(1));
            assert_eq!(store, StoreId(1), "ranks go round the stores");
            assert_eq!(
                job.stored(StoreId(1), Rank(1), image),
                [copy(StoreId(0), StoreId(1), Rank(1), image)]
            );
            if checked_first {
                assert!(job.checked(Rank(1), image).is_empty() && job.images(Rank(1)).is_empty());
                job.stored(StoreId(0), Rank(1), image);
            } else {
                assert!(
                    job.stored(StoreId(0), Rank(1), image).is_empty()
                        && job.images(Rank(1)).is_empty()
                );
                job.checked(Rank(1), image);
            }
            assert_eq!(job.images(Rank(1)), [image]);
        }
    }

    #[test]
    fn only_then_are_older_images_discarded_everywhere_and_logs_truncated() {
        let mut job = Running::new(2, 2);
        let images = [job.imaged(Rank(0)), job.imaged(Rank(0))];
        let (third, _) = job.capture(Rank(0));
        job.stored(StoreId(0), Rank(0), third);
        assert!(job.checked(Rank(0), third).is_empty());
        let discard = |store| said::discard(store, Rank(0), images[0]);
        let clock = 10 * images[1].0;
        let rsn = 10 * images[1].0;
        let truncate = RouterCommand::Truncate { rank: Rank(0), clock, rsn, observed: 0 };
        let truncate = Command::Send(ToPeer::Routers(truncate));
        let told = job.stored(StoreId(1), Rank(0), third);
        assert_eq!(told[..3], [discard(StoreId(0)), discard(StoreId(1)), truncate]);
    }

    #[test]
    fn a_checkpoint_that_cannot_be_copied_fails_and_leaves_nothing() {
        let mut job = Running::new(2, 2);
        let (image, _) = job.capture(Rank(0));
        job.stored(StoreId(0), Rank(0), image);
        let instance = first(Rank(0));
        let reason = "the disk is full".to_string();
        let told = job.handle(said::failed(StoreId(1), instance, image, reason));
        assert_eq!(told[0], said::discard(StoreId(0), Rank(0), image));
        assert!(job.checked(Rank(0), image).is_empty() && job.images(Rank(0)).is_empty());
        // What comes of the copy all the same is not kept.
        assert_eq!(
            job.stored(StoreId(1), Rank(0), image),
            [said::discard(StoreId(1), Rank(0), image)]
        );
    }

    #[test]
    fn what_a_lost_store_had_is_copied_to_the_next_newest_first() {
        let mut job = Running::new(2, 2);
        let older = [job.imaged(Rank(0)), job.imaged(Rank(1))];
        let newer = [job.imaged(Rank(0)), job.imaged(Rank(1))];
        let (taken, store) = job.capture(Rank(0));
        assert_eq!(store, StoreId(0));
        job.stored(StoreId(0), Rank(0), taken);
        assert!(job.handle(Event::StoreLost { store: StoreId(1) }).is_empty());
        assert_eq!(
            (job.images(Rank(0)), job.images(Rank(1))),
            (vec![older[0], newer[0]], vec![older[1], newer[1]])
        );
        // Nothing of a lost store counts, whatever is heard of it.
        assert!(
            job.stored(StoreId(1), Rank(0), taken).is_empty()
                && job.handle(said::store_up(StoreId(1))).is_empty()
        );
        let copies = job.handle(said::store_up(StoreId(2)));
        assert_eq!(
            copies,
            [
                copy(StoreId(2), StoreId(0), Rank(0), taken),
                copy(StoreId(2), StoreId(0), Rank(0), newer[0]),
                copy(StoreId(2), StoreId(0), Rank(1), newer[1]),
                copy(StoreId(2), StoreId(0), Rank(0), older[0]),
                copy(StoreId(2), StoreId(0), Rank(1), older[1]),
            ]
        );
        assert!(job.stored(StoreId(2), Rank(1), newer[1]).is_empty());
        // One that cannot be copied is replaced by a new one.
        let reason = "chunk 3 is damaged".to_string();
        let instance = first(Rank(1));
        let image = older[1];
        let told = job.handle(said::failed(StoreId(2), instance, image, reason));
        assert_eq!(captured(&told).0.rank, Rank(1));
        let told = job.handle(Event::StoreLost { store: StoreId(0) });
        let (instance, Source { store, .. }) = captured(&told);
        assert_eq!((instance, store), (first(Rank(0)), StoreId(2)));
        assert_eq!((job.images(Rank(0)), job.images(Rank(1))), (vec![], vec![newer[1]]));
    }

    #[test]
    fn ranks_whose_only_image_is_lost_are_captured_at_once() {
        let mut job = Running::new(1, 1);
        let (image, _) = job.capture(Rank(0));
        job.stored(StoreId(0), Rank(0), image);
        job.checked(Rank(0), image);
        let (under_way, _) = job.capture(Rank(1));
        assert!(job.handle(Event::StoreLost { store: StoreId(0) }).is_empty(), "there is no store");
        assert!(
            job.images(Rank(0)).is_empty() && job.stored(StoreId(0), Rank(1), under_way).is_empty()
        );
        let mut told = job.handle(said::store_up(StoreId(1)));
        job.now += Duration::from_secs(3);
        told.extend(job.handle(Event::Tick));
        let captured = |rank| {
            let captures = told.iter().filter_map(said::capture);
            captures.filter(|(of, at)| of.rank == rank && at.store == StoreId(1)).count() > 0
        };
        assert!(captured(Rank(0)) && captured(Rank(1)), "{told:?}");
    }

    #[test]
    fn a_copy_that_cannot_be_used_leaves_the_other() {
        let mut job = Running::new(2, 2);
        let image = job.imaged(Rank(0));
        let (instance, from) = job.dies(first(Rank(0)));
        assert_eq!(from, Some(Source { image, store: StoreId(0) }));
        let fail = |fault| RankReport::StartFailed { reason: "r".into(), fault };
        // It was not the image's fault: another store is tried first.
        job.handle(said::rank(instance, fail(StartFault::Attempt)));
        let (instance, from) =
            job.fenced(RankInstance { rank: Rank(0), incarnation: Incarnation(3) });
        assert_eq!(from, Some(Source { image, store: StoreId(1) }));
        let told = job.handle(said::rank(instance, fail(StartFault::Image)));
        assert!(told.contains(&said::discard(StoreId(1), Rank(0), image)), "{told:?}");
        let (instance, from) =
            job.fenced(RankInstance { rank: Rank(0), incarnation: Incarnation(4) });
        assert_eq!(from, Some(Source { image, store: StoreId(0) }));
        // It is imaged anew as soon as it runs, since this one has a copy less than promised.
        job.goes_on(instance);
        job.now += Duration::from_secs(1);
        let told = job.handle(Event::Tick);
        assert_eq!(captured(&told).1.image, ImageId(2));
    }
}
