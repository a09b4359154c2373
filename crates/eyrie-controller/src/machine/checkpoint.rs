//! Checkpoints: asked for when due, counted when whole and stored in as many copies as promised and
//! all files they need were found, and where the log may be truncated then.

use super::copies::Copies;
use super::io::{Command, Image};
use super::rank::{Capture, KeptImage, RankEntry};
use super::reactor::Machine;
use super::saved::STORE;
use super::state::RankStateName;
use crate::record::Record;
use eyrie_wire::{ImageId, Rank, RankInstance};
use std::time::Duration;

/// How long a checkpoint may take until its image begins to arrive. Its agent, which sees what the
/// rank does, refuses it sooner: after half a minute when the rank will not stand still, after ten
/// minutes when it may only be slow.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(660);
/// How long one may take in all.
const STORE_TIMEOUT: Duration = Duration::from_secs(1800);
/// How soon a checkpoint that somebody waits for is tried again, when the rank could not be
/// captured just now.
pub(super) const RETRY: Duration = Duration::from_millis(200);
/// Longest wait until one is tried again whose files were gone when it was stored; the first comes
/// after [`RETRY`].
const RETRY_UNUSABLE: Duration = Duration::from_secs(10);
/// How soon a checkpoint that failed is tried again when only it can make the rank recoverable.
const RETRY_UNPROTECTED: Duration = Duration::from_secs(2);

impl Machine {
    pub(super) fn capture_due(&mut self) {
        let now = self.now;
        if !self.schedule.is_due(now) {
            return;
        }
        let waits = self.schedule.one_by_one() && !self.is_saving();
        let busy = waits && self.is_capturing();
        let settled = self.images_are_settled();
        // One after the other might keep the job from being saved for ever.
        let over = self.imaging_is_over();
        for rank in self.schedule.due(now, busy) {
            let mode = self.config.checkpoint_mode;
            let store = self.store_for(rank, &Copies::default());
            let hold = self.moves.holds(rank);
            if hold {
                self.slow(rank, 0);
            }
            let r = &mut self.ranks[rank as usize];
            let wanted = !settled || r.is_exposed();
            let can = wanted && !over && r.can_be_captured();
            let Some(store) = store.filter(|_| can) else {
                if r.is(RankStateName::Finished) {
                    self.schedule.asked(rank, now);
                } else {
                    self.schedule.retry(rank, now + RETRY);
                }
                continue;
            };
            let image = r.next_image;
            r.next_image += 1;
            let until = now + BEGIN_TIMEOUT;
            r.begin_capture(Capture {
                image,
                asked: now,
                until,
                pause: None,
                begun: false,
                store,
                stored: None,
                copies: Copies::default(),
                checked: false,
                hold,
            });
            let (instance, node) = (r.instance(), r.node);
            self.asked.insert(rank);
            self.schedule.asked(rank, now);
            self.commands.push(Command::Capture { node, instance, image, store, mode, hold });
            self.record(Record::CheckpointStarted { rank, image });
        }
    }

    /// Whether a checkpoint is under way.
    fn is_capturing(&mut self) -> bool {
        let ranks = &self.ranks;
        self.asked.retain(|rank| ranks[*rank as usize].capture().is_some());
        !self.asked.is_empty()
    }

    /// The capture of this image by this incarnation, when it is under way.
    pub(super) fn capture_of(
        &mut self,
        instance: RankInstance,
        image: ImageId,
    ) -> Option<&mut Capture> {
        self.current(instance)?.capture_mut().filter(|c| c.image == image)
    }

    pub(super) fn image_begun(&mut self, instance: RankInstance, image: ImageId) {
        let now = self.now;
        let Some(capture) = self.capture_of(instance, image) else { return };
        if !capture.begun {
            capture.begun = true;
            capture.until = now + STORE_TIMEOUT;
            self.faults_in_checkpoint(instance.rank);
        }
    }

    pub(super) fn captured(&mut self, instance: RankInstance, image: ImageId, pause: Duration) {
        let now = self.now;
        let Some(capture) = self.capture_of(instance, image) else { return };
        capture.pause = Some(pause);
        if capture.hold {
            self.stands_still(instance.rank, now.saturating_sub(pause));
        }
    }

    pub(super) fn capture_failed(
        &mut self,
        instance: RankInstance,
        image: ImageId,
        cause: String,
        passing: bool,
    ) {
        let Some(capture) = self.capture_of(instance, image).cloned() else { return };
        self.discard(instance.rank, image, &capture.copies);
        let r = &mut self.ranks[instance.rank as usize];
        r.end_capture();
        r.refused = Some(cause.clone());
        self.go_on_if_held(instance.rank, &capture);
        let exposed = self.ranks[instance.rank as usize].is_exposed();
        self.schedule.ended(instance.rank, self.now, None);
        if exposed {
            self.schedule.retry(instance.rank, self.now + RETRY_UNPROTECTED);
        }
        self.not_imaged_for_saving(instance.rank, passing);
        self.not_imaged_for_move(instance.rank, &cause, passing);
        self.summary.checkpoints_failed += 1;
        self.record(Record::CheckpointFailed { rank: instance.rank, image, cause, passing });
    }

