//! Takes the locks again that the process had. The kernel has released those of the dead
//! incarnation. If another process has taken one meanwhile, the restore waits for it, with a bound.

use crate::fail::Errno;
use crate::files::error;
use crate::image::{DescriptorEntry, Image};
use eyrie_image_format::*;
use eyrie_image_kernel::sys::{self, nr};

/// How long to wait for other processes that hold a lock. (The restore as a whole may take longer.)
const PATIENCE_NS: u64 = 10_000_000_000;

/// Takes all locks. Every descriptor must be at its number, and no other one open of a file that
/// has a POSIX lock: closing that one would drop the lock.
pub fn take_all(image: &Image) {
    let deadline = sys::clock_ns(1) + PATIENCE_NS;
    for entry in image.descriptors {
        for lock in entry.locks() {
            take(image, entry, &lock, deadline);
        }
    }
}

fn take(image: &Image, entry: &DescriptorEntry, lock: &Lock, deadline: u64) {
    loop {
        match attempt(entry.record.fd, lock) {
            Ok(_) => return,
            Err(sys::EAGAIN | sys::EACCES) => {}
            Err(e) => error(path_of(image, entry), format_args!("cannot be locked: {}", Errno(e))),
        }
        if sys::clock_ns(1) > deadline {
            let seconds = PATIENCE_NS / 1_000_000_000;
            error(
                path_of(image, entry),
                format_args!(
                    "another process has held a lock for {seconds} s that the rank had on it: \
                     end that process"
                ),
            );
        }
        // SAFETY: poll(2) without descriptors touches no memory; it waits for a millisecond.
        let _ = unsafe { sys::call3(nr::POLL, 0, 0, 1) };
    }
}

/// A file without a name is named by the directory that it was in.
fn path_of(image: &Image, entry: &DescriptorEntry) -> &'static [u8] {
    match entry.record.kind {
        fd_kind::OBJECT => image.objects[entry.record.arg as usize].path,
        _ => entry.path,
    }
}

/// Takes a lock if no other process has it.
fn attempt(fd: i32, lock: &Lock) -> sys::SysResult {
    const LOCK_SH: usize = 1;
    const LOCK_EX: usize = 2;
    const LOCK_NB: usize = 4;
    const F_RDLCK: u64 = 0;
    const F_WRLCK: u64 = 1;
    if lock.kind == lock_kind::FLOCK {
        let how = if lock.exclusive == 1 { LOCK_EX } else { LOCK_SH };
        // SAFETY: the call takes numbers only, so the kernel touches no memory of ours.
        return unsafe { sys::call3(nr::FLOCK, fd as usize, how | LOCK_NB, 0) };
    }
    let how = if lock.exclusive == 1 { F_WRLCK } else { F_RDLCK };
    // struct flock: type i16, whence i16 (0: from the start), start i64, len i64, pid i32.
    let wanted = [how, lock.start, lock.len, 0];
    let call = if lock.kind == lock_kind::POSIX { sys::F_SETLK } else { sys::F_OFD_SETLK };
    // SAFETY: the kernel reads one struct flock, which `wanted` has.
    unsafe { sys::call3(nr::FCNTL, fd as usize, call, wanted.as_ptr() as usize) }
}
