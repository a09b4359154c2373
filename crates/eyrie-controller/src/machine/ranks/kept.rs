//! The images of one rank that count: at most two, the older first. It must never give up the older
//! one before a newer counts, but for copies that are lost.

use crate::machine::images::copies::Copies;
use crate::machine::io::Source;
use crate::record::Cause;
use eyrie_store::role::Stored;
use eyrie_wire::{ImageId, Rank, RankInstance, StoreId};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// An image that counts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeptImage {
    pub image: Stored,
    /// The incarnation that it shows.
    pub instance: RankInstance,
    /// When it was asked for; zero when the job went on from it.
    pub asked: Duration,
    pub copies: Copies,
    /// The job was saved with it: it is not discarded for a newer one, so that the job can
    /// be gone on with from there again.
    pub saved: bool,
}

impl KeptImage {
    /// The image in the store that a rank fetches it from: another than `avoid`, if there is one.
    pub fn source(&self, rank: Rank, avoid: Option<StoreId>) -> Option<Source> {
        let store = self.copies.source(rank, avoid)?;
        Some(Source { image: self.image.image, store })
    }
}

/// The images of a rank, and why there is no newer one.
#[derive(Debug, Serialize, Deserialize)]
pub struct KeptImages {
    kept: Vec<KeptImage>,
    /// The number of the next one.
    next: ImageId,
    /// Since when there is no newer one: one counted then, or its process began.
    since: Duration,
    /// Why the last image since then failed.
    refused: Option<Cause>,
    /// Images in a row that could not count because a file of theirs was gone.
    unusable: u32,
}

impl Default for KeptImages {
    fn default() -> KeptImages {
        KeptImages {
            kept: Vec::new(),
            next: ImageId(1),
            since: Duration::ZERO,
            refused: None,
            unusable: 0,
        }
    }
}

impl KeptImages {
    /// Those of a saved job, older first; `next` is the number of the next one.
    pub fn resume(kept: Vec<KeptImage>, next: ImageId) -> KeptImages {
        KeptImages { kept, next, ..KeptImages::default() }
    }

    pub fn newest(&self) -> Option<&KeptImage> {
        self.kept.last()
    }

    /// Older first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &KeptImage> {
        self.kept.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// The one with this number.
    pub fn get(&self, image: ImageId) -> Option<&KeptImage> {
        self.kept.iter().find(|kept| kept.image.image == image)
    }

    /// Where the one with this number lies, to be changed.
    pub fn copies_mut(&mut self, image: ImageId) -> Option<&mut Copies> {
        let kept = self.kept.iter_mut().find(|kept| kept.image.image == image);
        kept.map(|kept| &mut kept.copies)
    }

    /// The number of the next one.
    pub fn next(&self) -> ImageId {
        self.next
    }

    /// A number for one that is asked for now.
    pub fn number(&mut self) -> ImageId {
        let image = self.next;
        self.next = image.next();
        image
    }

    /// Since when there is no newer one.
    pub fn since(&self) -> Duration {
        self.since
    }

    /// Why the last one since then failed.
    pub fn refused(&self) -> Option<&Cause> {
        self.refused.as_ref()
    }

    /// A process of the rank begins.
    pub fn begin_again(&mut self, now: Duration) {
        (self.since, self.refused) = (now, None);
    }

    /// One that was under way failed.
    pub fn refuse(&mut self, cause: Cause) {
        self.refused = Some(cause);
    }

    /// One that was under way is of no use because a file of it was gone. Returns how many before
    /// it were, in a row.
    pub fn note_unusable(&mut self) -> u32 {
        self.unusable += 1;
        self.unusable - 1
    }

    /// One more counts. `alone`: nothing older is of use. Returns those that are not needed any
    /// more.
    pub fn count(&mut self, now: Duration, image: KeptImage, alone: bool) -> Vec<KeptImage> {
        self.begin_again(now);
        self.unusable = 0;
        let needless = self.kept.len().saturating_sub(if alone { 0 } else { 1 });
        let needless = self.kept.drain(..needless).collect();
        self.kept.push(image);
        needless
    }

    /// The image that the log must reach back to, for the case that a newer one is damaged; `None`
    /// where that is the program's start.
    pub fn fallback(&self) -> Option<Stored> {
        (self.kept.len() == 2).then(|| self.kept[0].image)
    }

