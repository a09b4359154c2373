//! opendir(3), readdir(3), getdents64(2) and the like: a rank that is executed again finds the same
//! names in the same order. All of them are recorded, because a directory may get others while the
//! job runs. What Eyrie keeps beside files must never be among them.

use super::asking::{asked_beside, counts};
use super::calling::{outcome, recorded};
use super::directories;
use super::freshness;
use super::keeping;
use super::kernel;
use super::records::{is_new_change, Call};
use super::standing_in;
use crate::next::next;
use crate::own_number;
use libc::{c_char, c_int, c_void, dirent64, size_t, ssize_t};
use std::cell::UnsafeCell;
use std::ffi::CStr;

type Name = *const c_char;
/// DIR of the C library.
type Dir = *mut c_void;

next! {
    opendir: fn(Name) -> Dir;
    fdopendir: fn(c_int) -> Dir;
    readdir: fn(Dir) -> *mut dirent64;
    readdir64: fn(Dir) -> *mut dirent64;
    closedir: fn(Dir) -> c_int;
    readdir_r: fn(Dir, *mut dirent64, *mut *mut dirent64) -> c_int;
    readdir64_r: fn(Dir, *mut dirent64, *mut *mut dirent64) -> c_int;
    getdents64: fn(c_int, *mut c_void, size_t) -> ssize_t;
}

/// Numbers of the functions, in what is recorded.
const OPEN: u8 = 91;
const NEXT: u8 = 92;
const SEVERAL: u8 = 115;
/// Directories that can be listed at a time; more of them are not recorded.
const MOST: usize = 16;

/// What was read of a directory that is open.
#[derive(Clone, Copy)]
struct Listing {
    dir: Dir,
    entry: dirent64,
}

struct Listings(UnsafeCell<[Listing; MOST]>);

// SAFETY: used in calls that are being recorded, of which there is one at a time.
unsafe impl Sync for Listings {}

static LISTINGS: Listings = Listings(UnsafeCell::new(
    [Listing {
        dir: std::ptr::null_mut(),
        // SAFETY: all zero is a valid structure.
        entry: unsafe { std::mem::zeroed() },
    }; MOST],
));

fn listings() -> &'static mut [Listing; MOST] {
    // SAFETY: all of this module that uses it runs in calls that are recorded.
    unsafe { &mut *LISTINGS.0.get() }
}

fn note(dir: Dir) {
    if let Some(free) = listings().iter_mut().find(|listing| listing.dir.is_null()) {
        free.dir = dir;
    }
}

/// A DIR, or a negative errno.
fn pointer(dir: Dir) -> i64 {
    if dir.is_null() {
        -i64::from(kernel::errno())
    } else {
        dir as i64
    }
}

/// Opens a directory.
fn opens(path: Name, make: &dyn Fn() -> Dir) -> Dir {
    if path.is_null() {
        return make();
    }
    // SAFETY: the path is a C string, which outlives the call.
    let call = unsafe { Call::new(OPEN, path) };
    let value = recorded(&mut || {
        let replayed = call.result_again();
        if let Some(error) = replayed.filter(|error| *error < 0) {
            return error;
        }
        let mut value = pointer(make());
        if replayed.is_none() {
            if is_new_change() {
                standing_in::before_new();
                freshness::looked_around();
                call.write_result(value.min(0));
            }
        } else if value < 0 {
            // It is not there any more: its names are replayed all the same.
            // SAFETY: the literal ends in a NUL.
            value = pointer(unsafe { opendir.get()(c"/".as_ptr()) });
        }
        if value > 0 {
            note(value as Dir);
        }
        value
    });
    match value {
        Some(value) if value < 0 => std::ptr::null_mut(),
        Some(value) => value as Dir,
        None => make(),
    }
}

/// The next name in a directory.
fn lists(dir: Dir, make: &dyn Fn() -> *mut dirent64) -> *mut dirent64 {
    let mut counts = false;
    let value = recorded(&mut || {
        let Some(listing) = listings().iter_mut().find(|listing| listing.dir == dir) else {
            return 0;
        };
        counts = true;
        let call = Call::on_open(NEXT);
        next_of(call, listing, make)
    });
    match value.filter(|_| counts) {
        Some(value) if value <= 0 => std::ptr::null_mut(),
        Some(value) => value as *mut dirent64,
        None => make(),
    }
}

fn next_of(call: Call, listing: &mut Listing, make: &dyn Fn() -> *mut dirent64) -> i64 {
    let entry = &raw mut listing.entry;
    // SAFETY: the entry is a field of `listing`, which outlives the closure. Only one such slice
    // exists at a time.
    let bytes =
        || unsafe { std::slice::from_raw_parts_mut(entry.cast::<u8>(), size_of::<dirent64>()) };
    let replayed = call.content_again(&mut |at, part| {
        if let Some(to) = bytes().get_mut(at..at + part.len()) {
            to.copy_from_slice(part);
        }
    });
    // The directory itself goes on, too, for what is new behind what is replayed.
    // SAFETY: this thread's own; the end is told from an error by it.
    unsafe { *libc::__errno_location() = 0 };
    let found = make();
    if let Some(n) = replayed {
        return if n > 0 { entry as i64 } else { n };
    }
    let value = if found.is_null() {
        -i64::from(kernel::errno())
    } else {
        // SAFETY: what readdir(3) has given; a record is as long as it says, at most.
        unsafe {
            let len = usize::from((*found).d_reclen).min(size_of::<dirent64>());
            bytes()[..len].copy_from_slice(std::slice::from_raw_parts(found.cast::<u8>(), len));
            len as i64
        }
    };
    if is_new_change() {
        standing_in::before_new();
        freshness::looked_around();
        // A directory that is as it was before the job may get other names yet.
        call.write_content(value, &mut |at, most| &bytes()[at..at + most]);
    }
    if value > 0 {
        entry as i64
    } else {
        value
    }
}

