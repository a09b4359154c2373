//! rename(2), link(2), symlink(2), unlink(2), mkdir(2), mkfifo(3), rmdir(2), truncate(2), chmod(2)
//! and the like. A router has the record of such a call before the call is made. A rank that is
//! executed again gets its result, or finds out whether it was made.

use super::change::{free, of_call, of_call_by, Change, When, UNKNOWN};
use super::directories;
use super::keeping::{self, Change as Kept};
use super::kernel::{errno, look, look_at, read_link, Identity, HERE};
use super::path::{Path, MOST};
use super::pending;
use super::records::Call;
use super::standing_in::table;
use crate::next::next;
use libc::{c_char, c_int, c_uint, c_void, dev_t, gid_t, mode_t, off_t, timespec, timeval, uid_t};
use std::ffi::CStr;

type Name = *const c_char;

next! {
    rename: fn(Name, Name) -> c_int;
    renameat: fn(c_int, Name, c_int, Name) -> c_int;
    renameat2: fn(c_int, Name, c_int, Name, c_uint) -> c_int;
    link: fn(Name, Name) -> c_int;
    linkat: fn(c_int, Name, c_int, Name, c_int) -> c_int;
    symlink: fn(Name, Name) -> c_int;
    symlinkat: fn(Name, c_int, Name) -> c_int;
    unlink: fn(Name) -> c_int;
    unlinkat: fn(c_int, Name, c_int) -> c_int;
    remove: fn(Name) -> c_int;
    rmdir: fn(Name) -> c_int;
    mkdir: fn(Name, mode_t) -> c_int;
    mkdirat: fn(c_int, Name, mode_t) -> c_int;
    mkfifo: fn(Name, mode_t) -> c_int;
    mkfifoat: fn(c_int, Name, mode_t) -> c_int;
    mknod: fn(Name, mode_t, dev_t) -> c_int;
    mknodat: fn(c_int, Name, mode_t, dev_t) -> c_int;
    truncate: fn(Name, off_t) -> c_int;
    truncate64: fn(Name, off_t) -> c_int;
    chmod: fn(Name, mode_t) -> c_int;
    fchmodat: fn(c_int, Name, mode_t, c_int) -> c_int;
    chown: fn(Name, uid_t, gid_t) -> c_int;
    lchown: fn(Name, uid_t, gid_t) -> c_int;
    fchownat: fn(c_int, Name, uid_t, gid_t, c_int) -> c_int;
    utime: fn(Name, *const c_void) -> c_int;
    utimes: fn(Name, *const timeval) -> c_int;
    utimensat: fn(c_int, Name, *const timespec, c_int) -> c_int;
    futimesat: fn(c_int, Name, *const timeval) -> c_int;
    lutimes: fn(Name, *const timeval) -> c_int;
}

/// The file that a name leads to, without following a last link.
fn named(dir: c_int, path: Name) -> Result<Identity, i64> {
    look(dir, path, false).map(|found| found.id)
}

/// The old state of a file that is about to be changed is kept.
fn kept((dir, path): (c_int, Name), how: Kept, when: When) {
    // SAFETY: who calls this has looked that it is a C string.
    match unsafe { Path::of(dir, path) } {
        Some(path) if when == When::Before => keeping::before(&path, how),
        Some(path) => keeping::again(&path),
        None => {}
    }
}

/// Does something with the files of two paths that stand in for others.
fn with_paths(old: (c_int, Name), new: (c_int, Name), f: impl Fn(&Path, &Path)) {
    // SAFETY: both are C strings, since the call has not failed.
    let paths = unsafe { Path::of(old.0, old.1).zip(Path::of(new.0, new.1)) };
    if let (true, Some((old, new))) = (pending::any(), paths) {
        f(&old, &new);
    }
}

fn renamed(what: u8, old: (c_int, Name), new: (c_int, Name), make: &dyn Fn() -> c_int) -> c_int {
    if old.1.is_null() || new.1.is_null() {
        return make();
    }
    let change = Change {
        // SAFETY: the path is a C string, which outlives the call.
        call: unsafe { Call::new(what, old.1) },
        before: &|| named(old.0, old.1),
        is_done: &|file| named(old.0, old.1) != Ok(file),
        // SAFETY: this call is being recorded, of which there is one at a time.
        stand_ins: &|| with_paths(old, new, |old, new| unsafe { table() }.rename(old, new)),
        keep: &|when| {
            kept(old, Kept::Name, when);
            kept(new, Kept::Name, when);
        },
    };
    let make_once = || {
        let value = make();
        let is_free_now = value < 0 && put_away_if_full(new.0, new.1, value) == 0;
        if is_free_now {
            make()
        } else {
            value
        }
    };
    of_call_by(&change, &make_once, make)
}

