//! The provider's own memory: a stretch of addresses that is reserved when the provider is loaded,
//! and an allocator in it. Programs send addresses. So the results of the program's malloc and mmap
//! must never depend on the moments at which messages come, and the provider must never use these.

use crate::ending::fatal;
use dlmalloc::{Allocator, Dlmalloc};
use eyrie_wire::page::{RankPage, PAGE_BYTES};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Where the stretch begins: above programs and their heaps, below the restorer's stretch
/// (`eyrie_image_format::WINDOW_START`) and far below what the kernel gives to mmap.
const START: usize = 0x6400_0000_0000;
/// Lengths in bytes that are tried in turn. Where address space is limited (`ulimit -v`) the
/// program needs some, too: then it is the first that is at most half of what is left, or else the
/// last.
const LENGTHS: [usize; 6] = [64 << 30, 16 << 30, 4 << 30, 1 << 30, 256 << 20, LEAST];
const LEAST: usize = 64 << 20;
/// The allocator asks for multiples of this, in bytes.
const GRANULE: usize = 64 << 10;
const MAX_GRANULES: usize = LENGTHS[0] / GRANULE;
/// Pieces of so many bytes and more are stretches of their own, and go back to the kernel as a
/// whole.
const LARGE_BYTES: usize = 4 * GRANULE;
/// Bytes that stay here when they are free: pages that are there already are faster than
/// new ones from the kernel.
const KEPT_BYTES: usize = 16 << 20;

/// The stretch begins with a guard that is never mapped, then the stack of provider calls, another
/// guard, and the stack of signal handlers.
const GUARD: usize = GRANULE;
pub const STACK_BYTES: usize = 1 << 20;
/// Where the stack of provider calls begins; it grows down.
pub const STACK_TOP: usize = START + GUARD + STACK_BYTES;
pub const SIGNAL_STACK: usize = STACK_TOP + GUARD;
pub const SIGNAL_STACK_BYTES: usize = 2 * GRANULE;
/// Then comes a granule for the rank's page, which is shared with the agent.
const PAGE_AT: usize = SIGNAL_STACK + SIGNAL_STACK_BYTES;
const _: () = assert!(PAGE_BYTES <= GRANULE);
/// Granules that the allocator must not use.
const FIXED_GRANULES: usize = (PAGE_AT + GRANULE - START) / GRANULE;

/// Bytes reserved; 0 before [`reserve`].
static LENGTH: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static HEAP: Heap = Heap {
    locked: AtomicBool::new(false),
    inner: UnsafeCell::new(Dlmalloc::new_with_allocator(Granules)),
};

/// Why there is no stretch. Reporting it must not allocate: all memory would come from the stretch.
#[derive(Clone, Copy, Debug)]
pub enum Shortage {
    /// The addresses are taken, or not allowed.
    Addresses,
    /// The memory for the stacks is not allowed.
    Stacks,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shortage::Addresses => write!(
                f,
                "Eyrie's provider needs {} MiB of addresses at {START:#x} above what the program uses, \
                 and they are taken or not allowed: raise the limit on address space (`ulimit -v`)",
                LEAST >> 20
            ),
            Shortage::Stacks => write!(
                f,
                "there is no memory for the stacks of Eyrie's provider: raise the limit on data \
                 (`ulimit -d`)"
            ),
        }
    }
}

/// Bytes of addresses that this process may still get.
fn left() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one rlimit structure, which is ours.
    let asked = unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) };
    if asked != 0 || limit.rlim_cur == libc::RLIM_INFINITY {
        return usize::MAX;
    }
    (limit.rlim_cur as usize).saturating_sub(in_use().unwrap_or(0))
}

