//! Copies that are ordered and wait to be made: a bounded queue, and nothing else.

use crossbeam_channel::{unbounded, Receiver, Sender};
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
        // A bounded one would take its memory, megabytes, before the first order.
        let (into, out) = unbounded();
        Orders { into, out }
    }

    /// # Errors
    /// A sentence when too many wait.
    pub fn add(&self, order: Order) -> Result<(), String> {
        let added = self.into.len() < MAX_WAITING && self.into.send(order).is_ok();
        added.then_some(()).ok_or_else(|| format!("{MAX_WAITING} images wait to be copied already"))
    }

    /// Waits for the next one.
    pub fn next(&self) -> Option<Order> {
        self.out.recv().ok()
    }
}
