//! Copies between stores. The controller orders them; a few are made at a time, and the others
//! wait. The store reports the outcome of each to the controller, which alone waits for it.

use super::orders::Order;
use super::{StoreEvent, StoreRole, Stored, STALL};
use crate::{CopyError, SendError};
use eyrie_transport::{role, Stream};
use eyrie_wire::control::Claim;
use eyrie_wire::{ImageId, Rank, RankInstance};
use std::net::Shutdown;
use std::sync::Arc;

/// Copies that are made at a time.
const AT_A_TIME: usize = 2;

impl StoreRole {
    /// Starts the threads that make copies.
    pub(super) fn make_copies(self: &Arc<StoreRole>) {
        for _ in 0..AT_A_TIME {
            let role = Arc::clone(self);
            std::thread::spawn(move || {
                while let Some(order) = role.orders.next() {
                    let Order { instance, image, .. } = order;
                    match role.copy(&order) {
                        Ok(stored) => role.report_stored(instance, stored),
                        Err(reason) => {
                            (role.report)(StoreEvent::Failed { instance, image, reason })
                        }
                    }
                }
            });
        }
    }

    /// Accepts an order. The outcome is an event.
    pub(super) fn order_copy(&self, order: Order) {
        let Order { instance, image, .. } = order;
        if let Err(reason) = self.orders.add(order) {
            (self.report)(StoreEvent::Failed { instance, image, reason });
        }
    }

    fn copy(&self, order: &Order) -> Result<Stored, String> {
        let Order { instance, image, from } = order;
        let rank = instance.rank;
        let incarnation = instance.incarnation;
        if let Some(there) = self.there(*instance, *image)? {
            return Ok(there);
        }
        let failed = |e: String| format!("image {image} of rank {rank}, from {from}: {e}");
        let claim = Claim::ImageCopy { rank, image: *image };
        let stream = role::connect(from, &self.secret, &claim);
        let mut stream = stream.map_err(|e| failed(e.to_string()))?;
        stream.set_timeout(Some(STALL)).map_err(|e| failed(e.to_string()))?;
        match self.store.copy_from(rank, *image, incarnation, &mut stream) {
            Ok(copied) => tracing::debug!(%rank, %image, bytes = copied.bytes, "copied"),
            // The image is looked up below.
            Err(CopyError::Present) => {}
            Err(e) => {
                if let CopyError::Storage { source } = &e {
                    self.report_if_full(source);
                }
                return Err(failed(e.to_string()));
            }
        }
        let there = self.there(*instance, *image)?;
        there.ok_or_else(|| failed("it was discarded as soon as it was there".into()))
    }

    /// The image, if the store has it.
    ///
    /// # Errors
    /// When the store has it of another incarnation.
    fn there(&self, instance: RankInstance, image: ImageId) -> Result<Option<Stored>, String> {
        let images = self.store.images(instance.rank);
        let Some(there) = images.iter().find(|i| i.image == image) else { return Ok(None) };
        match self.stored(there)? {
            (found, stored) if found == instance => Ok(Some(stored)),
            (found, _) => Err(format!("image {image} here is of {found}, not of {instance}")),
        }
    }

    /// Sends a copy of an image to another store.
    pub(super) fn give(&self, rank: Rank, image: ImageId, mut stream: Stream) {
        let given = match stream.set_timeout(Some(STALL)) {
            Ok(()) => self.store.copy_to(rank, image, &mut stream),
            Err(source) => Err(SendError::Write { rank, image, source }),
        };
        // The other store may be gone.
        let _ = stream.shutdown(Shutdown::Write);
        // The other store reports to the controller what it was told, or what failed there.
        if let Err(error @ SendError::Damaged { .. }) = given {
            (self.report)(StoreEvent::Note(error.to_string()));
        }
    }
}
