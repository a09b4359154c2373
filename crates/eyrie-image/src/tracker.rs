//! Which memory of the process is tracked, so that its next image needs only what was written
//! since. The kernel keeps a mark for each page (userfaultfd write protection) and removes it at
//! the first write. Memory may be called settled only if it was marked, page by page, while the
//! process stood still for the named image.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::carried::Lists;
use crate::refusal::Refusal;
use eyrie_image_kernel::sys::{self, nr};

/// Most ranges that can be settled.
const SETTLED_MAX: usize = 1 << 16;
/// The descriptor gets a number from here on, which programs hardly use.
const FIRST_FD: usize = 300;

/// Images that are not tracked after one for which most of the memory had been written. In that
/// case each page costs a mark and a fault and is sent nevertheless.
const UNTRACKED: u32 = 7;

const STEP: &str = "tracking what the process writes (userfaultfd, from Linux 6.7 on)";

/// What is known of the writes of one process. It is a static: a mapping of its own would be at
/// another address in a restored process and displace the program's mappings.
pub struct Tracker {
    /// The userfaultfd plus one, so that a new tracker is all zeros; 0: none.
    fd: AtomicI32,
    /// The settled ranges. `count` is their number.
    room: UnsafeCell<[(u64, u64); SETTLED_MAX]>,
    count: AtomicUsize,
    /// The image since which they are settled; 0: none.
    image: AtomicU64,
    /// Images still to be taken without tracking, because it would not pay.
    untracked: AtomicU32,
    /// The last image, if the child that wrote it had all memory without any advice being lifted;
    /// 0: it had not.
    whole: AtomicU64,
    /// What the last images have of mapped files.
    pub(crate) carried: Lists,
}

// SAFETY: only captures write the room, one at a time, and the thread that captures is also the
// only one that reads it.
unsafe impl Sync for Tracker {}

impl Tracker {
    pub const fn new() -> Tracker {
        Tracker {
            fd: AtomicI32::new(0),
            room: UnsafeCell::new([(0, 0); SETTLED_MAX]),
            count: AtomicUsize::new(0),
            image: AtomicU64::new(0),
            untracked: AtomicU32::new(0),
            whole: AtomicU64::new(0),
            carried: Lists::new(),
        }
    }

    /// Whether a child is trusted to have all memory: the one that wrote the last image had, and
    /// the reader has that image.
    pub(crate) fn is_whole_since(&self, base: u64) -> bool {
        base != 0 && base == self.whole.load(Ordering::Relaxed)
    }

    /// Notes that the child that writes this image has all memory; 0: it may not have.
    pub(crate) fn note_whole(&self, image: u64) {
        self.whole.store(image, Ordering::Relaxed);
    }

    /// Whether the next image is to be tracked. Must be asked once for each image. Marks stay in
    /// the meantime: an image may build on the last tracked one at any time.
    pub fn pays(&self) -> bool {
        let left = self.untracked.load(Ordering::Relaxed);
        self.untracked.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }

    /// Takes into account how many of the known pages had been written.
    pub(crate) fn learn(&self, written: u64, known: u64) {
        if written > known / 2 {
            self.untracked.store(UNTRACKED, Ordering::Relaxed);
        }
    }

    /// Prepares tracking. Memory is tracked from the next image on.
    ///
    /// # Errors
    /// When the kernel cannot track, or the process has no right to. Then all images are full ones.
    pub fn start(&self) -> Result<(), Refusal> {
        const USER_MODE_ONLY: usize = 1;
        let failed = |errno| Refusal::Kernel { step: STEP, errno };
        let flags = sys::O_CLOEXEC as usize | sys::O_NONBLOCK as usize | USER_MODE_ONLY;
        // SAFETY: the call takes numbers and returns a new descriptor.
        let fd = unsafe { sys::call3(nr::USERFAULTFD, flags, 0, 0) }.map_err(failed)? as i32;
        let ready =
            ask_for_writes(fd).and_then(|()| sys::fcntl(fd, sys::F_DUPFD_CLOEXEC, FIRST_FD));
        sys::close(fd);
        let fd = ready.map_err(failed)? as i32;
        self.unsettle();
        self.fd.store(fd + 1, Ordering::Relaxed);
        Ok(())
    }

    pub fn is_started(&self) -> bool {
        self.descriptor() >= 0
    }

