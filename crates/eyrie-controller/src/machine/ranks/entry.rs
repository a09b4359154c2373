//! What the controller knows of one rank: its present incarnation, and what outlives that. It must
//! never let the log be truncated beyond an image that is still needed.

use super::capture::Capture;
use super::crash::{Again, Crashes};
use super::incarnation::{Fence, OnNode, RankState, Step};
use super::kept::{KeptImage, KeptImages};
use super::log::RankLog;
use super::phases::{Death, RankRecovery, RESTORE_ATTEMPTS};
use crate::machine::images::copies::Copies;
use crate::machine::io::{Mark, Source};
use crate::machine::state::RankStateName;
use crate::record::Cause;
use eyrie_placement::Assignment;
use eyrie_store::role::Stored;
use eyrie_wire::domains::MovedRank;
use eyrie_wire::{ImageId, Incarnation, NodeId, Rank, RankInstance, RouterId, StoreId};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// One rank.
#[derive(Debug, Serialize, Deserialize)]
pub struct RankEntry {
    rank: Rank,
    incarnation: Incarnation,
    node: NodeId,
    /// Where it was assigned to go, until it comes back there.
    goes_to: Option<Assignment>,
    state: RankState,
    /// In any incarnation.
    spoke_pmi: bool,
    images: KeptImages,
    log: RankLog,
    crashes: Crashes,
}

/// A rank of a saved job, as it is saved.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SavedRank {
    /// The one that is to speak next.
    pub incarnation: Incarnation,
    /// Of one that has finished.
    pub code: Option<i32>,
    pub spoke_pmi: bool,
    /// Older first.
    pub images: Vec<SavedImage>,
    pub next_image: ImageId,
    pub truncated: bool,
}

/// An image that counts, and the incarnation that it shows.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SavedImage {
    pub image: Stored,
    pub instance: RankInstance,
}

/// What comes of an image that counts.
pub struct Counted {
    /// Older ones that are not needed any more.
    pub needless: Vec<KeptImage>,
    /// It has ended a hole in the log.
    pub healed: bool,
    /// The log need not reach back further than to this image.
    pub reach: Option<Stored>,
}

/// A rank that was brought back and re-executes.
pub struct Restored {
    /// It has caught up, with so many messages, before its agent has said that it runs.
    pub caught_up: Option<u64>,
}

impl RankEntry {
    pub fn new(rank: Rank, node: NodeId) -> RankEntry {
        RankEntry {
            rank,
            incarnation: Incarnation(1),
            node,
            goes_to: None,
            state: RankState::Waiting,
            spoke_pmi: false,
            images: KeptImages::default(),
            log: RankLog::default(),
            crashes: Crashes::default(),
        }
    }

    /// A rank of another domain. What is for it goes to this node, the gateway's.
    pub fn elsewhere(rank: Rank, gateway: NodeId) -> RankEntry {
        RankEntry { state: RankState::Elsewhere, ..RankEntry::new(rank, gateway) }
    }

    pub fn rank(&self) -> Rank {
        self.rank
    }

    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    pub fn instance(&self) -> RankInstance {
        RankInstance { rank: self.rank, incarnation: self.incarnation }
    }

    /// Where it is, was last, or is to come back.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Whether some incarnation has spoken PMI.
    pub fn has_spoken_pmi(&self) -> bool {
        self.spoke_pmi
    }

    pub fn state(&self) -> RankStateName {
        self.state.name()
    }

    pub fn is(&self, name: RankStateName) -> bool {
        self.state() == name
    }

    /// Whether it is a rank of another domain.
    pub fn is_elsewhere(&self) -> bool {
        self.is(RankStateName::Elsewhere)
    }

    /// Whether its program runs here, or is to: it has not ended.
    pub fn is_living(&self) -> bool {
        !self.is(RankStateName::Finished) && !self.is_elsewhere()
    }

    /// When something must have happened, in the states that wait for others.
    pub fn until(&self) -> Option<Duration> {
        self.state.until()
    }

    /// The exit code of its program, once that has ended.
    pub fn code(&self) -> Option<i32> {
        match self.state {
            RankState::Finished { code } => Some(code),
            _ => None,
        }
    }

