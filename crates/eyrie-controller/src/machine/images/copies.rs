//! In which stores an image is. It must never count a store that could not use its copy.

use eyrie_wire::Rank;
use eyrie_wire::StoreId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Where an image lies.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Copies {
    /// Stores that have it whole.
    stores: BTreeSet<StoreId>,
    /// Stores that were told to copy it, and have not answered.
    coming: BTreeSet<StoreId>,
    /// Stores that could not copy it, or whose copy could not be used: they are not asked again.
    failed: BTreeSet<StoreId>,
}

impl Copies {
    /// One store has it, and no other.
    pub fn in_one(store: StoreId) -> Copies {
        Copies { stores: BTreeSet::from([store]), ..Copies::default() }
    }

    /// The store that a rank fetches its image from: another than `avoid`, if there is one; ranks
    /// go round them.
    pub fn source(&self, rank: Rank, avoid: Option<StoreId>) -> Option<StoreId> {
        let mut stores: Vec<StoreId> = self.stores.iter().copied().collect();
        if stores.len() > 1 {
            stores.retain(|store| Some(*store) != avoid);
        }
        (!stores.is_empty()).then(|| stores[rank.index() % stores.len()])
    }

    /// Stores that have it whole.
    pub fn stores(&self) -> impl Iterator<Item = StoreId> + '_ {
        self.stores.iter().copied()
    }

    /// How many stores have it whole.
    pub fn count(&self) -> usize {
        self.stores.len()
    }

    /// How many stores have it or will have it.
    pub fn expected(&self) -> usize {
        self.stores.len() + self.coming.len()
    }

    /// Whether no store has it.
    pub fn are_lost(&self) -> bool {
        self.stores.is_empty()
    }

    pub fn has(&self, store: StoreId) -> bool {
        self.stores.contains(&store)
    }

    /// Whether another store than this one has it.
    pub fn are_beside(&self, store: StoreId) -> bool {
        self.stores.iter().any(|other| *other != store)
    }

    /// Whether a store is copying it.
    pub fn are_coming(&self) -> bool {
        !self.coming.is_empty()
    }

    pub fn concerns(&self, store: StoreId) -> bool {
        [&self.stores, &self.coming, &self.failed].iter().any(|set| set.contains(&store))
    }

    /// A store is told to copy it. False: it was told before.
    pub fn order(&mut self, store: StoreId) -> bool {
        self.coming.insert(store)
    }

    /// What the store was told is not done any more.
    pub fn cancel(&mut self, store: StoreId) {
        self.coming.remove(&store);
    }

    /// A store has it whole. `uploaded`: it was handed to that store. False, and nothing else: it
    /// was not expected there.
    pub fn arrive(&mut self, store: StoreId, uploaded: bool) -> bool {
        let ordered = self.coming.remove(&store);
        if uploaded || ordered {
            self.stores.insert(store);
        }
        uploaded || ordered
    }

    /// A store could not copy it. False: it was not told to, or failed before.
    pub fn copy_failed(&mut self, store: StoreId) -> bool {
        self.coming.remove(&store) && self.failed.insert(store)
    }

    /// The copies in all stores, or in this one, cannot be used. Returns those that were there.
    pub fn drop_bad(&mut self, only: Option<StoreId>) -> Copies {
        let is_bad = |store: &StoreId| only.is_none_or(|only| *store == only);
        let bad: BTreeSet<StoreId> = self.stores.iter().copied().filter(is_bad).collect();
        self.stores.retain(|store| !bad.contains(store));
        self.failed.extend(&bad);
        Copies { stores: bad, ..Copies::default() }
    }

    /// The store is lost with what it had.
    pub fn lose(&mut self, store: StoreId) {
        self.stores.remove(&store);
        self.coming.remove(&store);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_handed_or_ordered_counts() {
        let mut copies = Copies::default();
        assert!(!copies.arrive(StoreId(1), false) && copies.are_lost(), "it was not told to");
        assert!(
            copies.arrive(StoreId(1), true)
                && copies.order(StoreId(2))
                && !copies.order(StoreId(2))
        );
        assert_eq!((copies.count(), copies.expected()), (1, 2));
        assert!(copies.arrive(StoreId(2), false) && !copies.are_coming() && copies.has(StoreId(2)));
        assert!(
            copies.are_beside(StoreId(1)) && !Copies::in_one(StoreId(1)).are_beside(StoreId(1))
        );
    }

    #[test]
    fn a_store_that_failed_is_known_and_what_it_had_is_no_source() {
        let mut copies = Copies::in_one(StoreId(1));
        assert!(!copies.copy_failed(StoreId(2)), "it was not told to");
        assert!(
            copies.order(StoreId(2))
                && copies.copy_failed(StoreId(2))
                && copies.concerns(StoreId(2))
                && !copies.has(StoreId(2))
        );
        assert!(copies.arrive(StoreId(3), true));
        assert_eq!(copies.source(Rank(0), Some(StoreId(1))), Some(StoreId(3)));
        assert_eq!(copies.drop_bad(Some(StoreId(3))), Copies::in_one(StoreId(3)));
        assert_eq!(
            (copies.source(Rank(0), Some(StoreId(1))), copies.concerns(StoreId(3))),
            (Some(StoreId(1)), true)
        );
        assert_eq!(copies.drop_bad(None), Copies::in_one(StoreId(1)));
        assert!(copies.are_lost() && copies.source(Rank(0), None).is_none());
    }
}