/// The file that link(2) with these flags gives another name.
fn source((dir, path): (c_int, Name), flags: c_int) -> Result<Identity, i64> {
    // SAFETY: the path is a C string, which outlives the call.
    let is_open = flags & libc::AT_EMPTY_PATH != 0 && unsafe { *path } == 0;
    let found =
        if is_open { look_at(dir) } else { look(dir, path, flags & libc::AT_SYMLINK_FOLLOW != 0) };
    found.map(|found| found.id)
}

fn linked(
    what: u8,
    old: (c_int, Name),
    new: (c_int, Name),
    flags: c_int,
    make: &dyn Fn() -> c_int,
) -> c_int {
    if old.1.is_null() || new.1.is_null() {
        return make();
    }
    let change = Change {
        // SAFETY: the path is a C string, which outlives the call.
        call: unsafe { Call::new(what, new.1) },
        before: &|| {
            let file = source(old, flags)?;
            free(new.0, new.1).map(|_| file)
        },
        is_done: &|file| named(new.0, new.1) == Ok(file),
        // SAFETY: this call is being recorded, of which there is one at a time.
        stand_ins: &|| with_paths(old, new, |old, new| unsafe { table() }.link(old, new)),
        keep: &|_| (),
    };
    of_call(&change, make)
}

fn symlinked(what: u8, target: Name, dir: c_int, path: Name, make: &dyn Fn() -> c_int) -> c_int {
    if target.is_null() || path.is_null() {
        return make();
    }
    let leads_there = |_| {
        let mut room = [0u8; MOST];
        let len = read_link(dir, path, &mut room);
        // SAFETY: the path is a C string, which outlives the call.
        usize::try_from(len)
            .is_ok_and(|len| room[..len] == *unsafe { CStr::from_ptr(target) }.to_bytes())
    };
    let change = Change {
        // SAFETY: the path is a C string, which outlives the call.
        call: unsafe { Call::new(what, path) },
        before: &|| free(dir, path),
        is_done: &leads_there,
        stand_ins: &|| (),
        keep: &|_| (),
    };
    of_call(&change, make)
}

fn unlinked(what: u8, dir: c_int, path: Name, make: &dyn Fn() -> c_int) -> c_int {
    if path.is_null() {
        return make();
    }
    let change = Change {
        // SAFETY: the path is a C string, which outlives the call.
        call: unsafe { Call::new(what, path) },
        before: &|| named(dir, path),
        is_done: &|file| named(dir, path) != Ok(file),
        stand_ins: &|| {
            // SAFETY: this call is being recorded, of which there is one at a time.
            with_paths((dir, path), (dir, path), |path, _| unsafe { table() }.unlink(path));
        },
        keep: &|when| kept((dir, path), Kept::Name, when),
    };
    of_call_by(&change, &|| put_away_if_full(dir, path, make()), make)
}

/// What a call gives that removes a directory: one that has old states only is put away instead.
fn put_away_if_full(dir: c_int, path: Name, value: c_int) -> c_int {
    let is_full = value < 0 && [libc::ENOTEMPTY, libc::EEXIST].contains(&errno());
    // SAFETY: a C string, as who calls this has looked.
    let path = is_full.then(|| unsafe { Path::of(dir, path) }).flatten();
    let before = errno();
    if path.is_some_and(|path| keeping::put_away(&path)) {
        return 0;
    }
    // SAFETY: errno of this thread is valid while the thread runs, and no other thread uses it.
    unsafe { *libc::__errno_location() = before };
    value
}

fn cut(what: u8, path: Name, size: off_t, make: &dyn Fn() -> c_int) -> c_int {
    if path.is_null() {
        return make();
    }
    let change = Change {
        // SAFETY: the path is a C string, which outlives the call.
        call: unsafe { Call::new(what, path) },
        before: &|| look(HERE, path, true).map(|found| found.id),
        is_done: &|_| false,
        stand_ins: &|| {
            with_paths((HERE, path), (HERE, path), |path, _| {
                // SAFETY: this call is being recorded, of which there is one at a time.
                unsafe { table() }.cut(path, size as u64);
            });
        },
        keep: &|when| kept((HERE, path), Kept::Content, when),
    };
    of_call(&change, make)
}

/// A call that may be made again, but not on another file that has got the name, or on none.
fn marked(what: u8, path: Name, make: &dyn Fn() -> c_int) -> c_int {
    if path.is_null() {
        return make();
    }
    let change = Change {
        // SAFETY: the path is a C string, which outlives the call.
        call: unsafe { Call::new(what, path) },
        before: &|| Err(UNKNOWN),
        is_done: &|_| false,
        stand_ins: &|| (),
        keep: &|_| (),
    };
    of_call(&change, make)
}

/// What mkfifo(3) makes.
fn pipe(mode: mode_t) -> directories::Kind {
    (mode & !libc::S_IFMT | libc::S_IFIFO, 0)
}

