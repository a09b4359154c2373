//! Copies that are ordered and not yet begun: a bounded queue.

use crossbeam_channel::{unbounded, Receiver, Sender};
use eyrie_wire::role_address::Addr;
use eyrie_wire::{ImageId, RankInstance};

/// Most copies that can be pending.
const MAX_WAITING: usize = 1 << 16;

/// A copy that the controller wants.
pub struct Order {
    pub instance: RankInstance,
    pub image: ImageId,
    /// The store that has the image.
    pub from: Addr,
}

/// The pending copies.
pub struct Orders {
    into: Sender<Order>,
    out: Receiver<Order>,
}

impl Orders {
    pub fn new() -> Orders {
        // A bounded channel would allocate megabytes before the first order.
        let (into, out) = unbounded();
        Orders { into, out }
    }

    /// # Errors
    /// When too many copies are pending.
    pub fn add(&self, order: Order) -> Result<(), String> {
        let added = self.into.len() < MAX_WAITING && self.into.send(order).is_ok();
        added
            .then_some(())
            .ok_or_else(|| format!("{MAX_WAITING} copies of images are pending already"))
    }

    /// Waits for the next order.
    pub fn next(&self) -> Option<Order> {
        self.out.recv().ok()
    }
}