/// Bytes of addresses that this process has.
fn in_use() -> Option<usize> {
    let mut text = [0u8; 64];
    // SAFETY: the path is a C string, the room is as long as said, the descriptor is ours.
    let len = unsafe {
        let file =
            libc::open(c"/proc/thread-self/statm".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        let len = libc::read(file, text.as_mut_ptr().cast(), text.len());
        libc::close(file);
        usize::try_from(len).ok()?
    };
    let pages = std::str::from_utf8(&text[..len]).ok()?.split(' ').next()?;
    Some(pages.parse::<usize>().ok()? * 4096)
}

/// Reserves the stretch. Memory in it counts only when it is used. Allocates nothing.
///
/// # Errors
/// When the addresses are taken or not to be had.
pub fn reserve() -> Result<(), Shortage> {
    if LENGTH.load(Ordering::Relaxed) != 0 {
        return Ok(());
    }
    let most = (left() / 2).max(LEAST);
    for len in LENGTHS.into_iter().filter(|len| *len <= most) {
        let flags = libc::MAP_PRIVATE
            | libc::MAP_ANONYMOUS
            | libc::MAP_NORESERVE
            | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: MAP_FIXED_NOREPLACE replaces nothing that is mapped.
        let got = unsafe { libc::mmap(START as *mut _, len, libc::PROT_NONE, flags, -1, 0) };
        if got as usize == START {
            let calls = open(GUARD / GRANULE, STACK_BYTES / GRANULE);
            let signals = open((SIGNAL_STACK - START) / GRANULE, SIGNAL_STACK_BYTES / GRANULE);
            if !calls || !signals {
                return Err(Shortage::Stacks);
            }
            LENGTH.store(len, Ordering::Relaxed);
            return Ok(());
        }
        if got != libc::MAP_FAILED {
            // SAFETY: an older kernel ignores the flag and has mapped `got` elsewhere. It is not in
            // use.
            unsafe { libc::munmap(got, len) };
        }
    }
    Err(Shortage::Addresses)
}

/// Ends the rank: the provider has no more memory. Nothing here may allocate.
fn exhausted() -> ! {
    fatal(
        "Eyrie's provider has used up the memory that it may have: raise the limits on address space \
         and data (`ulimit -v`, `ulimit -d`)",
    )
}

/// The stretch of the rank's page (address, length in bytes): it is not part of an image.
pub const PAGE_STRETCH: (usize, usize) = (PAGE_AT, PAGE_BYTES);

/// Maps the rank's page, in place of the one of an earlier incarnation.
///
/// # Errors
/// When it cannot be mapped.
pub fn map_page(page: &OwnedFd) -> Result<(), String> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    // SAFETY: within our own reservation, at a place that nothing else uses.
    let got =
        unsafe { libc::mmap(PAGE_AT as *mut _, PAGE_BYTES, prot, flags, page.as_raw_fd(), 0) };
    if got as usize == PAGE_AT {
        Ok(())
    } else {
        Err(format!("the rank's page cannot be mapped: {}", io::Error::last_os_error()))
    }
}

/// The rank's page. It is there from the welcome on.
pub fn page() -> &'static RankPage {
    // SAFETY: `map_page` maps it before there is a rank, and only another page takes its place. All
    // fields are atomic, so the agent may access them meanwhile.
    unsafe { &*(PAGE_AT as *const RankPage) }
}

/// Hands out stretches of granules.
struct Granules;

/// One bit for each granule.
struct Bits([u64; MAX_GRANULES / 64]);

/// The state of the granules.
struct Book {
    taken: Bits,
    /// Free granules whose pages are still there.
    kept: Bits,
    kept_count: usize,
}

struct Shared(UnsafeCell<Book>);
// SAFETY: used under the lock of `HEAP` only.
unsafe impl Sync for Shared {}
static BOOK: Shared = Shared(UnsafeCell::new(Book {
    taken: Bits([0; MAX_GRANULES / 64]),
    kept: Bits([0; MAX_GRANULES / 64]),
    kept_count: 0,
}));

impl Bits {
    fn get(&self, n: usize) -> bool {
        self.0[n / 64] >> (n % 64) & 1 != 0
    }

