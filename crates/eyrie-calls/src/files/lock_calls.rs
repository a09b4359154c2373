//! flock(2), lockf(3) and the locks of fcntl(2). A rank that is executed again does not take a lock
//! again that it is known to have released, because another rank may have it by now. A lock that it
//! still had it takes when it does something new.

use super::calling::{of_file, outcome};
use super::far;
use super::held_locks::{self, Kind, Lock, NONE};
use super::kernel;
use super::looking::{STAT, STATX};
use super::reading::{READ, SEEK};
use super::recent;
use super::records::{is_new_change, Call};
use super::standing_in;
use super::under_lock;
use super::writing::WRITE;
use crate::next::next;
use libc::{c_int, c_short, off_t, FILE};

next! {
    flock: fn(c_int, c_int) -> c_int;
    lockf: fn(c_int, c_int, off_t) -> c_int;
    lockf64: fn(c_int, c_int, off_t) -> c_int;
    fcntl: fn(c_int, c_int, usize) -> c_int;
    fcntl64: fn(c_int, c_int, usize) -> c_int;
    close: fn(c_int) -> c_int;
    fclose: fn(*mut FILE) -> c_int;
}

/// Number of the functions, in what is recorded.
const LOCK: u8 = 86;
/// A descriptor is about to be closed: its locks are gone.
fn closed(fd: c_int) {
    if held_locks::any() || far::holds_any() {
        of_file(fd, &mut |file| {
            far::closed(file.number);
            held_locks::closed(fd, file.number);
            recent::forget(file.number);
            0
        });
    }
}

/// A call on a lock has succeeded.
fn note(lock: Lock, again: bool) {
    lock.noted(again);
    if lock.how == libc::F_UNLCK as c_short {
        recent::forget(lock.number);
    }
}

/// Whether a lock that the rank is known to have had is to be taken anew.
fn is_to_lock_again(lock: &Lock) -> bool {
    let reads = [READ, SEEK, STAT, STATX].map(Call::on_open);
    under_lock::is_to_lock_again(lock, Call::on_open(WRITE), &reads)
}

/// A call on a lock, which may wait: so it is made outside of what is recorded.
fn locked(fd: c_int, of: &dyn Fn(u64) -> Option<Lock>, make: &dyn Fn() -> c_int) -> c_int {
    let mut is_replayed = false;
    let before = of_file(fd, &mut |file| {
        let call = Call::on_open(LOCK);
        let Some(lock) = of(file.size) else { return 0 };
        let lock = Lock { number: file.number, fd, ..lock };
        let is_release = lock.how == libc::F_UNLCK as c_short;
        if is_release && !lock.releases_nothing_real() {
            // It is released in any case; what became of that is replayed below.
            return 0;
        }
        let value = loop {
            let Some(value) = call.result_again() else {
                if is_new_change() {
                    standing_in::before_new();
                }
                return 0;
            };
            if value != 0 || !is_to_lock_again(&lock) {
                break value;
            }
        };
        is_replayed = true;
        if value == 0 {
            // One that an image has given back is there.
            note(lock, !lock.is_had());
        }
        value
    });
    if let Some(value) = before.filter(|_| is_replayed) {
        return value as c_int;
    }
    let value = make();
    let result = outcome(value);
    of_file(fd, &mut |file| {
        let call = Call::on_open(LOCK);
        let Some(lock) = of(file.size) else { return 0 };
        let mut since = 0;
        if call.result_again().is_none() && is_new_change() {
            since = held_locks::now();
            call.write_result(result);
        }
        if result == 0 {
            let lock = Lock { number: file.number, fd, since, ..lock };
            note(lock, false);
            lock.is_taken();
        }
        result
    });
    value
}

fn of_flock(how: c_int) -> Option<Lock> {
    let how = match how & !libc::LOCK_NB {
        libc::LOCK_SH => libc::F_RDLCK,
        libc::LOCK_EX => libc::F_WRLCK,
        libc::LOCK_UN => libc::F_UNLCK,
        _ => return None,
    };
    Some(Lock { how: how as c_short, to: i64::MAX, ..NONE })
}

