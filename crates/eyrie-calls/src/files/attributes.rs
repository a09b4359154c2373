//! Extended attributes (getxattr(2), setxattr(2) and the like), and attributes of an open file:
//! fchmod(2), fchown(2), futimens(3). A known question gets its known answer. A known change is not
//! repeated, because another rank may have changed the attribute since. Our own marks are hidden
//! from the program. Copied to another file, as shutil.copystat copies all that it finds, they
//! would be wrong there.

use super::asking::asked;
use super::calling::outcome;
use super::change::{of_call, Change, UNKNOWN};
use super::kernel::{errno, Identity};
use super::records::Call;
use super::writing::changes;
use crate::next::next;
use libc::{c_char, c_int, c_void, gid_t, mode_t, size_t, ssize_t, timespec, timeval, uid_t};

type Name = *const c_char;
type Bytes = *const c_void;
type Times = *const timeval;

next! {
    getxattr: fn(Name, Name, *mut c_void, size_t) -> ssize_t;
    lgetxattr: fn(Name, Name, *mut c_void, size_t) -> ssize_t;
    fgetxattr: fn(c_int, Name, *mut c_void, size_t) -> ssize_t;
    listxattr: fn(Name, *mut c_void, size_t) -> ssize_t;
    llistxattr: fn(Name, *mut c_void, size_t) -> ssize_t;
    flistxattr: fn(c_int, *mut c_void, size_t) -> ssize_t;
    setxattr: fn(Name, Name, Bytes, size_t, c_int) -> c_int;
    lsetxattr: fn(Name, Name, Bytes, size_t, c_int) -> c_int;
    fsetxattr: fn(c_int, Name, Bytes, size_t, c_int) -> c_int;
    removexattr: fn(Name, Name) -> c_int;
    lremovexattr: fn(Name, Name) -> c_int;
    fremovexattr: fn(c_int, Name) -> c_int;
    fchmod: fn(c_int, mode_t) -> c_int;
    fchown: fn(c_int, uid_t, gid_t) -> c_int;
    futimens: fn(c_int, *const timespec) -> c_int;
    futimes: fn(c_int, Times) -> c_int;
}

/// Numbers of the functions, in what is recorded.
const GET: u8 = 105;
const LIST: u8 = 106;
const SET: u8 = 107;
const REMOVE: u8 = 108;
const MODE: u8 = 109;
const OWNER: u8 = 110;
const TIMES: u8 = 111;

/// Asks for an attribute or for the names of all: how many bytes, of which none is put where there
/// is no room at all.
///
/// # Safety
/// `to` must have so much room.
unsafe fn attribute(
    call: Call,
    what: u8,
    (to, room): (*mut c_void, size_t),
    make: &dyn Fn() -> ssize_t,
) -> ssize_t {
    let made = || {
        let value = outcome(make() as i64);
        match usize::try_from(value) {
            Ok(n) if what == LIST && n > 0 && room > 0 => {
                // SAFETY: so many bytes have been put there.
                let list = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), n) };
                let n = without_ours(list);
                (n as i64, n)
            }
            n => (value, n.unwrap_or(0).min(room)),
        }
    };
    // SAFETY: the caller keeps this contract, which is that of the function called.
    unsafe { asked(call, (to, room), &made) }.map_or_else(make, |value| value as ssize_t)
}

/// What the names of our own begin with.
const OURS: &[u8] = b"user.eyrie.";

/// Takes our own names out of a list of them, each of which ends with a NUL; how long it is then.
fn without_ours(list: &mut [u8]) -> usize {
    let mut from = 0;
    let mut len = 0;
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

/// Whether an attribute is there, of which `get` puts the value; with `value`, also whether it is
/// that.
fn has(get: &dyn Fn(*mut c_void, size_t) -> ssize_t, value: Option<(Bytes, size_t)>) -> bool {
    let mut room = [0u8; 4096];
    let len = get(room.as_mut_ptr().cast(), room.len());
    let there = len >= 0 || errno() == libc::ERANGE;
    there
        && value.is_none_or(|(bytes, n)| {
            // SAFETY: the program gives so many bytes to be set.
            let wanted = || unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), n) };
            len == n as ssize_t && (n == 0 || room.get(..n).is_some_and(|has| has == wanted()))
        })
}

/// Sets an attribute, or removes it (`value`: none).
///
/// # Safety
/// The value must have as many bytes as it says.
unsafe fn sets(
    call: Call,
    get: &dyn Fn(*mut c_void, size_t) -> ssize_t,
    value: Option<(Bytes, size_t)>,
    flags: c_int,
    make: &dyn Fn() -> c_int,
) -> c_int {
    let change = Change {
        call,
        before: &|| match has(get, None) {
            true if flags == libc::XATTR_CREATE => Err(-i64::from(libc::EEXIST)),
            // If it is made twice something else comes of it.
            is_there if is_there == value.is_none() && flags != libc::XATTR_REPLACE => {
                Ok(Identity::default())
            }
            _ => Err(UNKNOWN),
        },
        is_done: &|_| match value {
            Some(value) => has(get, Some(value)),
            None => !has(get, None),
        },
        stand_ins: &|| (),
        keep: &|_| (),
    };
    of_call(&change, make)
}

