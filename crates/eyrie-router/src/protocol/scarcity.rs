//! Asking for images while space is scarce.

use super::kept::Kept;
use super::orders::RouterEvent;
use super::output::Output;
use super::ranks::Ranks;
use super::room::Room;
use crate::space::{Fill, Space, Store};
use eyrie_wire::Rank;

/// Asks for images.
pub struct Scarcity<'a, S: Store> {
    pub ranks: &'a Ranks,
    pub kept: &'a Kept,
    pub room: &'a Room,
    pub space: &'a Space<S>,
}

impl<S: Store> Scarcity<'_, S> {
    /// Asks for an image of the rank whose log takes most space, while space is scarce.
    pub fn report(&self, out: &mut impl Output<S::File>) {
        // What a gateway holds of messages goes with the line, not with an image.
        let log = self.space.fill() >= Fill::Scarce || self.room.pressed.is_some();
        let scarce = (log && !self.kept.is_gateway())
            || self.room.is_scarce_with(self.ranks.observed_memory());
        if let Some(rank) = self.largest().filter(|_| scarce) {
            out.event(RouterEvent::LogScarce { rank });
        }
    }

    /// The rank whose log takes most space.
    pub fn largest(&self) -> Option<Rank> {
        let held = |rank: &Rank| self.kept.log(*rank).held() + self.ranks.observed(*rank).memory();
        let ranks = Rank::first(self.ranks.count() as u32);
        let ranks = ranks.filter(|rank| !self.kept.is_elsewhere(*rank));
        ranks.filter(|rank| held(rank) > 0).max_by_key(held)
    }
}