    /// What is known of the present incarnation, when a process of it may be there.
    pub fn on_node(&self) -> Option<&OnNode> {
        self.state.on_node()
    }

    /// Where it was assigned to go, until it comes back there.
    pub fn goes_to(&self) -> Option<Assignment> {
        self.goes_to
    }

    /// It is to go there.
    pub fn assign(&mut self, assignment: Assignment) {
        self.goes_to = Some(assignment);
    }

    /// It comes back, or stays: what it was assigned holds no longer.
    pub fn take_assignment(&mut self) -> Option<Assignment> {
        self.goes_to.take()
    }

    /// As [`RankEntry::on_node`].
    pub fn on_node_mut(&mut self) -> Option<&mut OnNode> {
        self.state.on_node_mut()
    }

    /// The recovery under way.
    pub fn recovery(&self) -> Option<&RankRecovery> {
        self.state.recovery()
    }

    /// The fence that the routers are told of, while it is lost.
    pub fn fence(&self) -> Option<&Fence> {
        self.state.fence()
    }

    /// The images that count.
    pub fn images(&self) -> &KeptImages {
        &self.images
    }

    /// As [`RankEntry::images`].
    pub fn images_mut(&mut self) -> &mut KeptImages {
        &mut self.images
    }

    pub fn log(&self) -> &RankLog {
        &self.log
    }

    /// As [`RankEntry::log`].
    pub fn log_mut(&mut self) -> &mut RankLog {
        &mut self.log
    }

    /// Its agent is told to start the program, until then.
    pub fn start(&mut self, until: Duration) -> bool {
        self.state.advance(Step::JobStarted { until })
    }

    /// The saved job goes on: its recovery begins now. False: it is no rank of a saved job.
    pub fn go_on(&mut self, now: Duration) -> bool {
        self.state.recovery_mut().map(|recovery| recovery.begin_now(now)).is_some()
    }

    /// An incarnation has spoken PMI; false when one has before.
    pub fn speak_pmi(&mut self) -> bool {
        !std::mem::replace(&mut self.spoke_pmi, true)
    }

    /// Its process runs; the image took so long to be fetched. `None` when it was not brought back,
    /// or ran before.
    pub fn started(&mut self, now: Duration, fetched: Duration) -> Option<Restored> {
        let caught_up = match &self.state {
            RankState::Restoring { replayed_early, .. } => *replayed_early,
            _ => None,
        };
        if !self.state.advance(Step::Started) {
            return None;
        }
        self.log.go_on();
        self.images.begin_again(now);
        let recovery = self.state.recovery_mut()?;
        recovery.restore(now, fetched);
        Some(Restored { caught_up })
    }

    /// It is connected to its router.
    pub fn connected(&mut self, now: Duration) {
        if let RankState::Replaying { recovery, .. } = &mut self.state {
            recovery.connect(now);
        }
    }

    /// It has caught up, with so many messages. Its recovery, which is over; `None` while its agent
    /// has not said that it runs: that brings durations, and the router's word may come before.
    pub fn caught_up(&mut self, now: Duration, messages: u64) -> Option<RankRecovery> {
        if let RankState::Restoring { replayed_early, .. } = &mut self.state {
            *replayed_early = Some(messages);
            return None;
        }
        let mut recovery = *self.state.recovery()?;
        recovery.catch_up(now);
        self.state.advance(Step::Replayed).then_some(recovery)
    }

    /// The present incarnation ends, and the next one is to be fenced off from it. Returns the one
    /// that ended, with the capture that was under way; `None` when it had ended.
    pub fn end_incarnation(
        &mut self,
        now: Duration,
        death: Death,
        unheard: Option<Duration>,
        fence: Fence,
    ) -> Option<(RankInstance, Option<Capture>)> {
        let ended = self.instance();
        let capture = self.end_capture();
        if !self.state.advance(Step::Died { now, death, unheard, fence }) {
            return None;
        }
        self.incarnation = self.incarnation.next();
        Some((ended, capture))
    }