    pub(super) fn watch_captures(&mut self) {
        let now = self.now;
        let late: Vec<(RankInstance, Capture)> = (self.ranks.iter())
            .filter_map(|r| Some((r.instance(), r.capture().filter(|c| c.until <= now)?.clone())))
            .collect();
        for (instance, capture) in late {
            let waited = if capture.begun { STORE_TIMEOUT } else { BEGIN_TIMEOUT };
            let cause = format!("{} within {}", capture.lacks(), eyrie_units::time(waited));
            self.capture_failed(instance, capture.image, cause, false);
        }
    }

    /// A file that a stored image needs is gone: it must not count, and another is taken soon.
    pub(super) fn image_unusable(&mut self, instance: RankInstance, image: ImageId, cause: String) {
        if self.capture_of(instance, image).is_none() {
            return;
        }
        self.capture_failed(instance, image, cause, true);
        let r = &mut self.ranks[instance.rank as usize];
        let pause = RETRY.saturating_mul(1 << r.unusable.min(16)).min(RETRY_UNUSABLE);
        r.unusable += 1;
        self.schedule.retry(instance.rank, self.now + pause);
    }

    pub(super) fn log_grown(&mut self, rank: Rank, bytes: u64) {
        let Some(r) = self.ranks.get(rank as usize) else { return };
        let image_bytes = r.images.last().map_or(0, |kept| kept.image.bytes);
        self.schedule.logged(rank, bytes, image_bytes);
    }

    /// The newest image may soon be of no use elsewhere.
    pub(super) fn image_wanted(&mut self, instance: RankInstance, cause: String) {
        let now = self.now;
        let Some(r) = self.current(instance) else { return };
        if r.capture().is_none() && !r.images.is_empty() {
            self.schedule.want(instance.rank, now);
            self.record(Record::CheckpointWanted { rank: instance.rank, cause });
        }
    }

    /// The agent has found all files of a stored image. May it count? Output from before it that is
    /// still on the way would be lost if the node died now, and the image would not write it again.
    pub(super) fn image_checked(
        &mut self,
        instance: RankInstance,
        image: ImageId,
        output: [u64; 2],
    ) {
        let taken = self.output.taken(instance.rank);
        if taken[0] < output[0] || taken[1] < output[1] {
            let cause = "output from before the image has not arrived yet".to_string();
            return self.capture_failed(instance, image, cause, true);
        }
        if let Some(capture) = self.capture_of(instance, image) {
            capture.checked = true;
            self.count_image(instance, image);
        }
    }

    /// Looks at all images that are being taken, whether they count by now.
    pub(super) fn count_images(&mut self) {
        let taken = |r: &RankEntry| r.capture().map(|c| (r.instance(), c.image));
        for (instance, image) in self.ranks.iter().filter_map(taken).collect::<Vec<_>>() {
            self.count_image(instance, image);
        }
    }

    /// An image counts from the moment when its agent has checked it and as many stores have it as
    /// are promised.
    pub(super) fn count_image(&mut self, instance: RankInstance, image: ImageId) {
        let promised = self.promised_copies();
        let Some(capture) = self.capture_of(instance, image) else { return };
        if !capture.checked || capture.copies.stores.len() < promised {
            return;
        }
        let capture = capture.clone();
        let Some(image) = capture.stored else { return };
        let now = self.now;
        let rank = instance.rank;
        let r = &mut self.ranks[rank as usize];
        r.end_capture();
        (r.unusable, r.imaged, r.refused) = (0, now, None);
        r.crashes.imaged(image.rsn);
        let healed = r.unprotected.is_some_and(|since| since <= capture.asked);
        if healed {
            // The log before this image has a hole: nothing older is of use.
            r.unprotected = None;
        }
        let kept = if healed { 0 } else { 1 };
        let needless = r.images.len().saturating_sub(kept);
        let needless: Vec<KeptImage> = r.images.drain(..needless).collect();
        let (asked, copies, saved) = (capture.asked, capture.copies.clone(), false);
        r.images.push(KeptImage { image, instance, asked, copies, saved });
        // The log must still reach back to the older image, for the case that the newer is damaged.
        let older = (r.images.len() == 2).then(|| r.images[0].image);
        let needed = if healed { Some(image) } else { older };
        self.imaged_for_saving(rank, capture.asked);
        let total = now - capture.asked;
        self.schedule.ended(rank, now, Some(total));
        self.summary.checkpoints += 1;
        self.summary.checkpoint_bytes += image.bytes;
        self.record(Record::Checkpoint {
            rank,
            image: image.image,
            bytes: image.bytes,
            pause: capture.pause.unwrap_or_default(),
            total,
        });
        if healed {
            self.record(Record::Protected { rank });
        }
        // Only now is it known why they are needless.
        for KeptImage { image, mut copies, saved, .. } in needless {
            if saved {
                // Somebody may have to go on from there again.
                copies.stores.remove(&STORE);
            }
            self.discard(rank, image.image, &copies);
        }
        if let Some(Image { clock, rsn, observed, stdin, .. }) = needed {
            self.ranks[rank as usize].truncated = true;
            self.commands.push(Command::Truncate { rank, clock, rsn, observed });
            if rank == 0 {
                self.commands.push(Command::TruncateStdin(stdin));
            }
        }
        self.imaged_for_move(rank, &capture);
    }
}
