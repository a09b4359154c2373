//! Which memory of the process is tracked, so that its next image has to bring what was written
//! since only. The kernel keeps a mark for each page (userfaultfd write protection, which it takes
//! off by itself at the first write). What is said to be settled must have been marked, page by
//! page, while the process stood still for the image that is named.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::refusal::Refusal;
use crate::sys::{self, nr};

/// Most stretches that can be settled.
const SETTLED_MAX: usize = 1 << 16;
/// The descriptor is moved to a number from here on, out of the program's way.
const FIRST_FD: usize = 300;

/// Images that are not tracked after one for which most of the memory had been written: then each
/// page costs a mark and a fault, and is sent all the same.
const UNTRACKED: u32 = 7;

const STEP: &str = "tracking what the process writes (userfaultfd, from Linux 6.7 on)";

/// What is known of the writes of one process. A static one: a mapping of its own would lie
/// somewhere else in a restored process, and move those of the program.
pub struct Tracker {
    /// One more than the userfaultfd, so that a new tracker is all zeros; 0: none.
    fd: AtomicI32,
    /// The settled stretches, and how many they are.
    room: UnsafeCell<[(u64, u64); SETTLED_MAX]>,
    count: AtomicUsize,
    /// The image since which they are, 0: none.
    image: AtomicU64,
    /// Images that tracking would not pay for.
    untracked: AtomicU32,
}

// SAFETY: the room is written by captures only, which are made by a process without other threads.
unsafe impl Sync for Tracker {}

impl Tracker {
    pub const fn new() -> Tracker {
        Tracker {
            fd: AtomicI32::new(0),
            room: UnsafeCell::new([(0, 0); SETTLED_MAX]),
            count: AtomicUsize::new(0),
            image: AtomicU64::new(0),
            untracked: AtomicU32::new(0),
        }
    }

    /// Whether the next image is to be tracked; to be asked once for each. What is marked stays so
    /// meanwhile: an image may build on the last tracked one at any time.
    pub fn pays(&self) -> bool {
        let left = self.untracked.load(Ordering::Relaxed);
        self.untracked.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }

    /// So many of the pages that were known had been written.
    pub(crate) fn learn(&self, written: u64, known: u64) {
        if written > known / 2 {
            self.untracked.store(UNTRACKED, Ordering::Relaxed);
        }
    }

    /// Gets ready to track. Memory is tracked from the next image on.
    ///
    /// # Errors
    /// When the kernel cannot, or this process may not: all images are full ones then.
    pub fn start(&self) -> Result<(), Refusal> {
        const USER_MODE_ONLY: usize = 1;
        let failed = |errno| Refusal::Kernel { step: STEP, errno };
        let flags = sys::O_CLOEXEC as usize | sys::O_NONBLOCK as usize | USER_MODE_ONLY;
        // SAFETY: makes a descriptor.
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

    /// Its descriptor, -1 for none. No image that is tracked has it.
    pub fn descriptor(&self) -> i32 {
        self.fd.load(Ordering::Relaxed) - 1
    }

    /// This is a restored process: nothing of it is tracked, and the descriptor is not open.
    pub(crate) fn forget(&self) {
        self.fd.store(0, Ordering::Relaxed);
        self.unsettle();
    }

    /// Has the kernel track a mapping.
    pub(crate) fn register(&self, (start, end): (u64, u64)) -> Result<(), i32> {
        const UFFDIO_REGISTER: usize = 0xc020_aa00;
        const MODE_WRITE_PROTECT: u64 = 2;
        // struct uffdio_register: start, length, mode, and what can be asked of it then.
        let mut order = [start, end - start, MODE_WRITE_PROTECT, 0];
        let at = order.as_mut_ptr() as usize;
        // SAFETY: the structure is ours. A tracked mapping keeps its content and its rights.
        unsafe { sys::call3(nr::IOCTL, self.descriptor() as usize, UFFDIO_REGISTER, at).map(drop) }
    }

    /// Takes all marks off a tracked mapping.
    pub(crate) fn take_marks_off(&self, (start, end): (u64, u64)) -> Result<(), i32> {
        const UFFDIO_WRITEPROTECT: usize = 0xc018_aa06;
        // struct uffdio_writeprotect: start, length, mode.
        let mut order = [start, end - start, 0];
        let at = order.as_mut_ptr() as usize;
        // SAFETY: the structure is ours. Content and rights stay.
        unsafe {
            sys::call3(nr::IOCTL, self.descriptor() as usize, UFFDIO_WRITEPROTECT, at).map(drop)
        }
    }

    /// The image since which the settled stretches are; 0: nothing is settled.
    pub(crate) fn image(&self) -> u64 {
        self.image.load(Ordering::Relaxed)
    }

    /// Stretches in which each page that has no mark was written, or came into being, since
    /// [`Tracker::image`]; ascending.
    pub(crate) fn settled(&self) -> &[(u64, u64)] {
        // SAFETY: written only by `settle`, when nobody looks at it any more.
        let room = unsafe { &*self.room.get() };
        &room[..self.count.load(Ordering::Relaxed).min(SETTLED_MAX)]
    }

    /// From here on nothing is settled: marks are about to be set anew.
    pub(crate) fn unsettle(&self) {
        self.image.store(0, Ordering::Relaxed);
        self.count.store(0, Ordering::Relaxed);
    }

    /// These stretches are settled since this image.
    pub(crate) fn settle(&self, stretches: &[(u64, u64)], image: u64) {
        // SAFETY: nobody looks at the room now.
        let room = unsafe { &mut *self.room.get() };
        let Some(room) = room.get_mut(..stretches.len()) else { return self.unsettle() };
        room.copy_from_slice(stretches);
        self.count.store(stretches.len(), Ordering::Relaxed);
        self.image.store(image, Ordering::Relaxed);
    }
}

impl Default for Tracker {
    fn default() -> Self {
        Tracker::new()
    }
}

/// Says what the descriptor is for: marks that the kernel takes off by itself.
fn ask_for_writes(fd: i32) -> Result<(), i32> {
    const UFFDIO_API: usize = 0xc018_aa3f;
    const WRITE_PROTECT_ASYNC: u64 = 1 << 15;
    // struct uffdio_api: version, features, and what can be asked of it then.
    let mut order = [0xaa, WRITE_PROTECT_ASYNC, 0u64];
    // SAFETY: the structure is ours.
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
