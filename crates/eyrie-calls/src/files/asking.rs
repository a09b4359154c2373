//! Calls that ask for something that is no file's content: they say a number and put some bytes.
//! A rank that is executed again is told both. Here are statfs(2) and its kin, because how much
//! space is left differs from one execution to another.

use super::calling::{outcome, written_down};
use super::freshness;
use super::records::{is_new_change, Call};
use super::standing_in;
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

/// Number of the functions, in what is written down.
const SPACE: u8 = 104;

/// Whether what this thread does counts.
pub(super) fn counts() -> bool {
    Observing::begin().is_some()
}

/// Makes a call that puts bytes at `to`, at most `room` of them: `make` gives what the C library's
/// function would or a negative errno, and how many bytes it has put there. `None` in a thread
/// whose calls are not written down.
///
/// # Safety
/// There must be so much room for as long as the call lasts.
pub(super) unsafe fn asked(
    call: Call,
    to: (*mut c_void, usize),
    make: &dyn Fn() -> (i64, usize),
) -> Option<i64> {
    // SAFETY: handed on to the caller.
    unsafe { asked_beside(call, to, make, &|| ()) }
}

/// The same for one that does something beside, which `beside` does where it is only told.
///
/// # Safety
/// As [`asked`].
pub(super) unsafe fn asked_beside(
    call: Call,
    (to, room): (*mut c_void, usize),
    make: &dyn Fn() -> (i64, usize),
    beside: &dyn Fn(),
) -> Option<i64> {
    written_down(&mut || {
        if let Some((value, bytes)) = call.answer_again() {
            beside();
            // SAFETY: handed on to the caller.
            unsafe {
                to.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len().min(room))
            };
            return value;
        }
        if !is_new_change() {
            // It does something else than before.
            return make().0;
        }
        standing_in::before_new();
        freshness::looked_around();
        let (value, len) = make();
        let bytes: &[u8] = match len.min(room) {
            0 => &[],
            // SAFETY: so many bytes were put there.
            len => unsafe { std::slice::from_raw_parts(to.cast(), len) },
        };
        call.write_answer(value, bytes);
        value
    })
}

/// The same for one that puts a structure of this size, or nothing when it fails.
///
/// # Safety
/// As [`asked`].
pub(super) unsafe fn asked_for(
    call: Call,
    (to, size): (*mut c_void, usize),
    make: &dyn Fn() -> c_int,
) -> c_int {
    if to.is_null() {
        return make();
    }
    let made = || {
        let value = outcome(make());
        (value, if value < 0 { 0 } else { size })
    };
    // SAFETY: handed on to the caller.
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
                // SAFETY: handed on to the caller.
                unsafe { asked_for($call, (to, size_of::<$to>()), &|| $next.get()($about, to)) }
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
    // SAFETY: handed on to the caller.
    unsafe { Call::of(SPACE, path) }
}
