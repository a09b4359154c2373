//! Memory that is a mapping of a shared file. The caller has mapped it: nothing here makes a system
//! call but for the pages of what will be written. It must not be used after the mapping is gone.

use crate::memory::{Hints, Memory, View};
use std::io;
use std::ptr;
use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};

/// A mapping that is read.
#[derive(Clone, Copy, Debug)]
pub struct MappedView {
    base: *const u8,
    bytes: u64,
}

/// A mapping that is read and written: a rank's own region, or the keeper's.
#[derive(Clone, Copy, Debug)]
pub struct Mapped {
    view: MappedView,
}

/// A mapping of bells and boards.
#[derive(Clone, Copy, Debug)]
pub struct MappedHints {
    base: *mut u8,
    bytes: u64,
}

// SAFETY: `new` promises the mapping to whatever uses a copy, not to one thread; all words are
// loaded and stored as atomics, because other processes store there anyway.
unsafe impl Send for MappedView {}

impl MappedView {
    /// # Safety
    /// `bytes` bytes from `base` on stay mapped, readable, for as long as a copy of this is used,
    /// from a file that does not shrink; `base` is a multiple of 64.
    pub const unsafe fn new(base: *const u8, bytes: u64) -> MappedView {
        MappedView { base, bytes }
    }

    #[inline]
    fn word(&self, at: u64) -> &AtomicU64 {
        assert!(at % 8 == 0 && at < self.bytes && self.bytes - at >= 8, "a word outside");
        // SAFETY: `new` promises the mapping; the line above, that the place is in it and aligned.
        // Other processes change the word by atomic stores only.
        unsafe { &*self.base.add(at as usize).cast() }
    }

    #[inline]
    fn range(&self, at: u64, bytes: usize) -> *const u8 {
        assert!(at <= self.bytes && self.bytes - at >= bytes as u64, "bytes outside");
        self.base.wrapping_add(at as usize)
    }
}

impl View for MappedView {
    #[inline]
    fn bytes(&self) -> u64 {
        self.bytes
    }
    #[inline]
    fn load(&self, at: u64) -> u64 {
        self.word(at).load(Ordering::Relaxed)
    }
    #[inline]
    fn load_acquire(&self, at: u64) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }
    #[inline]
    fn read(&self, at: u64, to: &mut [u8]) {
        let from = self.range(at, to.len());
        // SAFETY: `range` has compared with the bounds of the mapping, which `new` promises. The
        // writer does not change bytes that it has published; if it does all the same, because its
        // process writes nonsense, what is copied is nonsense, too, and nothing else happens.
        unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
    }
    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

impl Mapped {
    /// # Safety
    /// As [`MappedView::new`], and the mapping is writable, and of the file itself (`MAP_SHARED`).
    pub const unsafe fn new(base: *mut u8, bytes: u64) -> Mapped {
        Mapped { view: MappedView { base, bytes } }
    }

    /// The same memory, to be read.
    pub const fn view(&self) -> MappedView {
        self.view
    }
}

impl View for Mapped {
    #[inline]
    fn bytes(&self) -> u64 {
        self.view.bytes
    }
    #[inline]
    fn load(&self, at: u64) -> u64 {
        self.view.load(at)
    }
    #[inline]
    fn load_acquire(&self, at: u64) -> u64 {
        self.view.load_acquire(at)
    }
    #[inline]
    fn read(&self, at: u64, to: &mut [u8]) {
        self.view.read(at, to);
    }
    #[inline]
    fn fence(&self) {
        self.view.fence();
    }
}

impl Memory for Mapped {
    #[inline]
    fn store(&self, at: u64, word: u64) {
        self.view.word(at).store(word, Ordering::Relaxed);
    }
    #[inline]
    fn store_release(&self, at: u64, word: u64) {
        self.view.word(at).store(word, Ordering::Release);
    }
    #[inline]
    fn write(&self, at: u64, from: &[u8]) {
        let to = self.view.range(at, from.len()).cast_mut();
        // SAFETY: `range` has compared with the bounds of the mapping, which `new` promises to be
        // writable. Readers do not look at bytes before they are published.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
    }
    fn populate(&self, at: u64, bytes: u64) -> bool {
        let from = self.view.range(at, bytes as usize).cast_mut();
        // SAFETY: `range` has compared with the bounds of the mapping, which `new` promises to be
        // writable; making pages for it does not change its content.
        let made = unsafe { libc::madvise(from.cast(), bytes as usize, libc::MADV_POPULATE_WRITE) };
        // A kernel before 5.14 makes them when they are written.
        made == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
    }
}

impl MappedHints {
    /// # Safety
    /// As [`Mapped::new`].
    pub const unsafe fn new(base: *mut u8, bytes: u64) -> MappedHints {
        MappedHints { base, bytes }
    }

    /// The word at this place: a futex to sleep at.
    #[inline]
    pub fn word(&self, at: u64) -> &AtomicU32 {
        assert!(at % 4 == 0 && at < self.bytes && self.bytes - at >= 4, "a word outside");
        // SAFETY: `new` promises the mapping; the line above, that the place is in it and aligned.
        unsafe { &*self.base.add(at as usize).cast() }
    }
}

impl Hints for MappedHints {
    #[inline]
    fn load(&self, at: u64) -> u32 {
        self.word(at).load(Ordering::Relaxed)
    }
    #[inline]
    fn store(&self, at: u64, word: u32) {
        self.word(at).store(word, Ordering::Relaxed);
    }
    #[inline]
    fn add(&self, at: u64, n: u32) {
        self.word(at).fetch_add(n, Ordering::Release);
    }
    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}