    fn set(&mut self, range: Range<usize>, to: bool) {
        for n in range {
            if to {
                self.0[n / 64] |= 1 << (n % 64);
            } else {
                self.0[n / 64] &= !(1 << (n % 64));
            }
        }
    }

    fn count(&self, range: Range<usize>) -> usize {
        range.filter(|n| self.get(*n)).count()
    }

    /// The first run of `count` that are not set, within `range`.
    fn find_run(&self, count: usize, range: Range<usize>) -> Option<usize> {
        let mut start = range.start;
        let mut n = range.start;
        while n < range.end {
            if n % 64 == 0 && self.0[n / 64] == u64::MAX {
                n += 64;
                start = n;
            } else if self.get(n) {
                n += 1;
                start = n;
            } else {
                n += 1;
                if n - start == count {
                    return Some(start);
                }
            }
        }
        None
    }
}

/// Makes memory usable.
fn open(from: usize, count: usize) -> bool {
    let at = (START + from * GRANULE) as *mut libc::c_void;
    let len = count * GRANULE;
    // SAFETY: the range is within our own reservation, where only this allocator changes rights.
    unsafe { libc::mprotect(at, len, libc::PROT_READ | libc::PROT_WRITE) == 0 }
}

/// Gives memory back to the kernel.
fn close(from: usize, count: usize) {
    let at = (START + from * GRANULE) as *mut libc::c_void;
    let len = count * GRANULE;
    // SAFETY: the range is within our own reservation, and no allocation uses it any more.
    unsafe {
        libc::madvise(at, len, libc::MADV_DONTNEED);
        libc::mprotect(at, len, libc::PROT_NONE);
    }
}

// SAFETY: stretches are disjoint, inside the reservation, readable and writable until they are
// freed.
unsafe impl Allocator for Granules {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let none = (std::ptr::null_mut(), 0, 0);
        if reserve().is_err() {
            return none;
        }
        let count = size.div_ceil(GRANULE);
        let limit = LENGTH.load(Ordering::Relaxed) / GRANULE;
        // SAFETY: called under the lock of `HEAP`.
        let book = unsafe { &mut *BOOK.0.get() };
        let Some(from) = book.taken.find_run(count, FIXED_GRANULES..limit) else { return none };
        if !open(from, count) {
            return none;
        }
        book.kept_count -= book.kept.count(from..from + count);
        book.kept.set(from..from + count, false);
        book.taken.set(from..from + count, true);
        ((START + from * GRANULE) as *mut u8, count * GRANULE, 0)
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        std::ptr::null_mut()
    }

    fn free_part(&self, ptr: *mut u8, old: usize, new: usize) -> bool {
        let keep = new.next_multiple_of(GRANULE);
        keep >= old || self.free(ptr.wrapping_add(keep), old - keep)
    }

    fn free(&self, ptr: *mut u8, size: usize) -> bool {
        let from = (ptr as usize - START) / GRANULE;
        let count = size / GRANULE;
        // SAFETY: called under the lock of `HEAP`.
        let book = unsafe { &mut *BOOK.0.get() };
        book.taken.set(from..from + count, false);
        if (book.kept_count + count) * GRANULE <= KEPT_BYTES {
            book.kept.set(from..from + count, true);
            book.kept_count += count;
        } else {
            close(from, count);
        }
        true
    }

    fn can_release_part(&self, _: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        false
    }

    fn page_size(&self) -> usize {
        GRANULE
    }
}

/// The allocator of everything in this library that is written in Rust.
struct Heap {
    locked: AtomicBool,
    inner: UnsafeCell<Dlmalloc<Granules>>,
}
// SAFETY: `with` lets one thread in at a time.
unsafe impl Sync for Heap {}

