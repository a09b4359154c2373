//! chdir(2), getcwd(3), realpath(3) and the like. A rank that is executed again goes to the same
//! directory, by its whole path, and gets the same paths. If the directory is gone by then, the
//! rank is in none, and names are looked up by the path that the directory had.

use super::asking::asked;
use super::calling::{or_errno, outcome, recorded};
use super::freshness;
use super::kernel::{self, HERE};
use super::looking::is_of_the_kernel;
use super::path::{self, Path, MOST};
use super::records::{is_new_change, Call};
use super::standing_in;
use crate::next::next;
use libc::{c_char, c_int, size_t};
use std::ffi::CStr;

type Name = *const c_char;

next! {
    chdir: fn(Name) -> c_int;
    fchdir: fn(c_int) -> c_int;
    getcwd: fn(*mut c_char, size_t) -> *mut c_char;
    __getcwd_chk: fn(*mut c_char, size_t, size_t) -> *mut c_char;
    getwd: fn(*mut c_char) -> *mut c_char;
    get_current_dir_name: fn() -> *mut c_char;
    realpath: fn(Name, *mut c_char) -> *mut c_char;
    __realpath_chk: fn(Name, *mut c_char, size_t) -> *mut c_char;
}

/// Numbers of the functions, in what is recorded.
const GO: u8 = 112;
const WHERE: u8 = 113;
const REAL: u8 = 114;
/// A directory in which nothing can be made.
pub(super) const NOWHERE: &CStr = c"/proc/thread-self/attr";

fn now() -> Option<Path> {
    // SAFETY: the literal ends in a NUL.
    unsafe { Path::of(HERE, c".".as_ptr()) }
}

/// Goes to a directory by `make`; `path`: what it is called, unless it is open.
fn goes(path: Option<Name>, make: &dyn Fn() -> c_int) -> c_int {
    // SAFETY: a C string, as the caller has looked.
    let call = path.map_or(Call::on_open(GO), |path| unsafe { Call::new(GO, path) });
    let value = recorded(&mut || {
        if let Some((value, there)) = call.answer_again() {
            if value == 0 {
                go_again(there, make);
            }
            return value;
        }
        let new = is_new_change();
        if new {
            standing_in::before_new();
            freshness::looked_around();
        }
        // SAFETY: the path is a C string, as the caller promises.
        let whole = path::gone().and(path).and_then(|path| unsafe { Path::of(HERE, path) });
        let value = whole.map_or_else(|| outcome(make()), |path| kernel::go_to(path.as_c()));
        if value == 0 {
            path::set_gone(None);
        }
        if new {
            let there = now().filter(|_| value == 0).unwrap_or(Path::NONE);
            call.write_answer(value, there.as_bytes());
        }
        value
    });
    value.map_or_else(make, |value| value as c_int)
}

/// Goes to the directory to which the rank is known to have gone; empty: that one is unknown.
fn go_again(there: &[u8], make: &dyn Fn() -> c_int) {
    let was_gone = path::gone().is_some();
    path::set_gone(None);
    if !was_gone
        && make() == 0
        && (there.is_empty() || now().is_some_and(|p| p.as_bytes() == there))
    {
        return;
    }
    let Some(path) = Path::NONE.below(there).filter(|_| !there.is_empty()) else { return };
    if kernel::go_to(path.as_c()) != 0 {
        kernel::go_to(NOWHERE);
        path::set_gone(Some(path));
    }
}

/// # Safety
/// As chdir(2).
#[export_name = "chdir"]
pub unsafe extern "C-unwind" fn our_chdir(path: Name) -> c_int {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    let make = || unsafe { chdir.get()(path) };
    if path.is_null() {
        make()
    } else {
        goes(Some(path), &make)
    }
}

/// # Safety
/// As fchdir(2).
#[export_name = "fchdir"]
pub unsafe extern "C-unwind" fn our_fchdir(fd: c_int) -> c_int {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    goes(None, &|| unsafe { fchdir.get()(fd) })
}

/// Room for a path with its NUL.
type Room = [u8; MOST];

/// Asks for a path of so many bytes with its NUL; `None` in a thread whose calls are not recorded.
fn asks_path(call: Call, room: &mut Room, make: &dyn Fn(*mut c_char) -> i64) -> Option<i64> {
    let to = room.as_mut_ptr();
    let made = || {
        let len = make(to.cast());
        (len, usize::try_from(len).unwrap_or(0))
    };
    // SAFETY: `room` has MOST bytes and outlives the call.
    unsafe { asked(call, (to.cast(), MOST), &made) }
}

