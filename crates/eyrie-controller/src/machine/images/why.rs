//! For how long ranks have had no new image, and why there is no newer one.

use super::schedule::Schedule;
use super::stores::Stores;
use crate::machine::ranks::capture::Capture;
use crate::machine::ranks::entry::RankEntry;
use crate::machine::ranks::Ranks;
use crate::machine::state::RankStateName;
use eyrie_wire::Rank;
use std::time::Duration;

/// So many intervals may pass without a new image.
const INTERVALS: u32 = 3;
/// A rank is never overdue sooner: with short intervals a busy machine is no news.
pub const LEAST: Duration = Duration::from_secs(3);
/// An image that has been under way for so long is the reason itself; before, it is why the last
/// one failed.
const LONG_UNDER_WAY: Duration = Duration::from_secs(10);

/// What is asked of the images that ranks do not have.
#[derive(Clone, Copy)]
pub struct ImageAges<'a> {
    pub now: Duration,
    pub ranks: &'a Ranks,
    pub schedule: &'a Schedule,
    pub stores: &'a Stores,
}

impl ImageAges<'_> {
    /// How long a rank may be without a new image; `None` where none are taken by themselves.
    pub fn image_patience(self, r: &RankEntry) -> Option<Duration> {
        let interval = self.schedule.longest_interval(r.images().is_empty())?;
        Some(interval.saturating_mul(INTERVALS).max(LEAST))
    }

    /// For how long a rank has had no new image, if that is too long. While the job is being saved
    /// no image is overdue: then it is not to be asked.
    pub fn overdue_for(self, r: &RankEntry) -> Option<Duration> {
        let age = self.now.saturating_sub(r.images().since());
        let patience = self.image_patience(r).filter(|_| r.can_be_overdue())?;
        (age >= patience).then_some(age)
    }

    /// Why there is no newer image of the rank.
    pub fn why_no_image(self, rank: Rank) -> String {
        let r = &self.ranks[rank];
        let long = |c: &&Capture| self.now >= c.asked() + LONG_UNDER_WAY;
        if let Some(capture) = r.capture().filter(|c| long(c) || r.images().refused().is_none()) {
            return format!("one is under way, but {}", capture.lacks());
        }
        let state = match (r.state(), r.on_node()) {
            (RankStateName::Finished, _) => "it has finished",
            (RankStateName::Elsewhere, _) => "it is in another domain",
            (RankStateName::Waiting | RankStateName::Starting, _) => "it is being started",
            (RankStateName::Lost | RankStateName::Restoring, _) => "it is being recovered",
            (_, Some(on_node)) if !on_node.has_loaded() => {
                "its program has not called MPI_Init yet"
            }
            (_, Some(on_node)) if on_node.has_finalized() => {
                "its program has called MPI_Finalize, after which none is taken"
            }
            _ => "",
        };
        if !state.is_empty() {
            return state.into();
        }
        if let Some(cause) = r.images().refused() {
            return cause.clone();
        }
        if self.stores.for_images().next().is_none() {
            return "no store is up that could take it".into();
        }
        match self.ranks.first_captured() {
            Some(other) if self.schedule.one_by_one() => format!(
                "images are taken of one rank after the other, and one of rank {other} is under way"
            ),
            _ => "none was due yet".into(),
        }
    }
}
