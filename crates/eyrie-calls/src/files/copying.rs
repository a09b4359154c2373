//! copy_file_range(2), sendfile(2), splice(2): from one open file to another, or to or from a pipe,
//! without the program's memory. A known copy is not repeated.

use super::calling::outcome;
use super::kernel::{self, File};
use super::own_mapping;
use super::pipes::{self, writes_pipe};
use super::standing_in;
use super::writing::changes;
use crate::next::next;
use libc::{c_int, c_uint, off_t, size_t, ssize_t};
use std::cell::Cell;

next! {
    copy_file_range: fn(c_int, *mut off_t, c_int, *mut off_t, size_t, c_uint) -> ssize_t;
    sendfile: fn(c_int, c_int, *mut off_t, size_t) -> ssize_t;
    sendfile64: fn(c_int, c_int, *mut off_t, size_t) -> ssize_t;
    splice: fn(c_int, *mut off_t, c_int, *mut off_t, size_t, c_uint) -> ssize_t;
}

/// Number of the functions, in what is recorded.
const COPY: u8 = 85;

/// Copies from one file to another, from a place or from where it stands.
///
/// # Safety
/// `from` and `to` must be null or point to a place.
unsafe fn copies(
    (from, from_at): (c_int, *mut off_t),
    (to, to_at): (c_int, *mut off_t),
    make: &dyn Fn() -> ssize_t,
) -> Option<ssize_t> {
    let moved = |fd: c_int, at: *mut off_t, n: i64| {
        if kernel::pipe_at(fd).is_some() {
            return pipes::passed(fd, n);
        }
        // SAFETY: the caller passes null, or what is valid for this call.
        match unsafe { at.as_mut() } {
            Some(at) => *at += n,
            None => {
                kernel::seek(fd, n, libc::SEEK_CUR);
            }
        }
    };
    let again = |file: &File, n: i64| {
        if n > 0 {
            moved(from, from_at, n);
            moved(to, to_at, n);
            // SAFETY: the caller passes null, or what is valid for this call.
            let end = unsafe { to_at.as_ref() }.copied();
            let end = end.unwrap_or_else(|| kernel::seek(to, 0, libc::SEEK_CUR));
            standing_in::written(file.number, end as u64);
            own_mapping::copied(to, file.number, end as u64, n as u64);
        }
    };
    let made = Cell::new(false);
    let make = || {
        made.set(true);
        make()
    };
    let copied =
        changes((COPY, None), to, &again, &|| outcome(make() as i64)).map(|n| n as ssize_t);
    copied.or_else(|| {
        let n = writes_pipe(to, &make)?;
        if !made.get() && n > 0 {
            moved(from, from_at, n as i64);
        }
        Some(n)
    })
}

/// Functions like copy_file_range(2): ours, the one behind it, its name.
macro_rules! copying {
    ($($our:ident, $next:ident, $symbol:literal;)*) => {
        $(
            /// # Safety
            /// As copy_file_range(2) and splice(2).
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our(
                from: c_int,
                from_at: *mut off_t,
                to: c_int,
                to_at: *mut off_t,
                len: size_t,
                flags: c_uint,
            ) -> ssize_t {
                // SAFETY: the program keeps the contract of the C function, which gets its
                // arguments unchanged.
                unsafe {
                    let next = || $next.get()(from, from_at, to, to_at, len, flags);
                    copies((from, from_at), (to, to_at), &next).unwrap_or_else(next)
                }
            }
        )*
    };
}
copying! {
    our_copy_file_range, copy_file_range, "copy_file_range";
    our_splice, splice, "splice";
}

/// Functions like sendfile(2): ours, the one behind it, its name.
macro_rules! sending {
    ($($our:ident, $next:ident, $symbol:literal;)*) => {
        $(
            /// # Safety
            /// As sendfile(2).
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our(
                to: c_int,
                from: c_int,
                at: *mut off_t,
                len: size_t,
            ) -> ssize_t {
                // SAFETY: the program keeps the contract of the C function, which gets its
                // arguments unchanged.
                unsafe {
                    let next = || $next.get()(to, from, at, len);
                    copies((from, at), (to, std::ptr::null_mut()), &next).unwrap_or_else(next)
                }
            }
        )*
    };
}
sending! {
    our_sendfile, sendfile, "sendfile";
    our_sendfile64, sendfile64, "sendfile64";
}