/// Gives the program a path: in its room of so many bytes, or in memory that it frees; null with
/// errno where that is not to be had.
///
/// # Safety
/// `to` must be null or have so much room.
unsafe fn give(len: i64, room: &Room, to: *mut c_char, most: size_t) -> *mut c_char {
    // errno says why there is none: the call was recorded.
    let Ok(len) = usize::try_from(len) else { return std::ptr::null_mut() };
    if most > 0 && len > most {
        or_errno(-i64::from(libc::ERANGE));
        return std::ptr::null_mut();
    }
    // SAFETY: handed on to the caller; malloc(3) gives what is asked for, or null.
    unsafe {
        let to = if to.is_null() { libc::malloc(len.max(most)).cast() } else { to };
        if !to.is_null() {
            to.cast::<u8>().copy_from_nonoverlapping(room.as_ptr(), len);
        }
        to
    }
}

/// Where the rank is.
///
/// # Safety
/// As [`give`].
unsafe fn asks_working_directory(
    to: *mut c_char,
    most: size_t,
    make: &dyn Fn() -> *mut c_char,
) -> *mut c_char {
    let mut room = [0; MOST];
    let asked = asks_path(Call::on_open(WHERE), &mut room, &|to| {
        // SAFETY: `asks_path` passes a room of MOST bytes that nothing else uses meanwhile.
        kernel::working_directory(unsafe { std::slice::from_raw_parts_mut(to.cast(), MOST) })
    });
    // SAFETY: the caller keeps this contract, which is that of the function called.
    asked.map_or_else(make, |len| unsafe { give(len, &room, to, most) })
}

/// # Safety
/// As getcwd(3).
#[export_name = "getcwd"]
pub unsafe extern "C-unwind" fn our_getcwd(to: *mut c_char, most: size_t) -> *mut c_char {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    unsafe {
        let make = || getcwd.get()(to, most);
        if !to.is_null() && most == 0 {
            make()
        } else {
            asks_working_directory(to, most, &make)
        }
    }
}

/// getcwd(3) as programs call it that are compiled with _FORTIFY_SOURCE.
///
/// # Safety
/// As getcwd(3).
#[export_name = "__getcwd_chk"]
pub unsafe extern "C-unwind" fn our_getcwd_chk(
    to: *mut c_char,
    most: size_t,
    room: size_t,
) -> *mut c_char {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    unsafe {
        if most > room {
            __getcwd_chk.get()(to, most, room)
        } else {
            our_getcwd(to, most)
        }
    }
}

/// # Safety
/// As getwd(3).
#[export_name = "getwd"]
pub unsafe extern "C-unwind" fn our_getwd(to: *mut c_char) -> *mut c_char {
    // SAFETY: handed on to the caller, who has room for any path.
    unsafe { asks_working_directory(to, MOST, &|| getwd.get()(to)) }
}

/// # Safety
/// As get_current_dir_name(3). What $PWD says is not looked at where the kernel's word is recorded.
#[export_name = "get_current_dir_name"]
pub unsafe extern "C-unwind" fn our_get_current_dir_name() -> *mut c_char {
    // SAFETY: there is no room of the program's.
    unsafe { asks_working_directory(std::ptr::null_mut(), 0, &|| get_current_dir_name.get()()) }
}

/// The path of a file without links.
///
/// # Safety
/// As realpath(3).
unsafe fn resolves(path: Name, to: *mut c_char, make: &dyn Fn() -> *mut c_char) -> *mut c_char {
    // SAFETY: the caller passes a C string, as its contract says.
    if path.is_null() || is_of_the_kernel(unsafe { CStr::from_ptr(path) }) {
        return make();
    }
    let mut room = [0; MOST];
    // SAFETY: a C string; a room for any path.
    let asked = asks_path(unsafe { Call::new(REAL, path) }, &mut room, &|to| unsafe {
        if realpath.get()(path, to).is_null() {
            -i64::from(kernel::errno())
        } else {
            CStr::from_ptr(to).to_bytes_with_nul().len() as i64
        }
    });
    // SAFETY: the caller keeps this contract, which is that of the function called.
    asked.map_or_else(make, |len| unsafe { give(len, &room, to, 0) })
}

/// # Safety
/// As realpath(3).
#[export_name = "realpath"]
pub unsafe extern "C-unwind" fn our_realpath(path: Name, to: *mut c_char) -> *mut c_char {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    unsafe { resolves(path, to, &|| realpath.get()(path, to)) }
}

/// realpath(3) as programs call it that are compiled with _FORTIFY_SOURCE.
///
/// # Safety
/// As realpath(3).
#[export_name = "__realpath_chk"]
pub unsafe extern "C-unwind" fn our_realpath_chk(
    path: Name,
    to: *mut c_char,
    room: size_t,
) -> *mut c_char {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    unsafe {
        let make = || __realpath_chk.get()(path, to, room);
        if room < MOST {
            make()
        } else {
            resolves(path, to, &make)
        }
    }
}

/// # Safety
/// As canonicalize_file_name(3).
#[export_name = "canonicalize_file_name"]
pub unsafe extern "C-unwind" fn our_canonicalize_file_name(path: Name) -> *mut c_char {
    // SAFETY: the caller keeps this contract, which is that of the function called.
    unsafe { our_realpath(path, std::ptr::null_mut()) }
}
