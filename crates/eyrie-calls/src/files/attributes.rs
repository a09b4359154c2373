//! Extended attributes: getxattr(2), listxattr(2), setxattr(2), removexattr(2) and their kin, and
//! fchmod(2), fchown(2), futimens(3). A rank that is executed again is told what it was told of
//! attributes, and sets none a second time. Our own marks are hidden from it: copied to another
//! file, as shutil.copystat does with all that is listed, they would say something wrong of that.

use super::calling::{outcome, written_down};
use super::freshness;
use super::looking::is_of_the_kernel;
use super::names::marked;
use super::records::{is_new_change, Call};
use super::standing_in;
use super::writing::sets;
use crate::next::next;
use libc::{c_char, c_int, c_void, gid_t, mode_t, size_t, ssize_t, timespec, uid_t};
use std::ffi::CStr;

type Name = *const c_char;

next! {
    getxattr: fn(Name, Name, *mut c_void, size_t) -> ssize_t;
    lgetxattr: fn(Name, Name, *mut c_void, size_t) -> ssize_t;
    fgetxattr: fn(c_int, Name, *mut c_void, size_t) -> ssize_t;
    listxattr: fn(Name, *mut c_char, size_t) -> ssize_t;
    llistxattr: fn(Name, *mut c_char, size_t) -> ssize_t;
    flistxattr: fn(c_int, *mut c_char, size_t) -> ssize_t;
    setxattr: fn(Name, Name, *const c_void, size_t, c_int) -> c_int;
    lsetxattr: fn(Name, Name, *const c_void, size_t, c_int) -> c_int;
    fsetxattr: fn(c_int, Name, *const c_void, size_t, c_int) -> c_int;
    removexattr: fn(Name, Name) -> c_int;
    lremovexattr: fn(Name, Name) -> c_int;
    fremovexattr: fn(c_int, Name) -> c_int;
    fchmod: fn(c_int, mode_t) -> c_int;
    fchown: fn(c_int, uid_t, gid_t) -> c_int;
    futimens: fn(c_int, *const timespec) -> c_int;
}

/// Numbers of the functions, in what is written down.
const GET: u8 = 105;
const LIST: u8 = 106;
/// What the names of our own begin with.
const OURS: &[u8] = b"user.eyrie.";

/// What is asked for an attribute, or for the names of all.
fn reads(what: u8, path: Name, to: *mut u8, len: size_t, make: &dyn Fn() -> ssize_t) -> ssize_t {
    // SAFETY: a C string, or nothing.
    if !path.is_null() && is_of_the_kernel(unsafe { CStr::from_ptr(path) }) {
        return make();
    }
    let call = match path.is_null() {
        true => Call::on_open(what),
        // SAFETY: a C string.
        false => unsafe { Call::new(what, path) },
    };
    let room = || match len {
        0 => &mut [][..],
        // SAFETY: as much room as the program says.
        _ => unsafe { std::slice::from_raw_parts_mut(to, len) },
    };
    let ask = || {
        let n = outcome(make() as i64);
        match usize::try_from(n) {
            Ok(n) if what == LIST && len > 0 => without_ours(&mut room()[..n]) as i64,
            _ => n,
        }
    };
    let value = written_down(&mut || {
        if let Some(value) = call.result_again() {
            return value;
        }
        let told = call.content_again(&mut |at, part| {
            if let Some(room) = room().get_mut(at..at + part.len()) {
                room.copy_from_slice(part);
            }
        });
        if let Some(n) = told {
            return n;
        }
        let new = is_new_change();
        if new {
            standing_in::before_new();
        }
        let n = ask();
        if new {
            freshness::looked_around();
            match n {
                1.. if len > 0 => {
                    call.write_content(n, &mut |at, most| &room()[at..at + most]);
                }
                _ => {
                    call.write_result(n);
                }
            }
        }
        n
    });
    value.map_or_else(make, |value| value as ssize_t)
}

