//! Calls that ask for something other than the content of a file: they return a number and write
//! some bytes. A rank that is executed again gets both from the record. Here are statfs(2) and the
//! like, because the space that is left differs from one execution to another.

use super::calling::{outcome, recorded};
use super::freshness;
use super::once;
use super::records::Call;
use crate::next::next;
use crate::observed::Observing;
use libc::{c_char, c_int, c_void};

type Name = *const c_char;

next! {
    statfs: fn(Name, *mut c_void) -> c_int;
    statfs64: fn(Name, *mut c_void) -> c_int;
    fstatfs: fn(c_int, *mut c_void) -> c_int;
    fstatfs64: fn(c_int, *mut c_void) -> c_int;
    statvfs: fn(Name, *mut c_void) -> c_int;
    statvfs64: fn(Name, *mut c_void) -> c_int;
    fstatvfs: fn(c_int, *mut c_void) -> c_int;
    fstatvfs64: fn(c_int, *mut c_void) -> c_int;
}

/// Number of the functions, in what is recorded.
const SPACE: u8 = 104;

/// Whether what this thread does counts.
pub(super) fn counts() -> bool {
    Observing::begin().is_some()
}

/// Makes a call that puts bytes at `to`, at most `room` of them: `make` gives what the C library's
/// function would or a negative errno, and how many bytes it has put there. `None` in a thread
/// whose calls are not recorded.
///
/// # Safety
/// There must be so much room for as long as the call lasts.
pub(super) unsafe fn asked(
    call: Call,
    to: (*mut c_void, usize),
    make: &dyn Fn() -> (i64, usize),
) -> Option<i64> {
    // SAFETY: the caller keeps this contract, which is that of the function called.
    unsafe { asked_beside(call, to, make, &|| ()) }
}

/// The same for one that does something beside, which `beside` does where the result is replayed.
///
/// # Safety
/// As [`asked`].
pub(super) unsafe fn asked_beside(
    call: Call,
    (to, room): (*mut c_void, usize),
    make: &dyn Fn() -> (i64, usize),
    beside: &dyn Fn(),
) -> Option<i64> {
    let mut asking = Asking { to, room, given: 0, make, beside };
    recorded(&mut || once::ask(call, &mut asking))
}

struct Asking<'a> {
    to: *mut c_void,
    room: usize,
    given: usize,
    make: &'a dyn Fn() -> (i64, usize),
    beside: &'a dyn Fn(),
}

impl once::Asking for Asking<'_> {
    fn make(&mut self) -> i64 {
        let (value, len) = (self.make)();
        self.given = len.min(self.room);
        value
    }

    fn replay(&mut self, bytes: &[u8]) {
        (self.beside)();
        let len = bytes.len().min(self.room);
        // SAFETY: who asks has said that there is so much room.
        unsafe { self.to.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), len) };
    }

    fn given(&self) -> &[u8] {
        match self.given {
            0 => &[],
            // SAFETY: so many bytes were put there.
            len => unsafe { std::slice::from_raw_parts(self.to.cast(), len) },
        }
    }
}

/// Asks how much space there is, which is put in a structure of this size.
///
/// # Safety
/// As [`asked`].
pub(super) unsafe fn asks_for_space(
    call: Call,
    (to, size): (*mut c_void, usize),
    make: &dyn Fn() -> c_int,
) -> c_int {
    if to.is_null() {
        return make();
    }
    let made = || {
        let value = outcome(make());
        freshness::looked_everywhere();
        (value, if value < 0 { 0 } else { size })
    };
    // SAFETY: the caller keeps this contract, which is that of the function called.
    unsafe { asked(call, (to, size), &made) }.map_or_else(make, |value| value as c_int)
}

/// Functions that say how much space there is: ours, the one behind it, its name, what is asked
/// about, the structure.
macro_rules! asking {
    ($($our:ident, $next:ident, $symbol:literal, $about:ident: $kind:ty, $call:expr, $to:ty;)*) => {
        $(
            /// # Safety
            /// As the function of the C library.
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our($about: $kind, to: *mut c_void) -> c_int {
                // SAFETY: the program keeps the contract of the C function, which gets its
                // arguments unchanged.
                unsafe { asks_for_space($call, (to, size_of::<$to>()), &|| $next.get()($about, to)) }
            }
        )*
    };
}
asking! {
    our_statfs, statfs, "statfs", path: Name, named(path), libc::statfs;
    our_statfs64, statfs64, "statfs64", path: Name, named(path), libc::statfs;
    our_fstatfs, fstatfs, "fstatfs", fd: c_int, Call::on_open(SPACE), libc::statfs;
    our_fstatfs64, fstatfs64, "fstatfs64", fd: c_int, Call::on_open(SPACE), libc::statfs;
    our_statvfs, statvfs, "statvfs", path: Name, named(path), libc::statvfs;
    our_statvfs64, statvfs64, "statvfs64", path: Name, named(path), libc::statvfs;
    our_fstatvfs, fstatvfs, "fstatvfs", fd: c_int, Call::on_open(SPACE), libc::statvfs;
    our_fstatvfs64, fstatvfs64, "fstatvfs64", fd: c_int, Call::on_open(SPACE), libc::statvfs;
}

/// # Safety
/// `path` must be null or a C string.
unsafe fn named(path: Name) -> Call {
    // SAFETY: the caller keeps this contract, which is that of the function called.
    unsafe { Call::of(SPACE, path) }
}