    /// A router lets only the present incarnation speak. The highest receive sequence number that
    /// routers have told of, when it was the last one.
    pub fn confirm_fence(&mut self, router: RouterId, rsn: u64) -> Option<u64> {
        self.state.fence_mut()?.confirm(router, rsn)
    }

    /// It is brought back on this node, from an image or from the program's beginning, until then.
    pub fn bring_back(
        &mut self,
        node: NodeId,
        now: Duration,
        from: Option<Source>,
        until: Duration,
    ) -> bool {
        self.node = node;
        self.state.advance(Step::Fenced { now, from, until })
    }

    /// The image could not be restored from this store. Returns how often it could not, in a row.
    pub fn fail_restore(&mut self, store: StoreId) -> u32 {
        self.state.recovery_mut().map_or(0, |recovery| recovery.fail_restore(store))
    }

    /// Another image is tried, or another copy of it.
    pub fn try_another_image(&mut self) {
        if let Some(recovery) = self.state.recovery_mut() {
            recovery.try_another();
        }
    }

    /// The program has ended by itself; false when the table has no row for that.
    pub fn exit(&mut self, code: i32) -> bool {
        self.state.advance(Step::Exited { code })
    }

    /// The checkpoint under way.
    pub fn capture(&self) -> Option<&Capture> {
        self.on_node()?.capture()
    }

    /// As [`RankEntry::capture`].
    pub fn capture_mut(&mut self) -> Option<&mut Capture> {
        self.on_node_mut()?.capture_mut()
    }

    /// A checkpoint has come to its end, a good one or a bad one.
    pub fn end_capture(&mut self) -> Option<Capture> {
        self.on_node_mut()?.end_capture()
    }

    /// The checkpoint under way has failed.
    pub fn fail_capture(&mut self, cause: Cause) -> Option<Capture> {
        self.images.refuse(cause);
        self.end_capture()
    }

    /// Whether a checkpoint may be asked for.
    pub fn can_be_captured(&self) -> bool {
        self.state.can_be_captured()
    }

    /// Whether images of it are expected.
    pub fn can_be_overdue(&self) -> bool {
        self.is(RankStateName::Running) || self.is(RankStateName::Replaying)
    }

    /// The image of the checkpoint under way counts from now on.
    pub fn count_image(&mut self, now: Duration, image: Stored, capture: &Capture) -> Counted {
        self.end_capture();
        self.crashes.imaged(image.rsn);
        let healed = self.log.heal(capture.asked());
        let asked = capture.asked();
        let copies = capture.copies().clone();
        let instance = self.instance();
        let kept = KeptImage { image, instance, asked, copies, saved: false };
        let needless = self.images.count(now, kept, healed);
        let reach = if healed { Some(image) } else { self.images.fallback() };
        if reach.is_some() {
            self.log.truncate();
        }
        Counted { needless, healed, reach }
    }

    /// Where the image lies with this number that is being taken, or counts.
    pub fn copies_mut(&mut self, instance: RankInstance, image: ImageId) -> Option<&mut Copies> {
        let present = self.instance() == instance;
        if self.capture().is_some_and(|c| c.image() == image) {
            return self.capture_mut().filter(|_| present).map(Capture::copies_mut);
        }
        self.images.copies_mut(image)
    }

    /// The image to come back from; an error when neither an image nor the whole log is left.
    pub fn way_back(&self) -> Result<Option<&KeptImage>, String> {
        if self.log.is_lost() {
            return Err("its log was lost with its router, and no checkpoint has followed".into());
        }
        if self.log.has_hole() {
            return Err("its log could not be kept, or began anew with another router, and no \
                        checkpoint has followed"
                .into());
        }
        match self.images.newest() {
            Some(kept) => Ok(Some(kept)),
            None if self.log.is_truncated() => {
                Err("no whole image is left, and its log no longer reaches back to the start"
                    .into())
            }
            None => Ok(None),
        }
    }

    /// Whether all but the last of the attempts to bring it up on its node have failed. That one is
    /// made on another node, as the node may be at fault: one with too little memory, say.
    pub fn node_may_be_at_fault(&self) -> bool {
        let restores = self.recovery().map_or(0, RankRecovery::failed_attempts);
        restores + 1 >= RESTORE_ATTEMPTS || self.crashes.next_is_last()
    }

