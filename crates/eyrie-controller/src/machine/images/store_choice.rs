//! Which store is handed an image, or a copy of it.

use super::copies::Copies;
use super::stores::Stores;
use crate::machine::nodes::reach::Reach;
use crate::machine::ranks::Ranks;
use crate::machine::roles::Roles;
use eyrie_wire::control::RoleKind;
use eyrie_wire::{Rank, StoreId};

/// What decides where images go.
#[derive(Clone, Copy)]
pub struct StoreChoice<'a> {
    pub stores: &'a Stores,
    pub reach: &'a Reach,
    pub ranks: &'a Ranks,
    pub roles: &'a Roles,
}

impl StoreChoice<'_> {
    /// The store for a further copy of an image of this rank: one that the rank's host reaches, as
    /// the first copy needs; then one that has its newest image, which shares most with this one;
    /// else ranks go round the stores.
    pub fn store_for(self, rank: Rank, copies: &Copies) -> Option<StoreId> {
        let up: Vec<StoreId> = self.stores.for_images().collect();
        let r = &self.ranks[rank];
        let far = |id: &StoreId| {
            let node = self.roles.node(RoleKind::Store, id.0);
            node.is_some_and(|node| self.reach.cannot_meet(r.node(), node))
        };
        let newest = r.images().newest();
        let knows = |store: &StoreId| newest.is_some_and(|i| i.copies.has(*store));
        let (before, after) = up.split_at(rank.index() % up.len().max(1));
        let free = after.iter().chain(before).copied().filter(|s| !copies.concerns(*s));
        free.min_by_key(|store| (far(store), !knows(store)))
    }
}
