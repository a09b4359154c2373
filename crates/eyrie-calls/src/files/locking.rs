//! flock(2), lockf(3) and mmap(2) of a file that has a stand-in: what others are to see of it they
//! would not see, so the file takes its place before.

use super::calling::written_down;
use super::standing_in::{self, table};
use crate::next::next;
use libc::{c_int, c_void, off_t, size_t};

next! {
    flock: fn(c_int, c_int) -> c_int;
    lockf: fn(c_int, c_int, off_t) -> c_int;
    lockf64: fn(c_int, c_int, off_t) -> c_int;
    mmap: fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void;
    mmap64: fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void;
}

/// The file takes its place, if it has a stand-in.
fn take_place(fd: c_int) {
    if standing_in::any() && fd >= 0 {
        written_down(&mut || {
            // SAFETY: in a call that is being written down.
            unsafe { table() }.give_back(fd);
            0
        });
    }
}

/// # Safety
/// As flock(2).
#[export_name = "flock"]
pub unsafe extern "C-unwind" fn our_flock(fd: c_int, how: c_int) -> c_int {
    take_place(fd);
    // SAFETY: handed on to the caller.
    unsafe { flock.get()(fd, how) }
}

/// # Safety
/// As lockf(3).
#[export_name = "lockf"]
pub unsafe extern "C-unwind" fn our_lockf(fd: c_int, how: c_int, len: off_t) -> c_int {
    take_place(fd);
    // SAFETY: handed on to the caller.
    unsafe { lockf.get()(fd, how, len) }
}

/// # Safety
/// As lockf(3).
#[export_name = "lockf64"]
pub unsafe extern "C-unwind" fn our_lockf64(fd: c_int, how: c_int, len: off_t) -> c_int {
    take_place(fd);
    // SAFETY: handed on to the caller.
    unsafe { lockf64.get()(fd, how, len) }
}

/// Functions like mmap(2): ours, the one behind it, its name.
macro_rules! mapping {
    ($($our:ident, $next:ident, $symbol:literal;)*) => {
        $(
            /// # Safety
            /// As mmap(2).
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our(
                at: *mut c_void,
                len: size_t,
                access: c_int,
                flags: c_int,
                fd: c_int,
                from: off_t,
            ) -> *mut c_void {
                if flags & libc::MAP_SHARED != 0 && flags & libc::MAP_ANONYMOUS == 0 {
                    take_place(fd);
                }
                // SAFETY: handed on to the caller.
                unsafe { $next.get()(at, len, access, flags, fd, from) }
            }
        )*
    };
}
mapping! {
    our_mmap, mmap, "mmap";
    our_mmap64, mmap64, "mmap64";
}
