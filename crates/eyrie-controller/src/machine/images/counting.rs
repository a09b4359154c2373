//! Which images count: those that are whole and stored in as many copies as promised, and whose
//! files were all found. Only then may the log be truncated, as far as no image needs it.

use super::schedule::Schedule;
use super::store_choice::StoreChoice;
use super::stores::{discard, Stores, SAVED};
use crate::machine::config::Config;
use crate::machine::io::{Command, ToPeer};
use crate::machine::moves::orders::go_on_if_held;
use crate::machine::nodes::reach::Reach;
use crate::machine::nodes::Nodes;
use crate::machine::outbox::consequence::Consequence;
use crate::machine::outbox::Outbox;
use crate::machine::output::Ledger;
use crate::machine::ranks::capture::Capture;
use crate::machine::ranks::entry::{Counted, RankEntry};
use crate::machine::ranks::kept::KeptImage;
use crate::machine::ranks::Ranks;
use crate::machine::roles::Roles;
use crate::machine::timeouts::{BEGIN_TIMEOUT, RETRY, STORE_TIMEOUT};
use crate::record::Record;
use eyrie_router::RouterCommand;
use eyrie_store::role::Stored;
use eyrie_wire::{ImageId, Rank, RankInstance};
use std::time::Duration;

/// Longest wait until one is tried again whose files were gone when it was stored; the first comes
/// after [`RETRY`].
const RETRY_UNUSABLE: Duration = Duration::from_secs(10);
/// How soon a checkpoint that failed is tried again when only it can make the rank recoverable.
const RETRY_UNPROTECTED: Duration = Duration::from_secs(2);

/// What becomes of images, and where copies of them are.
pub struct Counting<'a> {
    pub config: &'a Config,
    pub out: &'a mut Outbox,
    pub nodes: &'a Nodes,
    pub reach: &'a Reach,
    pub ranks: &'a mut Ranks,
    pub roles: &'a Roles,
    pub stores: &'a mut Stores,
    pub schedule: &'a mut Schedule,
    pub output: &'a Ledger,
}

impl Counting<'_> {
    pub fn choice(&self) -> StoreChoice<'_> {
        let reach = self.reach;
        let roles = self.roles;
        StoreChoice { stores: self.stores, reach, ranks: self.ranks, roles }
    }

    /// The image does not count. `again`: when another one is tried, if one is needed.
    pub fn capture_failed(
        &mut self,
        instance: RankInstance,
        image: ImageId,
        cause: String,
        passing: bool,
        again: Duration,
    ) {
        let RankInstance { rank, .. } = instance;
        let Some(capture) = self.ranks.capture_of(instance, image).cloned() else { return };
        discard(self.out, rank, image, capture.copies());
        let r = &mut self.ranks[rank];
        r.fail_capture(cause.clone());
        let exposed = r.is_exposed();
        go_on_if_held(self.nodes, self.ranks, self.out, rank, &capture);
        let now = self.out.now();
        self.schedule.ended(rank, now, None);
        if exposed {
            self.schedule.retry(rank, now + RETRY_UNPROTECTED);
        }
        self.out.summary_mut().checkpoints_failed += 1;
        self.out.record(Record::CheckpointFailed { rank, image, cause: cause.clone(), passing });
        self.out.follows(Consequence::ImageFailed { rank, cause, passing, again });
    }

    /// As [`Counting::capture_failed`], when another image is tried soon.
    pub fn capture_refused(
        &mut self,
        instance: RankInstance,
        image: ImageId,
        cause: String,
        passing: bool,
    ) {
        let again = self.out.now() + RETRY;
        self.capture_failed(instance, image, cause, passing, again);
    }

    /// Gives up checkpoints that take too long.
    pub fn watch_captures(&mut self) {
        let now = self.out.now();
        let late: Vec<(RankInstance, Capture)> = (self.ranks.iter())
            .filter_map(|r| Some((r.instance(), r.capture().filter(|c| c.until() <= now)?.clone())))
            .collect();
        for (instance, capture) in late {
            let waited = if capture.has_begun() { STORE_TIMEOUT } else { BEGIN_TIMEOUT };
            let cause = format!("{} within {}", capture.lacks(), eyrie_units::time(waited));
            self.capture_refused(instance, capture.image(), cause, false);
        }
    }

    /// A file that a stored image needs is gone: it must not count, and another is taken soon.
    pub fn image_unusable(&mut self, instance: RankInstance, image: ImageId, cause: String) {
        if self.ranks.capture_of(instance, image).is_none() {
            return;
        }
        let unusable = self.ranks[instance.rank].images_mut().note_unusable();
        let pause = RETRY.saturating_mul(1 << unusable.min(16)).min(RETRY_UNUSABLE);
        let again = self.out.now() + pause;
        self.capture_failed(instance, image, cause, true, again);
        self.schedule.retry(instance.rank, again);
    }

    /// The agent has found all files of a stored image. May it count? Output from before it that is
    /// still on the way would be lost if the node died now, and the image would not write it again.
    pub fn image_checked(&mut self, instance: RankInstance, image: ImageId, output: [u64; 2]) {
        let taken = self.output.taken(instance.rank);
        if taken[0] < output[0] || taken[1] < output[1] {
            let cause = "output from before the image has not arrived yet".to_string();
            return self.capture_refused(instance, image, cause, true);
        }
        if let Some(capture) = self.ranks.capture_of(instance, image) {
            capture.check();
            self.count_image(instance, image);
        }
    }

    /// Looks at all images that are being taken, whether they count by now.
    pub fn count_images(&mut self) {
        let taken = |r: &RankEntry| r.capture().map(|c| (r.instance(), c.image()));
        for (instance, image) in self.ranks.iter().filter_map(taken).collect::<Vec<_>>() {
            self.count_image(instance, image);
        }
    }

    /// An image counts from the moment when its agent has checked it and as many stores have it as
    /// are promised.
    pub fn count_image(&mut self, instance: RankInstance, image: ImageId) {
        let promised = self.roles.promised_copies(self.config);
        let Some(capture) = self.ranks.capture_of(instance, image) else { return };
        let capture = capture.clone();
        let is_whole = capture.copies().count() >= promised;
        let Some(image) = capture.usable().filter(|_| is_whole) else { return };
        let now = self.out.now();
        let rank = instance.rank;
        let Counted { needless, healed, reach } =
            self.ranks[rank].count_image(now, image, &capture);
        let total = now - capture.asked();
        self.schedule.ended(rank, now, Some(total));
        self.out.summary_mut().checkpoints += 1;
        self.out.summary_mut().checkpoint_bytes += image.bytes;
        self.out.record(Record::Checkpoint {
            rank,
            image: image.image,
            bytes: image.bytes,
            file_bytes: image.file_bytes,
            pause: capture.pause().unwrap_or_default(),
            total,
        });
        if healed {
            self.out.record(Record::Protected { rank });
        }
        // Only now is it known why they are needless.
        for KeptImage { image, mut copies, saved, .. } in needless {
            if saved {
                // The job may have to go on from there again.
                copies.lose(SAVED);
            }
            discard(self.out, rank, image.image, &copies);
        }
        if let Some(Stored { clock, rsn, observed, stdin, .. }) = reach {
            let truncate = RouterCommand::Truncate { rank, clock, rsn, observed };
            self.out.push(Command::Send(ToPeer::Routers(truncate)));
            if rank == Rank(0) {
                self.out.push(Command::TruncateStdin(stdin));
            }
        }
        self.out.follows(Consequence::ImageCounted { rank, capture });
    }
}
