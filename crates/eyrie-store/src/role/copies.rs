//! Copies between stores: the controller orders them, a few are made at a time, the others wait.
//! What becomes of each is told to the controller, which is all that waits for it.

use super::{StoreEvent, StoreRole, Stored, STALL};
use crate::{CopyError, SendError};
use crossbeam_channel::{unbounded, Receiver, Sender};
use eyrie_transport::{role, Addr, Stream};
use eyrie_wire::control::Claim;
use eyrie_wire::{ImageId, Rank, RankInstance};
use std::net::Shutdown;
use std::sync::Arc;

/// Copies that are made at a time.
const AT_A_TIME: usize = 2;
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
        let (into, out) = unbounded();
        Orders { into, out }
    }
}

/// Starts the threads that make copies.
pub fn start(role: &Arc<StoreRole>) {
    for _ in 0..AT_A_TIME {
        let role = Arc::clone(role);
        std::thread::spawn(move || {
            while let Ok(order) = role.orders.out.recv() {
                let Order { instance, image, .. } = order;
                match role.copy(&order) {
                    Ok(stored) => role.tell_stored(instance, stored),
                    Err(reason) => (role.tell)(StoreEvent::Failed { instance, image, reason }),
                }
            }
        });
    }
}

impl StoreRole {
    /// Takes an order; what comes of it is an event.
    pub(super) fn order_copy(&self, order: Order) {
        let Order { instance, image, .. } = order;
        if self.orders.into.len() < MAX_WAITING {
            // The role holds the other end.
            let _ = self.orders.into.send(order);
            return;
        }
        let reason = format!("{MAX_WAITING} images wait to be copied already");
        (self.tell)(StoreEvent::Failed { instance, image, reason });
    }

    fn copy(&self, order: &Order) -> Result<Stored, String> {
        let Order { instance, image, from } = order;
        let (rank, incarnation) = (instance.rank, instance.incarnation);
        if let Some(there) = self.there(*instance, *image)? {
            return Ok(there);
        }
        let failed = |e: String| format!("image {image} of rank {rank}, from {from}: {e}");
        let claim = Claim::ImageCopy { rank, image: *image };
        let stream = role::connect(from, &self.secret, &claim);
        let mut stream = stream.map_err(|e| failed(e.to_string()))?;
        stream.set_timeout(Some(STALL)).map_err(|e| failed(e.to_string()))?;
        match self.store.copy_from(rank, *image, incarnation.into(), &mut stream) {
            Ok(copied) => tracing::debug!(rank, image, bytes = copied.bytes, "copied"),
            // Looked at below.
            Err(CopyError::Present) => {}
            Err(e) => return Err(failed(e.to_string())),
        }
        let there = self.there(*instance, *image)?;
        there.ok_or_else(|| failed("it was discarded as soon as it was there".into()))
    }

    /// The image, if it is there.
    ///
    /// # Errors
    /// When it is there of another incarnation.
    fn there(&self, instance: RankInstance, image: ImageId) -> Result<Option<Stored>, String> {
        let images = self.store.images(instance.rank);
        let Some(there) = images.iter().find(|i| i.image == image) else { return Ok(None) };
        match self.stored(there)? {
            (found, stored) if found == instance => Ok(Some(stored)),
            (found, _) => Err(format!("image {image} here is of {found}, not of {instance}")),
        }
    }

    /// Hands a copy of an image to another store.
    pub(super) fn give(&self, rank: Rank, image: ImageId, mut stream: Stream) {
        let given = match stream.set_timeout(Some(STALL)) {
            Ok(()) => self.store.copy_to(rank, image, &mut stream),
            Err(source) => Err(SendError::Write { rank, image, source }),
        };
        // The other store may be gone.
        let _ = stream.shutdown(Shutdown::Write);
        // It tells the controller itself what it was told, or what went wrong there.
        if let Err(error @ SendError::Damaged { .. }) = given {
            (self.tell)(StoreEvent::Note(error.to_string()));
        }
    }
}