/// Functions that tell of attributes: ours, the one behind it, its name, its arguments, the call,
/// where it is put.
macro_rules! telling {
    ($($our:ident, $next:ident, $symbol:literal, ($($arg:ident: $kind:ty),*), $what:ident,
        $call:expr;)*) => {
        $(
            /// # Safety
            /// As the function of the C library.
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our(
                $($arg: $kind,)*
                to: *mut c_void,
                room: size_t,
            ) -> ssize_t {
                // SAFETY: the program keeps the contract of the C function, which gets its
                // arguments unchanged.
                unsafe { attribute($call, $what, (to, room), &|| $next.get()($($arg,)* to, room)) }
            }
        )*
    };
}
telling! {
    our_getxattr, getxattr, "getxattr", (path: Name, name: Name), GET,
        Call::of(GET, path);
    our_lgetxattr, lgetxattr, "lgetxattr", (path: Name, name: Name), GET,
        Call::of(GET, path);
    our_fgetxattr, fgetxattr, "fgetxattr", (fd: c_int, name: Name), GET,
        Call::on_open(GET);
    our_listxattr, listxattr, "listxattr", (path: Name), LIST, Call::of(LIST, path);
    our_llistxattr, llistxattr, "llistxattr", (path: Name), LIST, Call::of(LIST, path);
    our_flistxattr, flistxattr, "flistxattr", (fd: c_int), LIST, Call::on_open(LIST);
}

/// Functions that set an attribute and that remove it: ours, the one behind it, its name, and the
/// one that tells of it; of what.
macro_rules! setting {
    ($($set:ident, $next_set:ident, $symbol_set:literal,
        $remove:ident, $next_remove:ident, $symbol_remove:literal,
        $get:ident, ($of:ident: $kind:ty), $set_call:expr, $remove_call:expr;)*) => {
        $(
            /// # Safety
            /// As the function of the C library.
            #[export_name = $symbol_set]
            pub unsafe extern "C-unwind" fn $set(
                $of: $kind,
                name: Name,
                value: Bytes,
                len: size_t,
                flags: c_int,
            ) -> c_int {
                // SAFETY: the program keeps the contract of the C function, which gets its
                // arguments unchanged.
                unsafe {
                    let get = |to, room| $get.get()($of, name, to, room);
                    let make = || $next_set.get()($of, name, value, len, flags);
                    sets($set_call, &get, Some((value, len)), flags, &make)
                }
            }

            /// # Safety
            /// As the function of the C library.
            #[export_name = $symbol_remove]
            pub unsafe extern "C-unwind" fn $remove($of: $kind, name: Name) -> c_int {
                // SAFETY: the program keeps the contract of the C function, which gets its
                // arguments unchanged.
                unsafe {
                    let get = |to, room| $get.get()($of, name, to, room);
                    sets($remove_call, &get, None, 0, &|| $next_remove.get()($of, name))
                }
            }
        )*
    };
}
setting! {
    our_setxattr, setxattr, "setxattr", our_removexattr, removexattr, "removexattr",
        getxattr, (path: Name), Call::of(SET, path), Call::of(REMOVE, path);
    our_lsetxattr, lsetxattr, "lsetxattr", our_lremovexattr, lremovexattr, "lremovexattr",
        lgetxattr, (path: Name), Call::of(SET, path), Call::of(REMOVE, path);
    our_fsetxattr, fsetxattr, "fsetxattr", our_fremovexattr, fremovexattr, "fremovexattr",
        fgetxattr, (fd: c_int), Call::on_open(SET), Call::on_open(REMOVE);
}

/// Functions that set something of an open file: ours, the one behind it, its name, its number in
/// what is recorded, its arguments.
macro_rules! setting_of_open {
    ($($our:ident, $next:ident, $symbol:literal, $what:ident, ($($arg:ident: $kind:ty),*);)*) => {
        $(
            /// # Safety
            /// As the function of the C library.
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our(fd: c_int, $($arg: $kind),*) -> c_int {
                // SAFETY: the program keeps the contract of the C function, which gets its
                // arguments unchanged.
                let make = || unsafe { $next.get()(fd, $($arg),*) };
                let made_once = changes(($what, None), fd, &|_, _| (), &|| outcome(make()));
                made_once.map_or_else(make, |value| value as c_int)
            }
        )*
    };
}
setting_of_open! {
    our_fchmod, fchmod, "fchmod", MODE, (mode: mode_t);
    our_fchown, fchown, "fchown", OWNER, (user: uid_t, group: gid_t);
    our_futimens, futimens, "futimens", TIMES, (times: *const timespec);
    our_futimes, futimes, "futimes", TIMES, (times: Times);
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