    /// Whether only an image to come can bring it back, should it die.
    pub fn is_exposed(&self) -> bool {
        self.log.has_hole() || (self.images.is_empty() && self.log.is_truncated())
    }

    /// Counts a death at what is known of it; returns what is known of all without progress when
    /// they are too many.
    pub fn count_death(&mut self, mark: Mark) -> Option<(i32, Again)> {
        let recovery = self.state.recovery()?;
        let signal = match recovery.death() {
            Death::Signal(signal) => Some(signal),
            Death::Outside | Death::Stopped => None,
        };
        let again = self.crashes.note(signal, mark, recovery.died_from())?;
        signal.map(|s| (s, again))
    }

    /// As it is now, for a job that is saved.
    pub fn saved(&self) -> SavedRank {
        let saved = |kept: &KeptImage| SavedImage { image: kept.image, instance: kept.instance };
        SavedRank {
            incarnation: self.incarnation,
            code: self.code(),
            spoke_pmi: self.spoke_pmi,
            images: self.images.iter().filter(|_| self.code().is_none()).map(saved).collect(),
            next_image: self.images.next(),
            truncated: self.log.is_truncated(),
        }
    }

    /// It goes on from what was saved, whose images are in this store.
    pub fn resume(&mut self, saved: &SavedRank, store: StoreId) {
        let kept = |saved: &SavedImage| KeptImage {
            image: saved.image,
            instance: saved.instance,
            asked: Duration::ZERO,
            copies: Copies::in_one(store),
            saved: true,
        };
        self.incarnation = saved.incarnation;
        self.spoke_pmi = saved.spoke_pmi;
        self.images = KeptImages::resume(saved.images.iter().map(kept).collect(), saved.next_image);
        if saved.truncated {
            self.log.truncate();
        }
        self.state = match saved.code {
            Some(code) => RankState::Finished { code },
            None => RankState::saved(),
        };
    }

    /// It is a rank of another domain from now on. As [`super::Ranks::leave`].
    pub fn leave(&mut self, gateway: NodeId, arrived: u32, output: [u64; 2]) -> Option<MovedRank> {
        let newest = self.images.newest().filter(|_| self.code().is_none());
        let moved = MovedRank {
            rank: self.rank,
            incarnation: self.incarnation,
            code: self.code(),
            spoke_pmi: self.spoke_pmi,
            arrived,
            image: newest.map(|kept| (kept.image, kept.instance.incarnation)),
            next_image: self.images.next(),
            output,
        };
        if !self.state.advance(Step::Left) {
            return None;
        }
        *self = RankEntry::elsewhere(self.rank, gateway);
        Some(moved)
    }

    /// It is a rank of this domain from now on. As [`super::Ranks::come`].
    pub fn come(
        &mut self,
        moved: &MovedRank,
        node: NodeId,
        image: Option<KeptImage>,
        fence: Fence,
        now: Duration,
    ) {
        let step = match moved.code {
            Some(code) => Step::CameFinished { code },
            None => Step::Came { now, fence },
        };
        if !self.state.advance(step) {
            return;
        }
        self.incarnation = moved.incarnation;
        self.spoke_pmi = moved.spoke_pmi;
        self.node = node;
        self.images = KeptImages::resume(image.into_iter().collect(), moved.next_image);
        self.images.begin_again(now);
        // It reaches back to that image only.
        self.log.truncate();
        self.log.stand_still();
    }

