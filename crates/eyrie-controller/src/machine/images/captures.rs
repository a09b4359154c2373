//! Checkpoints: asked for when they are due, until their images begin to arrive. What becomes of an
//! image from then on is decided in `counting.rs`.

use super::copies::Copies;
use super::schedule::Schedule;
use super::store_choice::StoreChoice;
use super::stores::Stores;
use crate::machine::config::Config;
use crate::machine::domains::handover::Handover;
use crate::machine::io::Source;
use crate::machine::moves::orders::end_slowing;
use crate::machine::moves::Moves;
use crate::machine::nodes::reach::Reach;
use crate::machine::outbox::consequence::Consequence;
use crate::machine::outbox::Outbox;
use crate::machine::ranks::Ranks;
use crate::machine::roles::Roles;
use crate::machine::saving::phase::Saving;
use crate::machine::timeouts::{BEGIN_TIMEOUT, RETRY, STORE_TIMEOUT};
use crate::record::Record;
use eyrie_wire::control::{ImageAt, ToAgent};
use eyrie_wire::{ImageId, Rank, RankInstance};
use std::time::Duration;

/// Which ranks are captured, and when.
pub struct Captures<'a> {
    pub config: &'a Config,
    pub out: &'a mut Outbox,
    pub reach: &'a Reach,
    pub ranks: &'a mut Ranks,
    pub roles: &'a Roles,
    pub stores: &'a Stores,
    pub schedule: &'a mut Schedule,
    pub moves: &'a mut Moves,
    pub saving: &'a Saving,
    pub handover: &'a Handover,
}

impl Captures<'_> {
    fn choice(&self) -> StoreChoice<'_> {
        let stores = self.stores;
        let reach = self.reach;
        let roles = self.roles;
        StoreChoice { stores, reach, ranks: self.ranks, roles }
    }

    /// Asks for the checkpoints that are due.
    pub fn capture_due(&mut self) {
        let now = self.out.now();
        if !self.schedule.is_due(now) {
            return;
        }
        let all_at_once = self.saving.is_going_on() || self.handover.is_imaging();
        let waits = self.schedule.one_by_one() && !all_at_once;
        let busy = waits && self.ranks.are_captured();
        let settled = self.saving.images_are_settled();
        // One after the other might keep the job from being saved for ever.
        let over = self.saving.imaging_is_over(now);
        for rank in self.schedule.due(now, busy) {
            let mode = self.config.checkpoint_mode;
            let store = self.choice().store_for(rank, &Copies::default());
            let hold = self.moves.holds(rank) || self.handover.holds(rank);
            if hold {
                end_slowing(self.moves, self.ranks, self.out, rank);
            }
            let r = &self.ranks[rank];
            let wanted = (!settled || r.is_exposed()) && !self.handover.is_held(rank);
            let can = wanted && !over && r.can_be_captured();
            let Some(store) = store.filter(|_| can) else {
                if !r.is_living() {
                    self.schedule.asked(rank, now);
                } else {
                    self.schedule.retry(rank, now + RETRY);
                }
                continue;
            };
            let instance = r.instance();
            let node = r.node();
            let image = self.ranks.begin_capture(rank, store, hold, now, now + BEGIN_TIMEOUT);
            self.schedule.asked(rank, now);
            let image_at = ImageAt::from(Source { image, store });
            let self_contained = self.config.self_contained;
            let capture =
                ToAgent::Capture { instance, image: image_at, mode, hold, self_contained };
            self.out.send_agent(node, capture);
            self.out.record(Record::CheckpointStarted { rank, image });
        }
    }

    /// The image of a checkpoint begins to arrive.
    pub fn image_begun(&mut self, instance: RankInstance, image: ImageId) {
        let now = self.out.now();
        let Some(capture) = self.ranks.capture_of(instance, image) else { return };
        if capture.begin(now + STORE_TIMEOUT) {
            self.out.follows(Consequence::CaptureBegun(instance.rank));
        }
    }

    /// The rank was captured: it stood still for so long.
    pub fn captured(&mut self, instance: RankInstance, image: ImageId, pause: Duration) {
        let now = self.out.now();
        let Some(capture) = self.ranks.capture_of(instance, image) else { return };
        capture.note_pause(pause);
        if capture.holds() {
            if let Some(moving) = self.moves.get_mut(instance.rank) {
                moving.stand_still(now.saturating_sub(pause));
            }
        }
    }

    /// The log of the rank has grown to so many bytes.
    pub fn log_grown(&mut self, rank: Rank, bytes: u64) {
        let Some(r) = self.ranks.get(rank).filter(|r| r.is_living()) else { return };
        let image_bytes = r.images().newest().map_or(0, |kept| kept.image.bytes);
        self.schedule.logged(rank, bytes, image_bytes);
    }

    /// The newest image may soon be of no use elsewhere.
    pub fn image_wanted(&mut self, instance: RankInstance, cause: String) {
        let now = self.out.now();
        let Some(r) = self.ranks.current(instance) else { return };
        if r.capture().is_none() && !r.images().is_empty() {
            self.schedule.want(instance.rank, now);
            self.out.record(Record::CheckpointWanted { rank: instance.rank, cause });
        }
    }
}