    /// Its descriptor; -1: none. It is not part of tracked images.
    pub fn descriptor(&self) -> i32 {
        self.fd.load(Ordering::Relaxed) - 1
    }

    /// Resets the tracker in a restored process, where nothing is tracked and the descriptor is
    /// closed.
    pub(crate) fn forget(&self) {
        self.fd.store(0, Ordering::Relaxed);
        self.note_whole(0);
        self.unsettle();
        self.carried.forget();
    }

    /// Lets the kernel track a mapping.
    pub(crate) fn register(&self, (start, end): (u64, u64)) -> Result<(), i32> {
        const UFFDIO_REGISTER: usize = 0xc020_aa00;
        const MODE_WRITE_PROTECT: u64 = 2;
        // struct uffdio_register: start, length, mode, and the operations that it then allows.
        let mut order = [start, end - start, MODE_WRITE_PROTECT, 0];
        let at = order.as_mut_ptr() as usize;
        // SAFETY: the kernel reads and writes `order`. A tracked mapping keeps its content and its
        // protection.
        unsafe { sys::call3(nr::IOCTL, self.descriptor() as usize, UFFDIO_REGISTER, at).map(drop) }
    }

    /// Removes all marks from a tracked mapping.
    pub(crate) fn take_marks_off(&self, (start, end): (u64, u64)) -> Result<(), i32> {
        const UFFDIO_WRITEPROTECT: usize = 0xc018_aa06;
        // struct uffdio_writeprotect: start, length, mode.
        let mut order = [start, end - start, 0];
        let at = order.as_mut_ptr() as usize;
        // SAFETY: the kernel reads `order`. Content and protection of the mapping stay.
        unsafe {
            sys::call3(nr::IOCTL, self.descriptor() as usize, UFFDIO_WRITEPROTECT, at).map(drop)
        }
    }

    /// The image since which ranges are settled; 0: nothing is settled.
    pub(crate) fn image(&self) -> u64 {
        self.image.load(Ordering::Relaxed)
    }

    /// The ranges in which every page without a mark was written, or is new, since
    /// [`Tracker::image`]; ascending.
    pub(crate) fn settled(&self) -> &[(u64, u64)] {
        // SAFETY: only `settle` writes the room, in the thread that captures. Captures use this
        // slice before they call `settle`.
        let room = unsafe { &*self.room.get() };
        &room[..self.count.load(Ordering::Relaxed).min(SETTLED_MAX)]
    }

    /// Forgets the settled ranges, because marks are about to be set anew.
    pub(crate) fn unsettle(&self) {
        self.image.store(0, Ordering::Relaxed);
        self.count.store(0, Ordering::Relaxed);
    }

    /// Declares these ranges settled since this image.
    pub(crate) fn settle(&self, ranges: &[(u64, u64)], image: u64) {
        // SAFETY: the capture that calls this is the only one under way, and no longer uses a slice
        // from `settled`.
        let room = unsafe { &mut *self.room.get() };
        let Some(room) = room.get_mut(..ranges.len()) else { return self.unsettle() };
        room.copy_from_slice(ranges);
        self.count.store(ranges.len(), Ordering::Relaxed);
        self.image.store(image, Ordering::Relaxed);
    }
}

impl Default for Tracker {
    fn default() -> Self {
        Tracker::new()
    }
}

/// Tells the kernel what the descriptor is for: marks that it removes by itself.
fn ask_for_writes(fd: i32) -> Result<(), i32> {
    const UFFDIO_API: usize = 0xc018_aa3f;
    const WRITE_PROTECT_ASYNC: u64 = 1 << 15;
    // struct uffdio_api: version, features, and the operations that it then allows.
    let mut order = [0xaa, WRITE_PROTECT_ASYNC, 0u64];
    // SAFETY: the kernel reads and writes `order`, a local variable.
    unsafe { sys::call3(nr::IOCTL, fd as usize, UFFDIO_API, order.as_mut_ptr() as usize)? };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracking_rests_where_most_was_written() {
        let tracker = Tracker::new();
        tracker.learn(50, 100);
        assert!(tracker.pays(), "half of it was spared");
        tracker.learn(51, 100);
        let untracked = (0..100).take_while(|_| !tracker.pays()).count();
        assert_eq!(untracked, UNTRACKED as usize);
        tracker.learn(0, 0);
        assert!(tracker.pays(), "nothing was known, so nothing is learnt");
    }
}
