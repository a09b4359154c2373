//! Where the next image of a rank goes, and why there is no newer one.

use super::copies::Copies;
use crate::machine::io::StoreId;
use crate::machine::ranks::capture::Capture;
use crate::machine::ranks::entry::RankEntry;
use crate::machine::state::RankStateName;
use crate::machine::view::View;
use eyrie_wire::control::RoleKind;
use eyrie_wire::Rank;
use std::time::Duration;

/// So many intervals may pass without a new image.
const INTERVALS: u32 = 3;
/// A rank is never overdue sooner: with short intervals a busy machine is no news.
pub const LEAST: Duration = Duration::from_secs(3);
/// An image that has been under way for so long is the reason itself; before, it is why the last
/// one failed.
const LONG_UNDER_WAY: Duration = Duration::from_secs(10);

impl View<'_> {
    /// The store for a further copy of an image of this rank: one that the rank's host reaches, as
    /// the first copy needs; then one that has its newest image, which shares most with this one;
    /// else ranks go round the stores.
    pub fn store_for(self, rank: Rank, copies: &Copies) -> Option<StoreId> {
        let up: Vec<StoreId> = self.stores.for_images().collect();
        let r = &self.ranks[rank];
        let far = |id: &StoreId| {
            let node = self.roles.node(RoleKind::Store, *id);
            node.is_some_and(|node| self.reach.cannot_meet(r.node, node))
        };
        let newest = r.images.last();
        let knows = |store: &StoreId| newest.is_some_and(|i| i.copies.stores.contains(store));
        let (before, after) = up.split_at(rank as usize % up.len().max(1));
        let free = after.iter().chain(before).copied().filter(|s| !copies.concerns(*s));
        free.min_by_key(|store| (far(store), !knows(store)))
    }

    /// How long a rank may be without a new image; `None` where none are taken by themselves.
    pub fn image_patience(self, r: &RankEntry) -> Option<Duration> {
        let interval = self.schedule.longest_interval(r.images.is_empty())?;
        Some(interval.saturating_mul(INTERVALS).max(LEAST))
    }

    /// For how long a rank has had no new image, if that is too long.
    pub fn overdue_for(self, r: &RankEntry) -> Option<Duration> {
        let age = self.out.now().saturating_sub(r.imaged);
        let expected = r.can_be_overdue() && !self.saving.is_going_on();
        let patience = self.image_patience(r).filter(|_| expected)?;
        (age >= patience).then_some(age)
    }

    /// Why there is no newer image of the rank.
    pub fn why_no_image(self, rank: Rank) -> String {
        let r = &self.ranks[rank];
        let long = |c: &&Capture| self.out.now() >= c.asked + LONG_UNDER_WAY;
        if let Some(capture) = r.capture().filter(|c| long(c) || r.refused.is_none()) {
            return format!("one is under way, but {}", capture.lacks());
        }
        let state = match (r.state.name(), r.on_node()) {
            (RankStateName::Finished, _) => "it has finished",
            (RankStateName::Waiting | RankStateName::Starting, _) => "it is being started",
            (RankStateName::Lost | RankStateName::Restoring, _) => "it is being recovered",
            (_, Some(on_node)) if !on_node.loaded => "its program has not called MPI_Init yet",
            (_, Some(on_node)) if on_node.finalized => {
                "its program has called MPI_Finalize, after which none is taken"
            }
            _ => "",
        };
        if !state.is_empty() {
            return state.into();
        }
        if let Some(cause) = &r.refused {
            return cause.clone();
        }
        if self.store_for(rank, &Default::default()).is_none() {
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