/// The next name that is none of ours, which no program is to find.
fn without_ours(next: &dyn Fn() -> *mut dirent64) -> *mut dirent64 {
    loop {
        let entry = next();
        // SAFETY: readdir(3) has given the entry, whose name ends in a NUL.
        let is_ours = !entry.is_null()
            && names_of_ours(unsafe { CStr::from_ptr((*entry).d_name.as_ptr()) }.to_bytes());
        if !is_ours {
            return entry;
        }
    }
}

fn names_of_ours(name: &[u8]) -> bool {
    keeping::is_old_state(name) || directories::is_nameless(name)
}

/// # Safety
/// As opendir(3).
#[export_name = "opendir"]
pub unsafe extern "C-unwind" fn our_opendir(path: Name) -> Dir {
    let mut room = own_number::NO_PATH;
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    unsafe {
        let path = own_number::path(path, &mut room);
        if path.is_null() || super::looking::is_of_the_kernel(std::ffi::CStr::from_ptr(path)) {
            return opendir.get()(path);
        }
        opens(path, &|| opendir.get()(path))
    }
}

/// # Safety
/// As fdopendir(3).
#[export_name = "fdopendir"]
pub unsafe extern "C-unwind" fn our_fdopendir(fd: c_int) -> Dir {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    let dir = unsafe { fdopendir.get()(fd) };
    if !dir.is_null() {
        recorded(&mut || {
            note(dir);
            0
        });
    }
    dir
}

/// # Safety
/// As readdir(3).
#[export_name = "readdir"]
pub unsafe extern "C-unwind" fn our_readdir(dir: Dir) -> *mut dirent64 {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    lists(dir, &|| without_ours(&|| unsafe { readdir.get()(dir) }))
}

/// # Safety
/// As readdir(3).
#[export_name = "readdir64"]
pub unsafe extern "C-unwind" fn our_readdir64(dir: Dir) -> *mut dirent64 {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    lists(dir, &|| without_ours(&|| unsafe { readdir64.get()(dir) }))
}

/// # Safety
/// As closedir(3).
#[export_name = "closedir"]
pub unsafe extern "C-unwind" fn our_closedir(dir: Dir) -> c_int {
    recorded(&mut || {
        if let Some(listing) = listings().iter_mut().find(|listing| listing.dir == dir) {
            listing.dir = std::ptr::null_mut();
        }
        0
    });
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    unsafe { closedir.get()(dir) }
}

/// Functions like readdir_r(3): ours, the one behind it, its name.
macro_rules! listing_to {
    ($($our:ident, $next:ident, $symbol:literal;)*) => {
        $(
            /// # Safety
            /// As readdir_r(3).
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our(
                dir: Dir,
                to: *mut dirent64,
                found: *mut *mut dirent64,
            ) -> c_int {
                // SAFETY: the program keeps the contract of the C function, which gets its
                // arguments unchanged.
                unsafe {
                    if counts() {
                        lists_to(dir, to, found)
                    } else {
                        $next.get()(dir, to, found)
                    }
                }
            }
        )*
    };
}
listing_to! {
    our_readdir_r, readdir_r, "readdir_r";
    our_readdir64_r, readdir64_r, "readdir64_r";
}

/// # Safety
/// As readdir_r(3).
unsafe fn lists_to(dir: Dir, to: *mut dirent64, found: *mut *mut dirent64) -> c_int {
    let before = kernel::errno();
    // SAFETY: handed on to the caller; an entry is as long as it says. The end is told from an
    // error by errno, which is this thread's own.
    unsafe {
        *libc::__errno_location() = 0;
        let entry = our_readdir64(dir);
        let error = kernel::errno();
        *libc::__errno_location() = before;
        *found = if entry.is_null() { entry } else { to };
        if let Some(entry) = entry.as_ref() {
            let len = usize::from(entry.d_reclen).min(size_of::<dirent64>());
            to.cast::<u8>().copy_from_nonoverlapping((&raw const *entry).cast(), len);
            return 0;
        }
        error
    }
}

/// # Safety
/// As getdents64(2).
#[export_name = "getdents64"]
pub unsafe extern "C-unwind" fn our_getdents64(
    fd: c_int,
    to: *mut c_void,
    room: size_t,
) -> ssize_t {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    let next = || unsafe { getdents64.get()(fd, to, room) };
    let made = || {
        let n = outcome(next() as i64);
        (n, usize::try_from(n).unwrap_or(0))
    };
    // The directory goes on, too, for what is new behind what is replayed.
    let goes_on = || {
        made();
    };
    // SAFETY: the caller keeps this contract, which is that of the function called.
    let replayed = unsafe { asked_beside(Call::on_open(SEVERAL), (to, room), &made, &goes_on) };
    replayed.map_or_else(next, |n| n as ssize_t)
}
