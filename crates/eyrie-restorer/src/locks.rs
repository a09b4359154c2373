//! Takes the locks again that the process had. The dead incarnation's are released by the kernel;
//! somebody else may have got one meanwhile, and is waited for, not for ever.

use crate::fail::Errno;
use crate::files::error;
use crate::format::*;
use crate::image::{DescriptorEntry, Image};
use crate::sys::{self, nr};

/// How long others may hold what the process had; a restore may take longer than that.
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
                    "somebody else has held a lock for {seconds} s that the process had on it"
                ),
            );
        }
        // SAFETY: no descriptors: only the time passes, a millisecond.
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

/// Takes a lock if nobody else has it.
fn attempt(fd: i32, lock: &Lock) -> sys::SysResult {
    const LOCK_SH: usize = 1;
    const LOCK_EX: usize = 2;
    const LOCK_NB: usize = 4;
    const F_RDLCK: u64 = 0;
    const F_WRLCK: u64 = 1;
    if lock.kind == lock_kind::FLOCK {
        let how = if lock.exclusive == 1 { LOCK_EX } else { LOCK_SH };
        // SAFETY: only numbers.
        return unsafe { sys::call3(nr::FLOCK, fd as usize, how | LOCK_NB, 0) };
    }
    let how = if lock.exclusive == 1 { F_WRLCK } else { F_RDLCK };
    // struct flock: type i16, whence i16 (0: from the start), start i64, len i64, pid i32.
    let wanted = [how, lock.start, lock.len, 0];
    let call = if lock.kind == lock_kind::POSIX { sys::F_SETLK } else { sys::F_OFD_SETLK };
    // SAFETY: the kernel reads the structure.
    unsafe { sys::call3(nr::FCNTL, fd as usize, call, wanted.as_ptr() as usize) }
}