    /// The controller itself stood still for so long.
    pub fn extend(&mut self, gap: Duration) {
        self.state.extend(gap);
        self.images.extend(gap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// One that runs.
    fn running() -> RankEntry {
        let mut r = RankEntry::new(Rank(0), NodeId(3));
        assert!(r.start(s(1)) && r.started(s(1), s(0)).is_none());
        r
    }

    /// Has an image of it count that was asked for then.
    fn imaged(r: &mut RankEntry, asked: Duration) -> Counted {
        let number = r.images_mut().number();
        let mut capture = Capture::new(number, StoreId(1), false, asked, asked + s(9));
        capture.copies_mut().arrive(StoreId(1), true);
        let rsn = number;
        let image = Stored {
            image: number,
            clock: 1,
            rsn: rsn.0,
            observed: 0,
            stdin: 0,
            bytes: 1,
            file_bytes: 0,
        };
        r.count_image(asked + s(1), image, &capture)
    }

    #[test]
    fn the_log_is_truncated_at_the_older_image_and_at_once_at_one_that_heals_it() {
        let mut r = running();
        assert!(imaged(&mut r, s(2)).reach.is_none() && !r.log().is_truncated());
        let second = imaged(&mut r, s(4));
        assert_eq!(second.reach.map(|image| image.image), Some(ImageId(1)));
        assert!(r.log().is_truncated() && !r.is_exposed() && second.needless.is_empty());
        r.log_mut().break_off(s(6));
        assert!(r.is_exposed() && r.way_back().is_err());
        let early = imaged(&mut r, s(5));
        assert!(!early.healed && r.way_back().is_err(), "it was asked for before");
        let healing = imaged(&mut r, s(6));
        assert_eq!(
            (healing.healed, healing.reach.map(|image| image.image)),
            (true, Some(ImageId(4)))
        );
        assert_eq!(
            (healing.needless.len(), r.way_back().unwrap().map(|k| k.image.image)),
            (2, Some(ImageId(4)))
        );
    }

    #[test]
    fn without_an_image_only_a_log_from_the_start_brings_it_back() {
        let mut r = running();
        assert_eq!(r.way_back(), Ok(None));
        imaged(&mut r, s(2));
        imaged(&mut r, s(4));
        assert!(r.images_mut().lose_store(StoreId(1)) && r.is_exposed() && r.way_back().is_err());
    }

    #[test]
    fn its_recovery_is_over_when_its_agent_and_its_router_have_said_so() {
        for router_first in [true, false] {
            let mut r = running();
            let died =
                r.end_incarnation(s(10), Death::Outside, None, Fence::new([RouterId(0)], s(10)));
            assert_eq!(
                died,
                Some((RankInstance { rank: Rank(0), incarnation: Incarnation(1) }, None))
            );
            assert_eq!(
                r.end_incarnation(s(10), Death::Outside, None, Fence::new([RouterId(0)], s(10))),
                None
            );
            assert_eq!(
                (r.incarnation(), r.confirm_fence(RouterId(0), 5)),
                (Incarnation(2), Some(5))
            );
            assert!(r.bring_back(NodeId(4), s(11), None, s(99)) && r.node() == NodeId(4));
            if router_first {
                assert_eq!(r.caught_up(s(12), 7), None);
                assert_eq!(r.started(s(13), s(0)).unwrap().caught_up, Some(7));
            } else {
                assert_eq!(r.started(s(13), s(0)).unwrap().caught_up, None);
            }
            assert!(r.started(s(13), s(0)).is_none(), "it runs already");
            assert_eq!(r.caught_up(s(15), 7).unwrap().phases().total(), s(5));
            assert!(r.is(RankStateName::Running) && r.caught_up(s(16), 7).is_none());
        }
    }

    #[test]
    fn a_saved_rank_goes_on_as_it_was() {
        let mut r = running();
        r.speak_pmi();
        imaged(&mut r, s(2));
        imaged(&mut r, s(4));
        r.end_incarnation(s(5), Death::Outside, None, Fence::new([RouterId(0)], s(5)));
        let mut other = RankEntry::new(Rank(0), NodeId(0));
        other.resume(&r.saved(), StoreId(7));
        assert_eq!(other.saved(), r.saved());
        assert!(other.fence().is_some_and(Fence::is_whole) && other.go_on(s(1)));
        assert!(other.images().iter().all(|kept| kept.saved && kept.copies.has(StoreId(7))));
        let mut finished = running();
        assert!(finished.exit(3) && !finished.go_on(s(1)));
        other.resume(&finished.saved(), StoreId(7));
        assert_eq!(other.code(), Some(3));
    }
}