fn range(kind: Kind, how: c_short, from: i64, len: i64) -> Lock {
    let (from, to) = match len {
        0 => (from, i64::MAX),
        1.. => (from, from.saturating_add(len)),
        _ => (from + len, from),
    };
    Lock { kind, how, from, to, ..NONE }
}

fn of_lockf(fd: c_int, how: c_int, len: off_t) -> Option<Lock> {
    let how = match how {
        libc::F_LOCK | libc::F_TLOCK => libc::F_WRLCK,
        libc::F_ULOCK => libc::F_UNLCK,
        _ => return None,
    };
    let at = kernel::seek(fd, 0, libc::SEEK_CUR);
    Some(range(Kind::Posix, how as c_short, at, len))
}

/// # Safety
/// With these commands the argument must point to a `struct flock`, as fcntl(2) wants it.
unsafe fn of_fcntl(fd: c_int, size: u64, what: c_int, argument: usize) -> Option<Lock> {
    let kind = match what {
        libc::F_SETLK | libc::F_SETLKW => Kind::Posix,
        _ => Kind::OpenFile,
    };
    // SAFETY: the caller passes null, or what is valid for this call.
    let wanted = unsafe { std::ptr::with_exposed_provenance::<libc::flock>(argument).as_ref() }?;
    let from = match c_int::from(wanted.l_whence) {
        libc::SEEK_CUR => kernel::seek(fd, 0, libc::SEEK_CUR),
        libc::SEEK_END => size as i64,
        _ => 0,
    };
    Some(range(kind, wanted.l_type, from + wanted.l_start, wanted.l_len))
}

/// # Safety
/// As flock(2).
#[export_name = "flock"]
pub unsafe extern "C-unwind" fn our_flock(fd: c_int, how: c_int) -> c_int {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    locked(fd, &|_| of_flock(how), &|| unsafe { flock.get()(fd, how) })
}

/// # Safety
/// As lockf(3).
#[export_name = "lockf"]
pub unsafe extern "C-unwind" fn our_lockf(fd: c_int, how: c_int, len: off_t) -> c_int {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    locked(fd, &|_| of_lockf(fd, how, len), &|| unsafe { lockf.get()(fd, how, len) })
}

/// # Safety
/// As lockf(3).
#[export_name = "lockf64"]
pub unsafe extern "C-unwind" fn our_lockf64(fd: c_int, how: c_int, len: off_t) -> c_int {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    locked(fd, &|_| of_lockf(fd, how, len), &|| unsafe { lockf64.get()(fd, how, len) })
}

/// Functions like fcntl(2), which takes one number or address more at most: ours, the one behind
/// it, its name.
macro_rules! controlling {
    ($($our:ident, $next:ident, $symbol:literal;)*) => {
        $(
            /// # Safety
            /// As fcntl(2).
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our(fd: c_int, what: c_int, argument: usize) -> c_int {
                // SAFETY: the program keeps the contract of the C function, which gets its
                // arguments unchanged.
                let make = || unsafe { $next.get()(fd, what, argument) };
                match what {
                    libc::F_SETLK | libc::F_SETLKW | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => {
                        // SAFETY: the caller keeps this contract, which is that of the function
                        // called.
                        locked(fd, &|size| unsafe { of_fcntl(fd, size, what, argument) }, &make)
                    }
                    _ => make(),
                }
            }
        )*
    };
}
controlling! {
    our_fcntl, fcntl, "fcntl";
    our_fcntl64, fcntl64, "fcntl64";
}

/// # Safety
/// As close(2).
#[export_name = "close"]
pub unsafe extern "C-unwind" fn our_close(fd: c_int) -> c_int {
    closed(fd);
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    unsafe { close.get()(fd) }
}

/// # Safety
/// As fclose(3).
#[export_name = "fclose"]
pub unsafe extern "C-unwind" fn our_fclose(file: *mut FILE) -> c_int {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    unsafe {
        if !file.is_null() {
            closed(libc::fileno(file));
        }
        fclose.get()(file)
    }
}
