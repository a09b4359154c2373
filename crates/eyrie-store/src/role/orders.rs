//! Copies that are ordered and wait to be made: a bounded queue, and nothing else.

use crossbeam_channel::{bounded, Receiver, Sender};
use eyrie_transport::Addr;
use eyrie_wire::{ImageId, RankInstance};

/// Most copies that wait.
const MAX_WAITING: usize = 1 << 16;

/// A copy that the controller wants.
pub struct Order {
    pub instance: RankInstance,
    pub image: ImageId,
    /// The store that has the image.
    pub from: Addr,
}

/// The copies that wait.
pub struct Orders {
    into: Sender<Order>,
    out: Receiver<Order>,
}

impl Orders {
    pub fn new() -> Orders {
        let (into, out) = bounded(MAX_WAITING);
        Orders { into, out }
    }

    /// # Errors
    /// A sentence when too many wait.
    pub fn add(&self, order: Order) -> Result<(), String> {
        let added = self.into.try_send(order);
        added.map_err(|_| format!("{MAX_WAITING} images wait to be copied already"))
    }

    /// Waits for the next one.
    pub fn next(&self) -> Option<Order> {
        self.out.recv().ok()
    }
}
