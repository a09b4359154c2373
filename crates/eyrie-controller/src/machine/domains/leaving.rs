//! How far the ranks of this domain are on their way to another one. Its stages come one after the
//! other, and until the last one all of it can be taken back. Decides nothing about ranks; it must
//! never take for fetched what the other domain has not said it has.

use crate::machine::users::answer::RequestId;
use eyrie_interface::Way;
use eyrie_wire::{DomainId, ImageId, Rank, StoreId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How soon an image that could not be fetched is to be fetched again, and how often at most in one
/// stage: the other domain's gateway may be a new one.
const AGAIN: Duration = Duration::from_millis(500);
const FAILURES_MAX: u32 = 60;
/// A round that took no longer is followed by the last one; so is that of this number.
const SHORT_ROUND: Duration = Duration::from_secs(1);
const ROUNDS_MAX: u32 = 5;
/// How long nothing may come of it, and how long there may be no line to the other domain: while
/// ranks compute, and while they stand still.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(600);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const LINE_TIMEOUT: Duration = Duration::from_secs(30);
const STILL_TIMEOUT: Duration = Duration::from_secs(10);

/// Where an image is that the other domain is to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Fetch {
    Coming,
    /// It could not be fetched: it is told of again then.
    Failed {
        again: Duration,
    },
    There,
}

/// Images that the other domain is to have: one of each rank.
#[derive(Debug, Serialize, Deserialize)]
pub struct Images {
    /// Those that were asked for since then are the ones.
    since: Duration,
    /// When the other domain was last told of one for the first time.
    told: Duration,
    of: BTreeMap<Rank, Option<(ImageId, Fetch)>>,
    failures: u32,
}

impl Images {
    fn new(ranks: impl IntoIterator<Item = Rank>, now: Duration) -> Images {
        let of = ranks.into_iter().map(|rank| (rank, None)).collect();
        Images { since: now, told: now, of, failures: 0 }
    }

    /// Whether an image of the rank that was asked for then is the one.
    pub fn wants(&self, rank: Rank, asked: Duration) -> bool {
        asked >= self.since && self.of.get(&rank) == Some(&None)
    }

    /// The other domain is told of this image.
    pub fn tell(&mut self, rank: Rank, image: ImageId, now: Duration) {
        let known = self.of.insert(rank, Some((image, Fetch::Coming)));
        if known == Some(None) {
            self.told = now;
        }
    }

    /// The other domain has this image, or could not fetch it. False: it could not too often.
    pub fn fetched(&mut self, rank: Rank, image: ImageId, is_there: bool, now: Duration) -> bool {
        if let Some(Some((known, fetch))) = self.of.get_mut(&rank) {
            if *known == image && is_there {
                *fetch = Fetch::There;
            } else if *known == image {
                *fetch = Fetch::Failed { again: now + AGAIN };
                self.failures += 1;
            }
        }
        self.failures < FAILURES_MAX
    }

    /// Ranks of whose images the other domain is to be told again by now.
    pub fn due(&self, now: Duration) -> Vec<Rank> {
        let is_due = |(rank, sent): (&Rank, &Option<(ImageId, Fetch)>)| match sent {
            Some((_, Fetch::Failed { again })) if *again <= now => Some(*rank),
            _ => None,
        };
        self.of.iter().filter_map(is_due).collect()
    }

    fn next(&self) -> Option<Duration> {
        let again = |sent: &Option<(ImageId, Fetch)>| match sent {
            Some((_, Fetch::Failed { again })) => Some(*again),
            _ => None,
        };
        self.of.values().filter_map(again).min()
    }

    /// The rank's program has ended: no image of it is needed.
    pub fn forget(&mut self, rank: Rank) {
        self.of.remove(&rank);
    }

    /// Whether the other domain has all of them.
    pub fn are_there(&self) -> bool {
        self.left().next().is_none()
    }

