//! What was observed and has left the program's recorder, as long as the ledger has no room for it.
//! It is part of an image.

use crate::core::world::World;

/// What was observed and does not lie in the ledger yet, because that is full.
#[derive(Default)]
pub(super) struct Unwritten {
    /// Where it begins in the stream of observations.
    from: u64,
    pub bytes: Vec<u8>,
}

impl Unwritten {
    /// Takes what was observed since.
    pub fn take(&mut self, host: &mut impl World) {
        host.take_observed(&mut |from, bytes| {
            if self.bytes.is_empty() {
                self.from = from;
            }
            self.bytes.extend_from_slice(bytes);
        });
    }

    /// Up to here it is written.
    pub fn drop_before(&mut self, end: u64) {
        let written = (end.saturating_sub(self.from) as usize).min(self.bytes.len());
        self.bytes.drain(..written);
        self.from += written as u64;
    }
}