    /// A store is lost. Returns whether no image is left that was there.
    pub fn lose_store(&mut self, store: StoreId) -> bool {
        let had = !self.kept.is_empty();
        self.kept.iter_mut().for_each(|kept| kept.copies.lose(store));
        self.kept.retain(|kept| !kept.copies.are_lost());
        had && self.kept.is_empty()
    }

    /// Copies of an image cannot be used: those in all stores, or in this one. Returns those that
    /// were there, and whether others are left; `None` when there is no such image.
    pub fn drop_copies(&mut self, image: ImageId, only: Option<StoreId>) -> Option<(Copies, bool)> {
        let at = self.kept.iter().position(|kept| kept.image.image == image)?;
        let bad = self.kept[at].copies.drop_bad(only);
        let is_left = !self.kept[at].copies.are_lost();
        if !is_left {
            self.kept.remove(at);
        }
        Some((bad, is_left))
    }

    /// Copies that this store was told to make are not made any more.
    pub fn cancel_copies_to(&mut self, store: StoreId) {
        self.kept.iter_mut().for_each(|kept| kept.copies.cancel(store));
    }

    /// The controller itself stood still for so long.
    pub fn extend(&mut self, gap: Duration) {
        self.since += gap;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::Incarnation;

    fn image(image: ImageId, store: StoreId) -> KeptImage {
        KeptImage {
            image: Stored {
                image,
                clock: image.0,
                rsn: image.0,
                observed: 0,
                stdin: 0,
                bytes: 1,
                file_bytes: 0,
            },
            instance: RankInstance { rank: Rank(0), incarnation: Incarnation(1) },
            asked: Duration::ZERO,
            copies: Copies::in_one(store),
            saved: false,
        }
    }

    fn numbers<'a>(images: impl IntoIterator<Item = &'a KeptImage>) -> Vec<ImageId> {
        images.into_iter().map(|kept| kept.image.image).collect()
    }

    /// Two images: the older in store 1, the newer in store 2.
    fn two() -> KeptImages {
        let mut images = KeptImages::default();
        for store in 1..3 {
            let number = images.number();
            assert!(images.count(Duration::ZERO, image(number, StoreId(store)), false).is_empty());
        }
        images
    }

    #[test]
    fn two_images_are_kept_and_the_log_reaches_back_to_the_older() {
        let mut images = KeptImages::default();
        assert_eq!((images.number(), images.fallback()), (ImageId(1), None));
        images.count(Duration::ZERO, image(ImageId(1), StoreId(1)), false);
        assert_eq!(images.fallback(), None, "the log still reaches back to the start");
        let mut images = two();
        assert_eq!(images.fallback().map(|i| i.image), Some(ImageId(1)));
        let needless = images.count(Duration::ZERO, image(ImageId(3), StoreId(1)), false);
        assert_eq!(
            (numbers(&needless), numbers(images.iter())),
            ([1].map(ImageId).to_vec(), [2, 3].map(ImageId).to_vec())
        );
        assert_eq!(images.fallback().map(|i| i.image), Some(ImageId(2)));
        let needless = images.count(Duration::ZERO, image(ImageId(4), StoreId(1)), true);
        assert_eq!(
            (numbers(&needless), numbers(images.iter())),
            ([2, 3].map(ImageId).to_vec(), vec![ImageId(4)])
        );
    }

    #[test]
    fn an_image_that_counts_ends_what_was_known_of_those_that_failed() {
        let mut images = KeptImages::default();
        images.refuse("a file is gone".into());
        assert_eq!((images.note_unusable(), images.note_unusable()), (0, 1));
        let now = Duration::from_secs(7);
        images.count(now, image(ImageId(1), StoreId(1)), false);
        assert_eq!((images.since(), images.refused()), (now, None));
        assert_eq!(images.note_unusable(), 0);
    }

    #[test]
    fn an_image_goes_with_the_last_store_that_has_it() {
        let mut images = two();
        assert!(!images.lose_store(StoreId(1)) && numbers(images.iter()) == [ImageId(2)]);
        assert!(images.lose_store(StoreId(2)) && images.is_empty());
        assert!(!images.lose_store(StoreId(3)), "there was none");
        let mut images = two();
        assert_eq!(
            images.drop_copies(ImageId(2), Some(StoreId(1))),
            Some((Copies::default(), true))
        );
        assert_eq!(images.drop_copies(ImageId(2), None), Some((Copies::in_one(StoreId(2)), false)));
        assert_eq!(
            (numbers(images.iter()), images.drop_copies(ImageId(2), None)),
            (vec![ImageId(1)], None)
        );
    }
}
