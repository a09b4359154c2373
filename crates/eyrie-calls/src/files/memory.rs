//! shm_open(3): memory that has a name. A rank that is executed again makes it anew. Changes of it
//! are not recorded, because no changes of memory are.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most segments that are known; of more of them calls are recorded as of files.
const MOST: usize = 64;

struct Segments(UnsafeCell<[(u64, u64); MOST]>);

// SAFETY: used in calls that are being recorded, of which there is one at a time.
unsafe impl Sync for Segments {}

static SEGMENTS: Segments = Segments(UnsafeCell::new([(0, 0); MOST]));
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether the file of this number is memory.
pub fn is_memory(number: (u64, u64)) -> bool {
    let count = COUNT.load(Ordering::Relaxed);
    // SAFETY: this call is being recorded, of which there is one at a time.
    count > 0 && unsafe { &*SEGMENTS.0.get() }[..count.min(MOST)].contains(&number)
}

/// The file of this number is.
pub fn note(number: (u64, u64)) {
    if !is_memory(number) {
        let at = COUNT.fetch_add(1, Ordering::Relaxed) % MOST;
        // SAFETY: this call is being recorded, of which there is one at a time.
        unsafe { (*SEGMENTS.0.get())[at] = number };
    }
}
