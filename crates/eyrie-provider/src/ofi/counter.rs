//! How many one-sided operations are done: the contents of a counter.

use eyrie_libfabric::abi::*;

/// A counter.
#[repr(C)]
pub struct Cntr {
    pub(super) fid: fid_cntr,
    pub(super) value: u64,
    pub(super) errors: u64,
}

impl Cntr {
    /// An operation is over.
    pub fn count(&mut self, well: bool) {
        match well {
            true => self.value += 1,
            false => self.errors += 1,
        }
    }
}
