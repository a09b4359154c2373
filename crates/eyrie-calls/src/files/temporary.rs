//! mkstemp(3), mkdtemp(3) and their kin: the C library draws their names past its own functions,
//! and a rank that is executed again must get the same ones.

use super::kernel::errno;
use super::names::our_mkdir;
use super::opening::opened;
use crate::next::next;
use crate::random;
use libc::{c_char, c_int};
use std::ffi::CStr;

next! {
    mkstemp: fn(*mut c_char) -> c_int;
    mkstemp64: fn(*mut c_char) -> c_int;
    mkostemp: fn(*mut c_char, c_int) -> c_int;
    mkostemp64: fn(*mut c_char, c_int) -> c_int;
    mkstemps: fn(*mut c_char, c_int) -> c_int;
    mkstemps64: fn(*mut c_char, c_int) -> c_int;
    mkostemps: fn(*mut c_char, c_int, c_int) -> c_int;
    mkostemps64: fn(*mut c_char, c_int, c_int) -> c_int;
    mkdtemp: fn(*mut c_char) -> *mut c_char;
}

/// How many names are tried.
const TRIES: usize = 10_000;
const PLACES: usize = 6;
const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

/// The places of a template that are to be filled, if the rank draws by itself.
///
/// # Safety
/// `template` must be a C string of the caller's.
unsafe fn places<'a>(template: *mut c_char, behind: c_int) -> Option<&'a mut [u8]> {
    if template.is_null() || !random::draws() {
        return None;
    }
    // SAFETY: handed on to the caller.
    unsafe {
        let len = CStr::from_ptr(template).count_bytes();
        let end = len.checked_sub(usize::try_from(behind).ok()?)?;
        let from = end.checked_sub(PLACES)?;
        let places = std::slice::from_raw_parts_mut(template.add(from).cast::<u8>(), PLACES);
        (places == b"XXXXXX").then_some(places)
    }
}

fn draw(places: &mut [u8]) {
    random::fill(places);
    places.iter_mut().for_each(|byte| *byte = LETTERS[*byte as usize % LETTERS.len()]);
}

fn exists() -> bool {
    errno() == libc::EEXIST
}

/// # Safety
/// As mkostemps(3).
unsafe fn make(template: *mut c_char, behind: c_int, flags: c_int) -> Option<c_int> {
    // SAFETY: handed on to the caller.
    let places = unsafe { places(template, behind) }?;
    let flags = flags & !libc::O_ACCMODE | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    for _ in 0..TRIES {
        draw(places);
        // SAFETY: as above.
        let fd = unsafe { opened(libc::AT_FDCWD, template, flags, 0o600) };
        let Some(fd) = fd else {
            places.fill(b'X');
            return None;
        };
        if fd >= 0 || !exists() {
            return Some(fd as c_int);
        }
    }
    Some(-1)
}

/// Functions like mkstemp(3): ours, the one behind it, its name, its other arguments, how many
/// bytes come behind the places, flags.
macro_rules! making {
    ($($our:ident, $next:ident, $symbol:literal, ($($arg:ident: $kind:ty),*), $behind:expr, $flags:expr;)*) => {
        $(
            /// # Safety
            /// As mkstemp(3).
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our(template: *mut c_char, $($arg: $kind),*) -> c_int {
                // SAFETY: handed on to the caller.
                unsafe {
                    let made = make(template, $behind, $flags);
                    made.unwrap_or_else(|| $next.get()(template, $($arg),*))
                }
            }
        )*
    };
}
making! {
    our_mkstemp, mkstemp, "mkstemp", (), 0, 0;
    our_mkstemp64, mkstemp64, "mkstemp64", (), 0, 0;
    our_mkostemp, mkostemp, "mkostemp", (flags: c_int), 0, flags;
    our_mkostemp64, mkostemp64, "mkostemp64", (flags: c_int), 0, flags;
    our_mkstemps, mkstemps, "mkstemps", (behind: c_int), behind, 0;
    our_mkstemps64, mkstemps64, "mkstemps64", (behind: c_int), behind, 0;
    our_mkostemps, mkostemps, "mkostemps", (behind: c_int, flags: c_int), behind, flags;
    our_mkostemps64, mkostemps64, "mkostemps64", (behind: c_int, flags: c_int), behind, flags;
}

/// # Safety
/// As mkdtemp(3).
#[export_name = "mkdtemp"]
pub unsafe extern "C-unwind" fn our_mkdtemp(template: *mut c_char) -> *mut c_char {
    // SAFETY: handed on to the caller.
    unsafe {
        let Some(places) = places(template, 0) else { return mkdtemp.get()(template) };
        for _ in 0..TRIES {
            draw(places);
            if our_mkdir(template, 0o700) == 0 {
                return template;
            }
            if !exists() {
                break;
            }
        }
        std::ptr::null_mut()
    }
}
