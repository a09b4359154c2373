//! stat(2), access(2) and their kin of a file that has a stand-in: it is there, and as long as the
//! rank has written, whatever has become of the file itself.

use super::calling::written_down;
use super::kernel::{identify, identify_more, HERE};
use super::path::Path;
use super::standing_in::{self, table};
use crate::next::next;
use crate::own_number;
use libc::{c_char, c_int, c_uint, c_void};

type Name = *const c_char;

next! {
    stat: fn(Name, *mut c_void) -> c_int;
    stat64: fn(Name, *mut c_void) -> c_int;
    lstat: fn(Name, *mut c_void) -> c_int;
    lstat64: fn(Name, *mut c_void) -> c_int;
    fstatat: fn(c_int, Name, *mut c_void, c_int) -> c_int;
    fstatat64: fn(c_int, Name, *mut c_void, c_int) -> c_int;
    __xstat: fn(c_int, Name, *mut c_void) -> c_int;
    __xstat64: fn(c_int, Name, *mut c_void) -> c_int;
    __lxstat: fn(c_int, Name, *mut c_void) -> c_int;
    __lxstat64: fn(c_int, Name, *mut c_void) -> c_int;
    __fxstatat: fn(c_int, c_int, Name, *mut c_void, c_int) -> c_int;
    __fxstatat64: fn(c_int, c_int, Name, *mut c_void, c_int) -> c_int;
    statx: fn(c_int, Name, c_int, c_uint, *mut c_void) -> c_int;
    access: fn(Name, c_int) -> c_int;
    faccessat: fn(c_int, Name, c_int, c_int) -> c_int;
}

/// What `of` says of the stand-in of a file, if it has one.
fn seen(dir: c_int, path: Name, of: &dyn Fn(c_int) -> i64) -> Option<c_int> {
    if !standing_in::any() || path.is_null() {
        return None;
    }
    let mut found = false;
    let value = written_down(&mut || {
        // SAFETY: a C string; in a call that is being written down.
        let entry = unsafe { Path::of(dir, path).and_then(|path| table().find(&path)) };
        found = entry.is_some();
        entry.map_or(0, |entry| of(entry.descriptor()))
    });
    value.filter(|_| found).map(|value| value as c_int)
}

/// Functions that look at a path: ours, the one behind it, its name, its arguments, the directory,
/// and what is said of a descriptor.
macro_rules! looking {
    ($($our:ident, $next:ident, $symbol:literal, ($($arg:ident: $kind:ty),*), $dir:expr, $path:ident, $of:expr;)*) => {
        $(
            /// # Safety
            /// As the function of the C library.
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our($($arg: $kind),*) -> c_int {
                // SAFETY: handed on to the caller.
                seen($dir, $path, &$of).unwrap_or_else(|| unsafe { $next.get()($($arg),*) })
            }
        )*
    };
}
looking! {
    our_stat, stat, "stat", (path: Name, to: *mut c_void), HERE, path, |fd| identify(fd, to);
    our_stat64, stat64, "stat64", (path: Name, to: *mut c_void), HERE, path, |fd| identify(fd, to);
    our_lstat, lstat, "lstat", (path: Name, to: *mut c_void), HERE, path, |fd| identify(fd, to);
    our_lstat64, lstat64, "lstat64", (path: Name, to: *mut c_void), HERE, path, |fd| identify(fd, to);
    our_fstatat, fstatat, "fstatat", (at: c_int, path: Name, to: *mut c_void, how: c_int),
        at, path, |fd| identify(fd, to);
    our_fstatat64, fstatat64, "fstatat64", (at: c_int, path: Name, to: *mut c_void, how: c_int),
        at, path, |fd| identify(fd, to);
    our_xstat, __xstat, "__xstat", (version: c_int, path: Name, to: *mut c_void),
        HERE, path, |fd| identify(fd, to);
    our_xstat64, __xstat64, "__xstat64", (version: c_int, path: Name, to: *mut c_void),
        HERE, path, |fd| identify(fd, to);
    our_lxstat, __lxstat, "__lxstat", (version: c_int, path: Name, to: *mut c_void),
        HERE, path, |fd| identify(fd, to);
    our_lxstat64, __lxstat64, "__lxstat64", (version: c_int, path: Name, to: *mut c_void),
        HERE, path, |fd| identify(fd, to);
    our_fxstatat, __fxstatat, "__fxstatat",
        (version: c_int, at: c_int, path: Name, to: *mut c_void, how: c_int),
        at, path, |fd| identify(fd, to);
    our_fxstatat64, __fxstatat64, "__fxstatat64",
        (version: c_int, at: c_int, path: Name, to: *mut c_void, how: c_int),
        at, path, |fd| identify(fd, to);
    our_statx, statx, "statx", (at: c_int, path: Name, how: c_int, mask: c_uint, to: *mut c_void),
        at, path, |fd| identify_more(fd, mask, to);
    our_faccessat, faccessat, "faccessat", (at: c_int, path: Name, how: c_int, flags: c_int),
        at, path, |_| 0;
}

/// # Safety
/// As access(2).
#[export_name = "access"]
pub unsafe extern "C-unwind" fn our_access(path: Name, how: c_int) -> c_int {
    let mut room = own_number::NO_PATH;
    // SAFETY: handed on to the caller.
    unsafe {
        let path = own_number::path(path, &mut room);
        seen(HERE, path, &|_| 0).unwrap_or_else(|| access.get()(path, how))
    }
}