    /// Those that the other domain was told of.
    pub fn told(&self) -> impl Iterator<Item = (Rank, ImageId)> + '_ {
        self.of.iter().filter_map(|(rank, sent)| Some((*rank, sent.as_ref()?.0)))
    }

    /// Ranks whose images are not there.
    pub fn left(&self) -> impl Iterator<Item = Rank> + '_ {
        let is_there = |sent: &Option<(ImageId, Fetch)>| matches!(sent, Some((_, Fetch::There)));
        self.of.iter().filter(move |(_, sent)| !is_there(sent)).map(|(rank, _)| *rank)
    }

    /// Ranks of which it was told no image.
    pub fn missing(&self) -> impl Iterator<Item = Rank> + '_ {
        self.of.iter().filter(|(_, sent)| sent.is_none()).map(|(rank, _)| *rank)
    }
}

/// A stage.
#[derive(Debug, Serialize, Deserialize)]
pub enum Stage {
    /// The other domains are told. `agreed`: the one that is to take the ranks says that it can.
    Asked { agreed: bool },
    /// Images are fetched while all ranks compute, so that the last ones are soon fetched.
    Rounds { round: u32, images: Images },
    /// The gateway fetches no more messages of other domains, and gives away what it has.
    Flushing { is_flushed: bool },
    /// The last images: each rank stands still from its own on.
    Last(Images),
    /// The ranks are ended, and routers are told to refuse them.
    Fences { images: Images },
    /// They are ranks of the other domain. Their images here, in these stores, are kept until it
    /// has taken them.
    Moved { images: Vec<(Rank, ImageId, BTreeSet<StoreId>)> },
}

/// The ranks of this domain on their way to another one.
#[derive(Debug, Serialize, Deserialize)]
pub struct Departure {
    to: DomainId,
    way: Way,
    request: Option<RequestId>,
    /// This domain is to end when they have gone, also where it shows the job.
    leave: bool,
    since: Duration,
    /// When it last came nearer.
    progress: Duration,
    stage: Stage,
}

impl Departure {
    pub fn new(to: DomainId, way: Way, request: Option<RequestId>, now: Duration) -> Departure {
        let stage = Stage::Asked { agreed: false };
        Departure { to, way, request, leave: false, since: now, progress: now, stage }
    }

    /// The domain is to end when they have gone, also where it shows the job.
    pub fn and_leave(self, leave: bool) -> Departure {
        Departure { leave, ..self }
    }

    pub fn is_followed_by_end(&self) -> bool {
        self.leave
    }

    pub fn to(&self) -> DomainId {
        self.to
    }

    pub fn request(&self) -> Option<RequestId> {
        self.request
    }

    /// How long ago it was asked for.
    pub fn took(&self, now: Duration) -> Duration {
        now.saturating_sub(self.since)
    }

    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    /// The images of this stage.
    pub fn images(&self) -> Option<&Images> {
        match &self.stage {
            Stage::Rounds { images, .. } | Stage::Last(images) | Stage::Fences { images } => {
                Some(images)
            }
            Stage::Asked { .. } | Stage::Flushing { .. } | Stage::Moved { .. } => None,
        }
    }

    /// As [`Departure::images`].
    pub fn images_mut(&mut self) -> Option<&mut Images> {
        match &mut self.stage {
            Stage::Rounds { images, .. } | Stage::Last(images) | Stage::Fences { images } => {
                Some(images)
            }
            Stage::Asked { .. } | Stage::Flushing { .. } | Stage::Moved { .. } => None,
        }
    }

    /// It comes nearer.
    pub fn note_progress(&mut self, now: Duration) {
        self.progress = now;
    }

    /// The other domain can take the ranks.
    pub fn agree(&mut self) {
        if let Stage::Asked { agreed } = &mut self.stage {
            *agreed = true;
        }
    }

    /// Whether rounds come before ranks stand still.
    pub fn is_live(&self) -> bool {
        self.way == Way::Live
    }

    /// The first round, or the next one, of these ranks. In the first one images will do that
    /// there are.
    pub fn begin_round(&mut self, ranks: impl IntoIterator<Item = Rank>, now: Duration) {
        let round = match &self.stage {
            Stage::Rounds { round, .. } => round + 1,
            _ => 1,
        };
        self.enter(Stage::Rounds { round, images: Images::new(ranks, now) }, now);
    }