impl Heap {
    fn with<R>(&self, f: impl FnOnce(&mut Dlmalloc<Granules>) -> R) -> R {
        // Held for a few instructions, and by a second thread only where the library is under test:
        // the MPI library calls from one thread at a time. An image is never taken inside: a call
        // is under way.
        while self.locked.swap(true, Ordering::Acquire) {
            std::hint::spin_loop();
        }
        // SAFETY: the lock is held, so this is the only reference to the heap.
        let result = f(unsafe { &mut *self.inner.get() });
        self.locked.store(false, Ordering::Release);
        result
    }
}

fn is_large(size: usize) -> bool {
    size >= LARGE_BYTES
}

// SAFETY: hands the contract through to what is inside. The size alone says which part a piece is
// from.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let at = self.with(|heap| {
            if !is_large(layout.size()) {
                // SAFETY: the caller keeps the contract of `GlobalAlloc`.
                unsafe { heap.malloc(layout.size(), layout.align()) }
            } else if layout.align() > GRANULE {
                std::ptr::null_mut()
            } else {
                Granules.alloc(layout.size()).0
            }
        });
        if at.is_null() {
            exhausted();
        }
        at
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        self.with(|heap| {
            if is_large(layout.size()) {
                Granules.free(ptr, layout.size().next_multiple_of(GRANULE));
            } else {
                // SAFETY: the caller keeps the contract of `GlobalAlloc`.
                unsafe { heap.free(ptr, layout.size(), layout.align()) }
            }
        })
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !is_large(layout.size()) && !is_large(size) {
            // SAFETY: the caller keeps the contract of `GlobalAlloc`.
            let at =
                self.with(|heap| unsafe { heap.realloc(ptr, layout.size(), layout.align(), size) });
            if at.is_null() {
                exhausted();
            }
            return at;
        }
        let fits = layout.size().next_multiple_of(GRANULE) == size.next_multiple_of(GRANULE);
        if is_large(layout.size()) && is_large(size) && fits {
            return ptr;
        }
        // SAFETY: the caller keeps the contract of `GlobalAlloc`; the new piece is another one.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            std::ptr::copy_nonoverlapping(ptr, new, layout.size().min(size));
            self.dealloc(ptr, layout);
            new
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_between_what_is_taken() {
        let mut bits = Box::new(Bits([0; MAX_GRANULES / 64]));
        bits.set(0..70, true);
        bits.set(75..100, true);
        assert_eq!(bits.find_run(5, 0..256), Some(70));
        assert_eq!(bits.find_run(6, 0..256), Some(100));
        assert_eq!(bits.find_run(157, 0..256), None);
        bits.set(64..70, false);
        assert_eq!(bits.find_run(11, 0..256), Some(64));
        assert_eq!(bits.find_run(11, 65..256), Some(100));
        assert_eq!(bits.find_run(60, 0..120), None);
        assert_eq!((bits.count(60..80), bits.count(0..256)), (9, 89));
    }

    /// All that Rust allocates lies in the stretch, and large pieces give their memory back.
    #[test]
    fn everything_comes_from_the_stretch_and_returns_to_it() {
        let inside = |at: usize| (START..START + LENGTH.load(Ordering::Relaxed)).contains(&at);
        let in_use = || {
            HEAP.with(|_| {
                // SAFETY: the lock is held, so this is the only reference to the heap.
                let book = unsafe { &*BOOK.0.get() };
                book.taken.count(0..MAX_GRANULES) + book.kept_count
            })
        };
        let small: Vec<Box<u64>> = (0..1000).map(Box::new).collect();
        assert!(small.iter().all(|b| inside(&raw const **b as usize)));
        let before = in_use();
        for _ in 0..10 {
            let mut large = vec![0u8; 64 << 20];
            assert!(inside(large.as_ptr() as usize) && large.iter().all(|b| *b == 0));
            large.fill(7);
            large.extend_from_slice(&[7; 4096]);
            assert!(large.iter().all(|b| *b == 7));
        }
        // Other tests allocate meanwhile, but not this much.
        assert!(in_use() < before + (64 << 20) / GRANULE, "large pieces are not given back");
    }
}