/// Takes our own names out of a list of them, each of which ends with a NUL; how long it is then.
fn without_ours(list: &mut [u8]) -> usize {
    let (mut from, mut len) = (0, 0);
    while let Some(end) = list[from..].iter().position(|byte| *byte == 0) {
        let name = from..from + end + 1;
        from = name.end;
        if !list[name.clone()].starts_with(OURS) {
            let n = name.len();
            list.copy_within(name, len);
            len += n;
        }
    }
    len
}

/// Functions that ask: ours, the one behind it, its name, its arguments, what it is, the path,
/// where it is put and how much room there is.
macro_rules! asking {
    ($($our:ident, $next:ident, $symbol:literal, ($($arg:ident: $kind:ty),*), $what:ident,
        $path:expr, $to:ident, $len:ident;)*) => {
        $(
            /// # Safety
            /// As the function of the C library.
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our($($arg: $kind),*) -> ssize_t {
                // SAFETY: handed on to the caller.
                reads($what, $path, $to.cast(), $len, &|| unsafe { $next.get()($($arg),*) })
            }
        )*
    };
}
asking! {
    our_getxattr, getxattr, "getxattr", (path: Name, name: Name, to: *mut c_void, len: size_t),
        GET, path, to, len;
    our_lgetxattr, lgetxattr, "lgetxattr", (path: Name, name: Name, to: *mut c_void, len: size_t),
        GET, path, to, len;
    our_fgetxattr, fgetxattr, "fgetxattr", (fd: c_int, name: Name, to: *mut c_void, len: size_t),
        GET, std::ptr::null(), to, len;
    our_listxattr, listxattr, "listxattr", (path: Name, to: *mut c_char, len: size_t),
        LIST, path, to, len;
    our_llistxattr, llistxattr, "llistxattr", (path: Name, to: *mut c_char, len: size_t),
        LIST, path, to, len;
    our_flistxattr, flistxattr, "flistxattr", (fd: c_int, to: *mut c_char, len: size_t),
        LIST, std::ptr::null(), to, len;
}

/// Functions that set something: ours, the one behind it, its name, its arguments, what is done
/// with the call.
macro_rules! setting {
    ($($our:ident, $next:ident, $symbol:literal, ($($arg:ident: $kind:ty),*), $how:expr;)*) => {
        $(
            /// # Safety
            /// As the function of the C library.
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our($($arg: $kind),*) -> c_int {
                // SAFETY: handed on to the caller.
                let make = || unsafe { $next.get()($($arg),*) };
                let how: &dyn Fn(&dyn Fn() -> c_int) -> c_int = &$how;
                how(&make)
            }
        )*
    };
}
setting! {
    our_setxattr, setxattr, "setxattr",
        (path: Name, name: Name, from: *const c_void, len: size_t, flags: c_int),
        |make| marked(24, path, make);
    our_lsetxattr, lsetxattr, "lsetxattr",
        (path: Name, name: Name, from: *const c_void, len: size_t, flags: c_int),
        |make| marked(25, path, make);
    our_removexattr, removexattr, "removexattr", (path: Name, name: Name),
        |make| marked(26, path, make);
    our_lremovexattr, lremovexattr, "lremovexattr", (path: Name, name: Name),
        |make| marked(27, path, make);
    our_fsetxattr, fsetxattr, "fsetxattr",
        (fd: c_int, name: Name, from: *const c_void, len: size_t, flags: c_int),
        |make| sets(fd, make);
    our_fremovexattr, fremovexattr, "fremovexattr", (fd: c_int, name: Name),
        |make| sets(fd, make);
    our_fchmod, fchmod, "fchmod", (fd: c_int, mode: mode_t), |make| sets(fd, make);
    our_fchown, fchown, "fchown", (fd: c_int, user: uid_t, group: gid_t), |make| sets(fd, make);
    our_futimens, futimens, "futimens", (fd: c_int, times: *const timespec),
        |make| sets(fd, make);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_names_are_not_listed() {
        let mut list = *b"user.eyrie.rank\0user.colour\0user.eyrie.mapped\0user.eyriez\0";
        let len = without_ours(&mut list);
        assert_eq!(&list[..len], b"user.colour\0user.eyriez\0");
        assert_eq!(without_ours(&mut []), 0);
    }
}
