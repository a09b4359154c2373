//! In which stores an image is. Plain data.

use crate::machine::io::StoreId;
use eyrie_wire::Rank;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Where an image lies.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Copies {
    /// Stores that have it whole.
    pub stores: BTreeSet<StoreId>,
    /// Stores that were told to copy it, and have not answered.
    pub coming: BTreeSet<StoreId>,
    /// Stores that could not copy it, or whose copy could not be used: they are not asked again.
    pub failed: BTreeSet<StoreId>,
}

impl Copies {
    /// The store that a rank fetches its image from: another than `avoid`, if there is one; ranks
    /// go round them.
    pub fn source(&self, rank: Rank, avoid: Option<StoreId>) -> Option<StoreId> {
        let mut stores: Vec<StoreId> = self.stores.iter().copied().collect();
        if stores.len() > 1 {
            stores.retain(|store| Some(*store) != avoid);
        }
        (!stores.is_empty()).then(|| stores[rank as usize % stores.len()])
    }

    /// Stores that have it or will have it.
    pub fn expected(&self) -> usize {
        self.stores.len() + self.coming.len()
    }

    pub fn concerns(&self, store: StoreId) -> bool {
        [&self.stores, &self.coming, &self.failed].iter().any(|set| set.contains(&store))
    }

    pub fn lose(&mut self, store: StoreId) {
        self.stores.remove(&store);
        self.coming.remove(&store);
    }
}
