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
        if well {
            self.value += 1;
        } else {
            self.errors += 1;
        }
    }
}
