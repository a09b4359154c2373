//! Which stores are up. Decides nothing.

use super::copies::Copies;
use crate::machine::outbox::Outbox;
use eyrie_store::role::StoreCommand;
use eyrie_wire::control::StoreAt;
use eyrie_wire::role_address::Addr;
use eyrie_wire::{ImageId, Rank, RankInstance, StoreId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The store that has the images of a saved job: the only one, or the archive.
pub const SAVED: StoreId = StoreId(0);

/// The stores of a job.
#[derive(Debug, Serialize, Deserialize)]
pub struct Stores {
    up: BTreeSet<StoreId>,
    lost: BTreeSet<StoreId>,
    /// The first of them is the archive, which is handed no images.
    has_archive: bool,
    /// Where the first of them listens, if it runs beside the controller and has said it.
    beside: Option<Addr>,
}

impl Stores {
    pub fn new(count: u32, has_archive: bool) -> Stores {
        Stores {
            up: StoreId::first(count).collect(),
            lost: BTreeSet::new(),
            has_archive,
            beside: None,
        }
    }

    pub fn is_archive(&self, store: StoreId) -> bool {
        self.has_archive && store == SAVED
    }

    pub fn is_up(&self, store: StoreId) -> bool {
        self.up.contains(&store)
    }

    /// A store that is on no node listens there.
    pub fn listens(&mut self, store: StoreId, addr: Addr) {
        if store == SAVED {
            self.beside = Some(addr);
        }
    }

    /// Where a store listens that is on no node.
    pub fn addr(&self, store: StoreId) -> Option<&Addr> {
        self.beside.as_ref().filter(|_| store == SAVED)
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
    for store in copies.stores() {
        out.send_store(store, StoreCommand::Discard { rank, image });
    }
}

/// The store copies an image from another one.
pub fn copy_image(
    out: &mut Outbox,
    store: StoreId,
    from: StoreId,
    instance: RankInstance,
    image: ImageId,
) {
    let from = StoreAt { store: from, addr: None };
    out.send_store(store, StoreCommand::Copy { instance, image, from });
}
