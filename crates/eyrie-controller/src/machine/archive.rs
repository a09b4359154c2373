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