/// Functions that are like the C library's, each with what it does: ours, the one behind it, its
/// name, its arguments, a function that is given all of them and the call itself.
macro_rules! changing {
    ($($our:ident, $next:ident, $symbol:literal, ($($arg:ident: $kind:ty),*), $how:expr;)*) => {
        $(
            /// # Safety
            /// As the function of the C library.
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our($($arg: $kind),*) -> c_int {
                // SAFETY: the program keeps the contract of the C function, which gets its
                // arguments unchanged.
                let make = || unsafe { $next.get()($($arg),*) };
                let how: &dyn Fn(&dyn Fn() -> c_int) -> c_int = &$how;
                how(&make)
            }
        )*
    };
}
changing! {
    our_rename, rename, "rename", (old: Name, new: Name),
        |make| renamed(1, (HERE, old), (HERE, new), make);
    our_renameat, renameat, "renameat", (at: c_int, old: Name, to: c_int, new: Name),
        |make| renamed(2, (at, old), (to, new), make);
    our_renameat2, renameat2, "renameat2",
        (at: c_int, old: Name, to: c_int, new: Name, flags: c_uint),
        |make| renamed(3, (at, old), (to, new), make);
    our_link, link, "link", (old: Name, new: Name),
        |make| linked(4, (HERE, old), (HERE, new), 0, make);
    our_linkat, linkat, "linkat", (at: c_int, old: Name, to: c_int, new: Name, flags: c_int),
        |make| linked(5, (at, old), (to, new), flags, make);
    our_symlink, symlink, "symlink", (target: Name, path: Name),
        |make| symlinked(6, target, HERE, path, make);
    our_symlinkat, symlinkat, "symlinkat", (target: Name, at: c_int, path: Name),
        |make| symlinked(7, target, at, path, make);
    our_unlink, unlink, "unlink", (path: Name), |make| unlinked(8, HERE, path, make);
    our_unlinkat, unlinkat, "unlinkat", (at: c_int, path: Name, flags: c_int),
        |make| unlinked(9, at, path, make);
    our_remove, remove, "remove", (path: Name), |make| unlinked(10, HERE, path, make);
    our_rmdir, rmdir, "rmdir", (path: Name), |make| unlinked(11, HERE, path, make);
    our_mkdir, mkdir, "mkdir", (path: Name, mode: mode_t),
        |make| directories::made(12, HERE, path, (mode | libc::S_IFDIR, 0), make);
    our_mkdirat, mkdirat, "mkdirat", (at: c_int, path: Name, mode: mode_t),
        |make| directories::made(13, at, path, (mode | libc::S_IFDIR, 0), make);
    our_truncate, truncate, "truncate", (path: Name, size: off_t),
        |make| cut(14, path, size, make);
    our_truncate64, truncate64, "truncate64", (path: Name, size: off_t),
        |make| cut(15, path, size, make);
    our_chmod, chmod, "chmod", (path: Name, mode: mode_t), |make| marked(16, path, make);
    our_fchmodat, fchmodat, "fchmodat", (at: c_int, path: Name, mode: mode_t, flags: c_int),
        |make| marked(17, path, make);
    our_chown, chown, "chown", (path: Name, user: uid_t, group: gid_t),
        |make| marked(18, path, make);
    our_lchown, lchown, "lchown", (path: Name, user: uid_t, group: gid_t),
        |make| marked(19, path, make);
    our_fchownat, fchownat, "fchownat",
        (at: c_int, path: Name, user: uid_t, group: gid_t, flags: c_int),
        |make| marked(20, path, make);
    our_utime, utime, "utime", (path: Name, times: *const c_void), |make| marked(21, path, make);
    our_utimes, utimes, "utimes", (path: Name, times: *const timeval),
        |make| marked(22, path, make);
    our_utimensat, utimensat, "utimensat",
        (at: c_int, path: Name, times: *const timespec, flags: c_int),
        |make| marked(23, path, make);
    our_futimesat, futimesat, "futimesat", (at: c_int, path: Name, times: *const timeval),
        |make| marked(24, path, make);
    our_lutimes, lutimes, "lutimes", (path: Name, times: *const timeval),
        |make| marked(25, path, make);
    our_mkfifo, mkfifo, "mkfifo", (path: Name, mode: mode_t),
        |make| directories::made(26, HERE, path, pipe(mode), make);
    our_mkfifoat, mkfifoat, "mkfifoat", (at: c_int, path: Name, mode: mode_t),
        |make| directories::made(27, at, path, pipe(mode), make);
    our_mknod, mknod, "mknod", (path: Name, mode: mode_t, device: dev_t),
        |make| directories::made(28, HERE, path, (mode, device), make);
    our_mknodat, mknodat, "mknodat", (at: c_int, path: Name, mode: mode_t, device: dev_t),
        |make| directories::made(29, at, path, (mode, device), make);
}
