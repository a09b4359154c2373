//! Which memory of the process is tracked, so that its next image has to bring what was written
//! since only. The kernel keeps a mark for each page (userfaultfd write protection, which it takes
//! off by itself at the first write). What is said to be settled must have been marked, page by
//! page, while the process stood still for the image that is named.

use core::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use crate::refusal::Refusal;
use crate::sys::{self, nr};

/// Most stretches that can be settled.
const SETTLED_MAX: usize = 1 << 16;
const ROOM: usize = SETTLED_MAX * size_of::<(u64, u64)>();
/// The descriptor is moved to a number from here on, out of the program's way.
const FIRST_FD: usize = 300;

const STEP: &str = "tracking what the process writes (userfaultfd, from Linux 6.7 on)";

/// What is known of the writes of one process; its state is no part of an image.
pub struct Tracker {
    /// The userfaultfd, -1: none.
    fd: AtomicI32,
    /// Where the settled stretches are listed, and how many they are.
    room: AtomicUsize,
    count: AtomicUsize,
    /// The image since which they are, 0: none.
    image: AtomicU64,
}

impl Tracker {
    pub const fn new() -> Tracker {
        Tracker {
            fd: AtomicI32::new(-1),
            room: AtomicUsize::new(0),
            count: AtomicUsize::new(0),
            image: AtomicU64::new(0),
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
        let ready = ask_for_writes(fd).and_then(|()| {
            let high = sys::fcntl(fd, sys::F_DUPFD_CLOEXEC, FIRST_FD)?;
            match sys::map_anonymous(ROOM, sys::MAP_PRIVATE | sys::MAP_NORESERVE) {
                Ok(at) => Ok((high as i32, at)),
                Err(errno) => {
                    sys::close(high as i32);
                    Err(errno)
                }
            }
        });
        sys::close(fd);
        let (fd, room) = ready.map_err(failed)?;
        self.forget();
        self.room.store(room, Ordering::Relaxed);
        self.fd.store(fd, Ordering::Relaxed);
        Ok(())
    }

    /// Its descriptor, -1 for none. No image that is tracked has it.
    pub fn descriptor(&self) -> i32 {
        self.fd.load(Ordering::Relaxed)
    }

    /// Where its own memory is, which no image has either.
    pub(crate) fn stretch(&self) -> (u64, u64) {
        let at = self.room.load(Ordering::Relaxed) as u64;
        (at, at + if at == 0 { 0 } else { ROOM as u64 })
    }

    /// This is a restored process: nothing of it is tracked, and the descriptor is not open.
    pub(crate) fn forget(&self) {
        self.fd.store(-1, Ordering::Relaxed);
        self.room.store(0, Ordering::Relaxed);
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
        match self.room.load(Ordering::Relaxed) {
            0 => &[],
            // SAFETY: the room is mapped, aligned, and holds as many as were put there; it is
            // written only by `settle`, between two captures.
            at => unsafe {
                core::slice::from_raw_parts(at as *const _, self.count.load(Ordering::Relaxed))
            },
        }
    }

    /// From here on nothing is settled: marks are about to be set anew.
    pub(crate) fn unsettle(&self) {
        self.image.store(0, Ordering::Relaxed);
        self.count.store(0, Ordering::Relaxed);
    }

    /// These stretches are settled since this image.
    pub(crate) fn settle(&self, stretches: &[(u64, u64)], image: u64) {
        let at = self.room.load(Ordering::Relaxed);
        if at == 0 || stretches.len() > SETTLED_MAX {
            return self.unsettle();
        }
        // SAFETY: the room is ours, long enough, and nobody has a slice of it now.
        unsafe {
            core::ptr::copy_nonoverlapping(stretches.as_ptr(), at as *mut _, stretches.len());
        }
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
