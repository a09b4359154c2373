//! read(2), pread(2), readv(2) and the like of regular files, and where a file ends (lseek(2)). A
//! rank that is executed again reads the same. What was read of a file that has changed since the
//! job began is recorded; all else is read again.

use super::buffers::{one, Buffers};
use super::calling::{of_file, outcome};
use super::freshness;
use super::held_locks;
use super::keeping;
use super::kernel::{self, File};
use super::once;
use super::pipes::reads_pipe;
use super::records::{is_new_change, Call};
use super::standing_in;
use crate::devices;
use crate::next::next;
use libc::{c_int, c_void, iovec, off_t, size_t, ssize_t};

next! {
    read: fn(c_int, *mut c_void, size_t) -> ssize_t;
    __read_chk: fn(c_int, *mut c_void, size_t, size_t) -> ssize_t;
    pread: fn(c_int, *mut c_void, size_t, off_t) -> ssize_t;
    pread64: fn(c_int, *mut c_void, size_t, off_t) -> ssize_t;
    __pread_chk: fn(c_int, *mut c_void, size_t, off_t, size_t) -> ssize_t;
    __pread64_chk: fn(c_int, *mut c_void, size_t, off_t, size_t) -> ssize_t;
    readv: fn(c_int, *const iovec, c_int) -> ssize_t;
    preadv: fn(c_int, *const iovec, c_int, off_t) -> ssize_t;
    preadv64: fn(c_int, *const iovec, c_int, off_t) -> ssize_t;
    preadv2: fn(c_int, *const iovec, c_int, off_t, c_int) -> ssize_t;
    preadv64v2: fn(c_int, *const iovec, c_int, off_t, c_int) -> ssize_t;
    lseek: fn(c_int, off_t, c_int) -> off_t;
    lseek64: fn(c_int, off_t, c_int) -> off_t;
}

/// Numbers of the functions, in what is recorded.
pub(super) const READ: u8 = 80;
pub(super) const SEEK: u8 = 81;

/// Reads from an open file into these buffers, at a place in it or where it stands; `None`: it is
/// no file of which that is recorded.
pub(super) fn reads(
    fd: c_int,
    to: Buffers,
    at: Option<off_t>,
    make: &dyn Fn() -> ssize_t,
) -> Option<ssize_t> {
    let value = of_file(fd, &mut |file| {
        held_locks::read(file.number);
        once::read(Call::on_open(READ), &mut Reading { fd, file, to, at, make })
    });
    value.map(|n| n as ssize_t)
}

struct Reading<'a> {
    fd: c_int,
    file: &'a File,
    to: Buffers<'a>,
    at: Option<off_t>,
    make: &'a dyn Fn() -> ssize_t,
}

impl Reading<'_> {
    /// MPI-IO locks a range, reads it, changes some of it and writes back all, also what lies
    /// behind the end of the file, where its buffer has what was there before. Zeros are there in
    /// each process of the rank: so it can be told what the rank itself has put there
    /// ([`super::recent`]), and what it writes into others' places is not taken for theirs. A
    /// program that locks just what it reads has room for it.
    fn clear_behind(&self, n: i64) {
        let len = self.to.len();
        if !held_locks::any() || !(0..len as i64).contains(&n) {
            return;
        }
        let at = self.at.filter(|at| *at != -1);
        let at = at.unwrap_or_else(|| kernel::seek(self.fd, 0, libc::SEEK_CUR) - n);
        if held_locks::has_range(self.file.number, at, len) {
            // SAFETY: the buffers are to be read into.
            unsafe { self.to.clear(n as usize) };
        }
    }

    /// So much was read before, too. Nothing is something that was read: what others have written
    /// there since is theirs.
    fn remember(&self, n: i64) {
        self.clear_behind(n);
        if n >= 0 {
            super::recent::replayed(self.file.number, self.fd, n, self.to, self.at);
        }
    }
}

impl once::Reading for Reading<'_> {
    fn make(&mut self) -> i64 {
        let n = outcome((self.make)() as i64);
        self.clear_behind(n);
        n
    }

    fn make_again(&mut self) -> i64 {
        let kept = || keeping::read(self.fd, self.to, self.at);
        let kept = self.is_changed().then(kept).flatten();
        let n = kept.unwrap_or_else(|| outcome((self.make)() as i64));
        self.remember(n);
        n
    }

    fn replay(&mut self, at: usize, bytes: &[u8]) {
        // SAFETY: the buffers are to be read into.
        unsafe { self.to.put(at, bytes) };
    }

    fn replayed(&mut self, n: i64) {
        if n > 0 && self.at.is_none_or(|at| at == -1) {
            kernel::seek(self.fd, n, libc::SEEK_CUR);
        }
        self.remember(n);
    }

    fn number(&self) -> (u64, u64) {
        self.file.number
    }

    fn is_changed(&self) -> bool {
        self.file.in_job
    }

    fn given(&self, at: usize, most: usize) -> &[u8] {
        // SAFETY: so many bytes have been read.
        unsafe { self.to.bytes(at, most) }
    }
}