    /// Whether another round would not make the last images any shorter to fetch, once all of this
    /// one are there.
    pub fn rounds_are_enough(&self) -> bool {
        let Stage::Rounds { round, images } = &self.stage else { return false };
        *round >= ROUNDS_MAX
            || *round > 1 && self.progress.saturating_sub(images.told) <= SHORT_ROUND
    }

    pub fn begin_flush(&mut self, now: Duration) {
        self.enter(Stage::Flushing { is_flushed: false }, now);
    }

    /// The gateway fetches no messages any more, and what it had fetched is safe.
    pub fn flush(&mut self) {
        if let Stage::Flushing { is_flushed } = &mut self.stage {
            *is_flushed = true;
        }
    }

    /// Whether messages of other domains are not fetched.
    pub fn has_stopped_fetching(&self) -> bool {
        matches!(self.stage, Stage::Flushing { .. } | Stage::Last(_) | Stage::Fences { .. })
    }

    pub fn begin_last(&mut self, ranks: impl IntoIterator<Item = Rank>, now: Duration) {
        self.enter(Stage::Last(Images::new(ranks, now)), now);
    }

    /// The other domain has the last images.
    pub fn begin_fences(&mut self, now: Duration) {
        let stage = std::mem::replace(&mut self.stage, Stage::Asked { agreed: true });
        self.stage = match stage {
            Stage::Last(images) => Stage::Fences { images },
            other => other,
        };
        self.progress = now;
    }

    pub fn move_out(&mut self, images: Vec<(Rank, ImageId, BTreeSet<StoreId>)>, now: Duration) {
        self.enter(Stage::Moved { images }, now);
    }

    fn enter(&mut self, stage: Stage, now: Duration) {
        self.stage = stage;
        self.progress = now;
    }

    /// Whether it cannot be taken back any more.
    pub fn is_final(&self) -> bool {
        matches!(self.stage, Stage::Moved { .. })
    }

    /// Whether ranks stand still, or are to.
    pub fn stand_still(&self) -> bool {
        matches!(self.stage, Stage::Last(_) | Stage::Fences { .. })
    }

    /// Whether the next image of the rank is the last one.
    pub fn holds(&self, rank: Rank) -> bool {
        matches!(&self.stage, Stage::Last(images) if images.of.get(&rank) == Some(&None))
    }

    /// Whether the rank stands still for its last image, which is there.
    pub fn is_held(&self, rank: Rank) -> bool {
        let is_told = |images: &Images| images.of.get(&rank).is_some_and(Option::is_some);
        self.stand_still() && self.images().is_some_and(is_told)
    }

    /// Whether ranks that are fenced stay so.
    pub fn ranks_stay_fenced(&self) -> bool {
        matches!(self.stage, Stage::Fences { .. } | Stage::Moved { .. })
    }

    /// Until when something must have come of it; `None` when nothing stops it any more.
    pub fn until(&self) -> Option<Duration> {
        let patience = match self.stage {
            Stage::Moved { .. } => return None,
            Stage::Asked { .. } | Stage::Flushing { .. } => ANSWER_TIMEOUT,
            Stage::Fences { .. } | Stage::Rounds { .. } | Stage::Last(_) => PROGRESS_TIMEOUT,
        };
        Some(self.progress + patience)
    }

    /// How long there may be no line to the other domain.
    pub fn line_timeout(&self) -> Duration {
        if self.stand_still() {
            STILL_TIMEOUT
        } else {
            LINE_TIMEOUT
        }
    }

    /// When something is to be looked at.
    pub fn next(&self) -> Option<Duration> {
        let again = self.images().and_then(Images::next);
        [again, self.until()].into_iter().flatten().min()
    }

