//! The locks of a rank: those that it has, and those that it is known to have had before it was
//! executed again. It takes the latter when it does something new.

use super::commit::Commit;
use super::kernel;
use super::pending;
use super::saying;
use crate::host_clocks::kernels_ns;
use crate::observed::stream;
use libc::{c_int, c_short};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

/// Most locks that are known at a time.
const MOST: usize = 64;
/// An image waits so long for the end of a lock: what is read under it and written back would be
/// old when the rank goes back to the image. A lock that is held longer is no reason.
const SHORT_NS: i64 = 250_000_000;
/// Most milliseconds in which a lock can be taken again.
const PATIENCE_MS: usize = 60_000;

/// Which kind of lock it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Flock,
    Posix,
    OpenFile,
}

/// A lock that the rank has.
#[derive(Clone, Copy)]
pub struct Lock {
    pub fd: c_int,
    pub number: (u64, u64),
    pub kind: Kind,
    /// F_RDLCK, F_WRLCK or F_UNLCK; the first byte and the one behind the last.
    pub how: c_short,
    pub from: i64,
    pub to: i64,
    /// It is to be taken again.
    pub again: bool,
    /// The file was read since it was taken.
    pub read: bool,
    /// How much was recorded when it was taken ([`now`]); 0: by an earlier process.
    pub since: u64,
}

/// None yet.
pub const NONE: Lock = Lock {
    fd: -1,
    number: (0, 0),
    kind: Kind::Flock,
    how: 0,
    from: 0,
    to: 0,
    again: false,
    read: false,
    since: 0,
};

struct Locks(UnsafeCell<[Lock; MOST]>);

// SAFETY: used in calls that are being recorded, of which there is one at a time.
unsafe impl Sync for Locks {}

static LOCKS: Locks = Locks(UnsafeCell::new([NONE; MOST]));
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// When the last one was taken, by the kernel's monotonic clock.
static TAKEN_NS: AtomicI64 = AtomicI64::new(0);

fn locks() -> &'static mut [Lock] {
    // SAFETY: all of this module that uses it runs in calls that are recorded.
    let all = unsafe { &mut *LOCKS.0.get() };
    &mut all[..COUNT.load(Ordering::Relaxed)]
}

/// Whether the rank has a lock that it has just taken, so that an image should wait.
pub fn is_short() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
        && kernels_ns(libc::CLOCK_MONOTONIC) - TAKEN_NS.load(Ordering::Relaxed) < SHORT_NS
}

/// Whether the rank has this file locked.
pub fn is_locked(number: (u64, u64)) -> bool {
    locks().iter().any(|lock| lock.number == number)
}

/// Whether the rank has these bytes of a file locked, to change them, and not just all of it.
pub fn has_range(number: (u64, u64), at: i64, len: usize) -> bool {
    let end = at.saturating_add_unsigned(len as u64);
    locks().iter().any(|lock| {
        lock.number == number
            && lock.how == libc::F_WRLCK as c_short
            && lock.to != i64::MAX
            && lock.from <= at
            && end <= lock.to
    })
}

/// How much was recorded by now.
pub fn now() -> u64 {
    // SAFETY: this call is being recorded, of which there is one at a time.
    unsafe { stream() }.written()
}

/// The rank has read a file.
pub fn read(number: (u64, u64)) {
    if any() {
        locks().iter_mut().filter(|lock| lock.number == number).for_each(|lock| lock.read = true);
    }
}

/// The lock on all of a file that the rank has, if it has read the file since.
fn of_what_was_read(number: (u64, u64)) -> Option<&'static Lock> {
    let is_it = |lock: &&Lock| lock.number == number && lock.read && !lock.again;
    locks().iter().filter(is_it).find(|lock| lock.is_of_all())
}

/// Whether the rank has read this file since it has all of it locked.
pub fn was_read(number: (u64, u64)) -> bool {
    any() && of_what_was_read(number).is_some()
}

/// Whether something that was observed under that lock has left the rank.
pub fn has_left(number: (u64, u64)) -> bool {
    // SAFETY: this call is being recorded, of which there is one at a time.
    let passed = unsafe { stream() }.passed;
    of_what_was_read(number).is_none_or(|lock| passed > lock.since)
}

fn remove(at: usize) {
    let all = locks();
    let removed = all[at];
    let last = all.len() - 1;
    all[at] = all[last];
    COUNT.store(last, Ordering::Relaxed);
    if removed.again {
        pending::remove();
    }
}

