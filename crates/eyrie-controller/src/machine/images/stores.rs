//! Which stores are up. Decides nothing.

use super::copies::Copies;
use crate::machine::io::{Command, StoreId};
use crate::machine::outbox::Outbox;
use eyrie_wire::{ImageId, Rank};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The store that has the images of a saved job: the only one, or the archive.
pub const SAVED: StoreId = 0;

/// The stores of a job.
#[derive(Debug, Serialize, Deserialize)]
pub struct Stores {
    up: BTreeSet<StoreId>,
    lost: BTreeSet<StoreId>,
    /// The first of them is the archive, which is handed no images.
    has_archive: bool,
}

impl Stores {
    pub fn new(count: u32, has_archive: bool) -> Stores {
        Stores { up: (0..count).collect(), lost: BTreeSet::new(), has_archive }
    }

    pub fn is_archive(&self, store: StoreId) -> bool {
        self.has_archive && store == SAVED
    }

    pub fn is_up(&self, store: StoreId) -> bool {
        self.up.contains(&store)
    }

    /// Those that are handed images.
    pub fn for_images(&self) -> impl Iterator<Item = StoreId> + '_ {
        self.up.iter().copied().filter(|store| !self.is_archive(*store))
    }

    /// A store more can be used; false when it was known, or is lost.
    pub fn add(&mut self, store: StoreId) -> bool {
        !self.lost.contains(&store) && self.up.insert(store)
    }

    /// A store is lost, for good; false when it was not up.
    pub fn lose(&mut self, store: StoreId) -> bool {
        self.lost.insert(store);
        self.up.remove(&store)
    }
}

/// An image is needed no more. Copies that are still coming are discarded when they have come.
pub fn discard(out: &mut Outbox, rank: Rank, image: ImageId, copies: &Copies) {
    let discards = copies.stores().map(|store| Command::DiscardImage { store, rank, image });
    out.extend(discards);
}
