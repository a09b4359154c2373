//! How much there is to do when a rank that is executed again does something new: its open files,
//! its locks. While there is nothing, as nearly always, the question costs one load.

use std::sync::atomic::{AtomicUsize, Ordering};

static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether there is anything.
#[inline]
pub fn any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// The number, for the provider.
pub const fn count() -> &'static AtomicUsize {
    &COUNT
}

/// One thing more.
pub fn add() {
    COUNT.fetch_add(1, Ordering::Relaxed);
}

/// One was done, or need not be done any more.
pub fn remove() {
    COUNT.fetch_sub(1, Ordering::Relaxed);
}