fn add(lock: Lock) {
    let count = COUNT.load(Ordering::Relaxed);
    if count == MOST {
        saying::too_much_locked();
        return;
    }
    COUNT.store(count + 1, Ordering::Relaxed);
    locks()[count] = lock;
    TAKEN_NS.store(kernels_ns(libc::CLOCK_MONOTONIC), Ordering::Relaxed);
    if lock.again {
        pending::add();
    }
}

impl Lock {
    fn is_released_by(&self, other: &Lock) -> bool {
        let same = match self.kind {
            Kind::Posix => self.number == other.number,
            _ => self.fd == other.fd,
        };
        self.kind == other.kind && same && self.from >= other.from && self.to <= other.to
    }

    /// A call on this lock has succeeded, in this process or in an earlier one; `again`: then it is
    /// to be taken again.
    pub fn noted(self, again: bool) {
        while let Some(at) = locks().iter().position(|lock| lock.is_released_by(&self)) {
            remove(at);
        }
        if self.how != libc::F_UNLCK as c_short {
            add(Lock { again, read: false, ..self });
        }
    }

    /// Whether no other process can have all of the file locked, or what its first byte is for:
    /// a counter, by convention.
    pub fn is_of_all(&self) -> bool {
        self.how == libc::F_WRLCK as c_short && self.from == 0
    }

    /// It has just been taken: what another rank was about to write when it died is written.
    pub fn is_taken(&self) {
        if self.is_of_all() {
            Commit::of(self.fd).complete(self.fd);
        }
    }

    /// Whether all that this call would release is only to be taken again.
    pub fn releases_nothing_real(&self) -> bool {
        let released = || locks().iter().filter(|lock| lock.is_released_by(self));
        released().next().is_some() && released().all(|lock| lock.again)
    }

    /// Whether the rank has a lock of this kind there already, which is no one to be taken again.
    pub fn is_had(&self) -> bool {
        locks().iter().any(|it| it.is_released_by(self) && !it.again)
    }

    /// Takes it as soon as others let go of it; false: they have not.
    pub fn take_in_time(&self) -> bool {
        (0..PATIENCE_MS).any(|_| {
            let taken = self.take();
            if !taken {
                kernel::pass_time();
            }
            taken
        })
    }

    /// Tries to take it.
    fn take(&self) -> bool {
        let is_it = kernel::file_at(self.fd).is_some_and(|file| file.number == self.number);
        if !is_it {
            return true;
        }
        if self.kind == Kind::Flock {
            let how =
                if self.how == libc::F_RDLCK as c_short { libc::LOCK_SH } else { libc::LOCK_EX };
            return kernel::flock(self.fd, how | libc::LOCK_NB) != -i64::from(libc::EWOULDBLOCK);
        }
        // SAFETY: all zero is a valid structure.
        let mut wanted: libc::flock = unsafe { std::mem::zeroed() };
        (wanted.l_type, wanted.l_whence) = (self.how, libc::SEEK_SET as c_short);
        wanted.l_start = self.from;
        wanted.l_len = if self.to == i64::MAX { 0 } else { self.to - self.from };
        let what = if self.kind == Kind::Posix { libc::F_SETLK } else { libc::F_OFD_SETLK };
        let taken = kernel::fcntl(self.fd, what, &raw const wanted as usize);
        ![libc::EAGAIN, libc::EACCES].iter().any(|e| taken == -i64::from(*e))
    }
}

/// Locks that the rank still had are taken again.
pub fn take_again() {
    for at in 0..locks().len() {
        let mut lock = locks()[at];
        if !lock.again {
            continue;
        }
        // Its file may be another one by now.
        lock.number = kernel::file_at(lock.fd).map_or(lock.number, |file| file.number);
        if lock.take_in_time() {
            lock.is_taken()
        } else {
            saying::not_locked()
        }
        locks()[at] = Lock { again: false, ..lock };
        pending::remove();
    }
}

/// This process has come back from an image: files may have other numbers here.
pub fn come_back() {
    for lock in locks() {
        lock.number = kernel::file_at(lock.fd).map_or(lock.number, |file| file.number);
    }
}

/// Whether there are any.
pub fn any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// The descriptor of a file is about to be closed: its locks are gone.
pub fn closed(fd: c_int, number: (u64, u64)) {
    // Locks of POSIX go with any descriptor of their file.
    let goes = |lock: &Lock| match lock.kind {
        Kind::Posix => lock.number == number,
        _ => lock.fd == fd,
    };
    while let Some(at) = locks().iter().position(goes) {
        remove(at);
    }
}