    /// The controller itself stood still for so long.
    pub fn extend(&mut self, gap: Duration) {
        self.progress += gap;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const RANKS: [Rank; 2] = [Rank(0), Rank(1)];

    fn departure(way: Way) -> Departure {
        Departure::new(DomainId(2), way, Some(7), s(10))
    }

    /// The images of this round come, the last one so long after both were told of.
    fn fetch(d: &mut Departure, now: Duration, took: Duration) {
        for rank in RANKS {
            let image = ImageId(now.as_secs() + u64::from(rank.0));
            d.images_mut().unwrap().tell(rank, image, now);
            assert!(d.images_mut().unwrap().fetched(rank, image, true, now + took));
            d.note_progress(now + took);
        }
    }

    #[test]
    fn rounds_end_when_one_was_short_or_there_were_enough() {
        let mut d = departure(Way::Live);
        d.begin_round(RANKS, s(11));
        fetch(&mut d, s(11), s(0));
        assert!(!d.rounds_are_enough(), "the first one is of images that were there");
        d.begin_round(RANKS, s(20));
        fetch(&mut d, s(20), s(2));
        assert!(!d.rounds_are_enough());
        d.begin_round(RANKS, s(30));
        fetch(&mut d, s(30), s(1));
        assert!(d.rounds_are_enough());
        for round in 4..=5 {
            d.begin_round(RANKS, s(round * 20));
            fetch(&mut d, s(round * 20), s(9));
        }
        assert!(d.rounds_are_enough(), "there were five");
    }

    #[test]
    fn an_image_is_there_when_the_other_domain_says_so_of_that_image() {
        let mut images = Images::new(RANKS, s(5));
        assert!(!images.wants(Rank(0), s(4)) && images.wants(Rank(0), s(5)));
        assert!(!images.wants(Rank(9), s(5)), "no rank of this domain");
        images.tell(Rank(0), ImageId(3), s(6));
        assert!(!images.wants(Rank(0), s(6)), "one is enough");
        assert!(images.fetched(Rank(0), ImageId(2), true, s(7)));
        assert!(!images.are_there());
        assert!(images.fetched(Rank(0), ImageId(3), false, s(7)));
        assert_eq!((images.due(s(7)), images.next()), (vec![], Some(s(7) + AGAIN)));
        assert_eq!(images.due(s(8)), [Rank(0)]);
        images.tell(Rank(0), ImageId(3), s(8));
        assert!(images.fetched(Rank(0), ImageId(3), true, s(9)) && !images.are_there());
        assert_eq!(images.missing().collect::<Vec<_>>(), [Rank(1)]);
        // Its program ends meanwhile.
        images.forget(Rank(1));
        assert!(images.are_there());
    }

    #[test]
    fn what_cannot_be_fetched_is_given_up_in_the_end() {
        let mut images = Images::new(RANKS, s(0));
        images.tell(Rank(0), ImageId(1), s(0));
        let tries = (0..200).take_while(|n| images.fetched(Rank(0), ImageId(1), false, s(*n)));
        assert_eq!(tries.count() as u32, FAILURES_MAX - 1);
    }

    #[test]
    fn ranks_stand_still_only_in_the_last_stages_and_nothing_stops_what_has_moved() {
        let mut d = departure(Way::Stop);
        assert!(!d.is_live() && !d.holds(Rank(0)) && !d.has_stopped_fetching());
        assert_eq!(d.until(), Some(s(10) + ANSWER_TIMEOUT));
        d.agree();
        assert!(matches!(d.stage(), Stage::Asked { agreed: true }));
        d.begin_flush(s(12));
        assert!(d.has_stopped_fetching() && !d.stand_still());
        assert_eq!(d.line_timeout(), LINE_TIMEOUT);
        d.flush();
        d.begin_last(RANKS, s(13));
        assert!(d.holds(Rank(0)) && !d.is_held(Rank(0)) && d.stand_still());
        d.images_mut().unwrap().tell(Rank(0), ImageId(1), s(13));
        assert!(!d.holds(Rank(0)) && d.is_held(Rank(0)) && d.holds(Rank(1)));
        assert!(!d.ranks_stay_fenced() && d.line_timeout() == STILL_TIMEOUT);
        d.begin_fences(s(14));
        assert!(d.ranks_stay_fenced() && !d.is_final() && d.is_held(Rank(0)));
        d.move_out(vec![], s(15));
        assert!(d.is_final() && d.ranks_stay_fenced() && d.until().is_none());
        assert_eq!((d.next(), d.took(s(15))), (None, s(5)));
    }
}