/// Where an open file ends, or has something: `None` where that is not recorded.
pub(super) fn seeks(fd: c_int, how: c_int, make: &dyn Fn() -> off_t) -> Option<off_t> {
    if how == libc::SEEK_SET || how == libc::SEEK_CUR {
        return None;
    }
    of_file(fd, &mut |file| {
        let call = Call::on_open(SEEK);
        if let Some(to) = call.result_again() {
            if to >= 0 {
                kernel::seek(fd, to, libc::SEEK_SET);
            }
            return to;
        }
        if !is_new_change() {
            return outcome(make());
        }
        standing_in::before_new();
        freshness::looked(file.number);
        call.write_result(outcome(make()))
    })
}

/// Functions that read: ours, the one behind it, its name, its arguments, the buffers, the place.
macro_rules! reading {
    ($($our:ident, $next:ident, $symbol:literal, ($($arg:ident: $kind:ty),*), $to:expr, $at:expr;)*) => {
        $(
            /// # Safety
            /// As the function of the C library.
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our(fd: c_int, $($arg: $kind),*) -> ssize_t {
                // SAFETY: the program keeps the contract of the C function, which gets its
                // arguments unchanged.
                unsafe {
                    let next = || $next.get()(fd, $($arg),*);
                    reads(fd, $to, $at, &next).unwrap_or_else(next)
                }
            }
        )*
    };
}
reading! {
    our_pread, pread, "pread", (to: *mut c_void, len: size_t, at: off_t),
        Buffers::new(&one(to, len)), Some(at);
    our_pread64, pread64, "pread64", (to: *mut c_void, len: size_t, at: off_t),
        Buffers::new(&one(to, len)), Some(at);
    our_pread_chk, __pread_chk, "__pread_chk",
        (to: *mut c_void, len: size_t, at: off_t, room: size_t),
        Buffers::new(&one(to, len)), Some(at);
    our_pread64_chk, __pread64_chk, "__pread64_chk",
        (to: *mut c_void, len: size_t, at: off_t, room: size_t),
        Buffers::new(&one(to, len)), Some(at);
    our_readv, readv, "readv", (parts: *const iovec, n: c_int), Buffers::of(parts, n), None;
    our_preadv, preadv, "preadv", (parts: *const iovec, n: c_int, at: off_t),
        Buffers::of(parts, n), Some(at);
    our_preadv64, preadv64, "preadv64", (parts: *const iovec, n: c_int, at: off_t),
        Buffers::of(parts, n), Some(at);
    our_preadv2, preadv2, "preadv2", (parts: *const iovec, n: c_int, at: off_t, how: c_int),
        Buffers::of(parts, n), Some(at);
    our_preadv64v2, preadv64v2, "preadv64v2",
        (parts: *const iovec, n: c_int, at: off_t, how: c_int), Buffers::of(parts, n), Some(at);
}

/// Reads from whatever is open there.
///
/// # Safety
/// As read(2).
unsafe fn reads_any(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    next: &dyn Fn() -> ssize_t,
) -> ssize_t {
    let buffers = one(to, len);
    // SAFETY: the caller passes room for `len` bytes, which outlives the call.
    let (device, buffers) = unsafe { (devices::drawn(fd, to, len), Buffers::new(&buffers)) };
    let file = || reads(fd, buffers, None, next);
    device.or_else(file).or_else(|| reads_pipe(fd, buffers, next)).unwrap_or_else(next)
}

/// # Safety
/// As read(2).
#[export_name = "read"]
pub unsafe extern "C-unwind" fn our_read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    unsafe {
        let next = || read.get()(fd, to, len);
        reads_any(fd, to, len, &next)
    }
}

/// # Safety
/// As read(2); `room` is the length of the buffer, which the C library checks.
#[export_name = "__read_chk"]
pub unsafe extern "C-unwind" fn our_read_chk(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    room: size_t,
) -> ssize_t {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    unsafe {
        let next = || __read_chk.get()(fd, to, len, room);
        if len > room {
            return next();
        }
        reads_any(fd, to, len, &next)
    }
}

/// # Safety
/// As lseek(2).
#[export_name = "lseek"]
pub unsafe extern "C-unwind" fn our_lseek(fd: c_int, to: off_t, how: c_int) -> off_t {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    let next = || unsafe { lseek.get()(fd, to, how) };
    seeks(fd, how, &next).unwrap_or_else(next)
}

/// # Safety
/// As lseek(2).
#[export_name = "lseek64"]
pub unsafe extern "C-unwind" fn our_lseek64(fd: c_int, to: off_t, how: c_int) -> off_t {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    let next = || unsafe { lseek64.get()(fd, to, how) };
    seeks(fd, how, &next).unwrap_or_else(next)
}
