//! stat(2), access(2), readlink(2) and the like. A rank that is executed again gets the known
//! answers about files that have changed since the job began, and about names that led to no file.
//! About other files the calls give the same answer again.

use super::calling::{outcome, recorded};
use super::freshness;
use super::keeping;
use super::kernel::{self, ns, HERE};
use super::path::Path;
use super::records::{is_new_change, Call};
use super::saying;
use super::standing_in;
use crate::job_start::changed_in_job;
use crate::next::next;
use crate::own_number;
use libc::{c_char, c_int, c_uint, c_void, size_t, ssize_t};
use std::ffi::CStr;

type Name = *const c_char;

next! {
    stat: fn(Name, *mut c_void) -> c_int;
    stat64: fn(Name, *mut c_void) -> c_int;
    lstat: fn(Name, *mut c_void) -> c_int;
    lstat64: fn(Name, *mut c_void) -> c_int;
    fstatat: fn(c_int, Name, *mut c_void, c_int) -> c_int;
    fstatat64: fn(c_int, Name, *mut c_void, c_int) -> c_int;
    fstat: fn(c_int, *mut c_void) -> c_int;
    fstat64: fn(c_int, *mut c_void) -> c_int;
    __xstat: fn(c_int, Name, *mut c_void) -> c_int;
    __xstat64: fn(c_int, Name, *mut c_void) -> c_int;
    __lxstat: fn(c_int, Name, *mut c_void) -> c_int;
    __lxstat64: fn(c_int, Name, *mut c_void) -> c_int;
    __fxstat: fn(c_int, c_int, *mut c_void) -> c_int;
    __fxstat64: fn(c_int, c_int, *mut c_void) -> c_int;
    __fxstatat: fn(c_int, c_int, Name, *mut c_void, c_int) -> c_int;
    __fxstatat64: fn(c_int, c_int, Name, *mut c_void, c_int) -> c_int;
    statx: fn(c_int, Name, c_int, c_uint, *mut c_void) -> c_int;
    access: fn(Name, c_int) -> c_int;
    faccessat: fn(c_int, Name, c_int, c_int) -> c_int;
    euidaccess: fn(Name, c_int) -> c_int;
    eaccess: fn(Name, c_int) -> c_int;
    readlink: fn(Name, *mut c_char, size_t) -> ssize_t;
    readlinkat: fn(c_int, Name, *mut c_char, size_t) -> ssize_t;
}

/// Numbers of the functions, in what is recorded.
pub(super) const STAT: u8 = 87;
pub(super) const STATX: u8 = 88;
const ACCESS: u8 = 89;
const READLINK: u8 = 90;

/// What is said of a file: where it is put, and what of it depends on.
#[derive(Clone, Copy)]
enum Said {
    Stat(*mut libc::stat),
    Statx(*mut libc::statx),
}

impl Said {
    fn what(self) -> u8 {
        match self {
            Said::Stat(_) => STAT,
            Said::Statx(_) => STATX,
        }
    }

    /// When it was changed, in nanoseconds, its number, and its kind.
    ///
    /// # Safety
    /// It has been put there.
    unsafe fn of(self) -> (i64, (u64, u64), u32) {
        // SAFETY: the caller promises that the structure is filled.
        let (changed_ns, number, mode) = unsafe {
            match self {
                Said::Stat(st) => {
                    let changed_ns = ns((*st).st_ctime, (*st).st_ctime_nsec);
                    (changed_ns, ((*st).st_dev, (*st).st_ino), (*st).st_mode)
                }
                Said::Statx(st) => {
                    let device = libc::makedev((*st).stx_dev_major, (*st).stx_dev_minor);
                    let changed_ns = ns((*st).stx_ctime.tv_sec, (*st).stx_ctime.tv_nsec.into());
                    (changed_ns, (device, (*st).stx_ino), (*st).stx_mode.into())
                }
            }
        };
        (changed_ns, number, mode & libc::S_IFMT)
    }

    /// Its bytes.
    ///
    /// # Safety
    /// The program has room for it there.
    unsafe fn bytes(self) -> &'static mut [u8] {
        // SAFETY: the caller keeps this contract, which is that of the function called.
        unsafe {
            match self {
                Said::Stat(st) => {
                    std::slice::from_raw_parts_mut(st.cast(), size_of::<libc::stat>())
                }
                Said::Statx(st) => {
                    std::slice::from_raw_parts_mut(st.cast(), size_of::<libc::statx>())
                }
            }
        }
    }
}

/// Whether what a path leads to is the kernel's own, of which nothing is recorded.
pub(super) fn is_of_the_kernel(path: &CStr) -> bool {
    [&b"/proc/"[..], b"/sys/", b"/dev/"].iter().any(|front| path.to_bytes().starts_with(front))
}

/// What is looked at.
#[derive(Clone, Copy)]
enum Where {
    /// What a path leads to, from a directory.
    Path(c_int, Name),
    Open(c_int),
}

impl Where {
    /// Whether something of this kind is looked after: a file, a directory, a link; or what a path
    /// has led to and is no device.
    fn is_kept(self, kind: u32) -> bool {
        let is_file = [libc::S_IFREG, libc::S_IFDIR, libc::S_IFLNK].contains(&kind);
        let is_named = matches!(self, Where::Path(..));
        is_file || is_named && [libc::S_IFIFO, libc::S_IFSOCK].contains(&kind)
    }

    /// Whether the job may have changed it, which was changed at this time and is on this device.
    fn in_job(self, changed_ns: i64, device: u64) -> bool {
        changed_in_job(changed_ns, || match self {
            Where::Path(dir, path) => kernel::has_fine_times(dir, path, true, device),
            Where::Open(fd) => kernel::keeps_nanoseconds(fd),
        })
    }

    fn path(self) -> Option<Path> {
        match self {
            // SAFETY: a C string, as who made this has looked.
            Where::Path(dir, path) => unsafe { Path::of(dir, path) },
            Where::Open(fd) => Path::of_link(kernel::link_of(fd, &mut [0; 32])),
        }
    }
}

/// Looks at a file; `make` is given another path than its own where that is meant.
fn looks(
    call: Call,
    file: Where,
    said: Said,
    make: &dyn Fn(Option<&CStr>) -> c_int,
) -> Option<c_int> {
    // SAFETY: the program has room for it there, or the call fails.
    let bytes = || unsafe { said.bytes() };
    let value = recorded(&mut || {
        if call.done_again() {
            return said_again(file, said, make);
        }
        let replayed = call.content_again(&mut |at, part| {
            bytes()[at..at + part.len()].copy_from_slice(part);
        });
        if let Some(n) = replayed {
            // What was zero at its end was left out.
            if let Ok(n) = usize::try_from(n) {
                bytes()[n..].fill(0);
            }
            return n.min(0);
        }
        if !is_new_change() {
            return outcome(make(None));
        }
        standing_in::before_new();
        let value = outcome(make(None));
        if value < 0 {
            freshness::looked_around();
            call.write_content(value, &mut |_, _| &[]);
            return value;
        }
        // SAFETY: the call has succeeded, so the kernel has filled the structure.
        let (changed_ns, number, kind) = unsafe { said.of() };
        freshness::looked(number);
        if file.is_kept(kind) && file.in_job(changed_ns, number.0) {
            let len = bytes().iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            call.write_content(len as i64, &mut |at, most| &bytes()[at..at + most]);
        } else {
            call.write_done()
        }
        value
    });
    value.map(|value| value as c_int)
}

/// It was said of a file that the job had not changed then.
fn said_again(file: Where, said: Said, make: &dyn Fn(Option<&CStr>) -> c_int) -> i64 {
    let value = outcome(make(None));
    // SAFETY: the call has succeeded, so the kernel has filled the structure.
    let (changed_ns, (device, _), kind) = unsafe { said.of() };
    let is_same = value >= 0 && (!file.is_kept(kind) || !file.in_job(changed_ns, device));
    if is_same {
        return value;
    }
    let path = file.path();
    match path.and_then(|path| keeping::of(&path)) {
        Some(old) => outcome(make(Some(old.as_c()))),
        None => {
            let is_file = |path: &Path| {
                (value < 0 || kind == libc::S_IFREG) && !keeping::is_old_state(path.name())
            };
            if let Some(path) = path.filter(is_file) {
                saying::changed_since(path.as_bytes());
            }
            value
        }
    }
}

/// The same of a path.
fn looks_at((dir, path): (c_int, Name), said: Said, make: &dyn Fn(c_int, Name) -> c_int) -> c_int {
    let plain = |other: Option<&CStr>| match other {
        Some(other) => make(HERE, other.as_ptr()),
        None => make(dir, path),
    };
    let is_null = match said {
        Said::Stat(st) => st.is_null(),
        Said::Statx(st) => st.is_null(),
    };
    // SAFETY: the caller passes a C string, or null where that was excluded above.
    let counts = !path.is_null() && !is_null && !is_of_the_kernel(unsafe { CStr::from_ptr(path) });
    if !counts {
        return plain(None);
    }
    // SAFETY: a C string; without a name it is an open file.
    let (call, file) = unsafe {
        match *path {
            0 => (Call::on_open(said.what()), Where::Open(dir)),
            _ => (Call::new(said.what(), path), Where::Path(dir, path)),
        }
    };
    looks(call, file, said, &plain).unwrap_or_else(|| plain(None))
}

/// The same of an open file.
///
/// # Safety
/// `to` must be null or have room for a `struct stat`.
pub(super) unsafe fn looks_at_stream(
    fd: c_int,
    to: *mut c_void,
    make: &dyn Fn() -> c_int,
) -> c_int {
    looks_at_open(fd, to, make)
}

fn looks_at_open(fd: c_int, to: *mut c_void, make: &dyn Fn() -> c_int) -> c_int {
    let plain = |other: Option<&CStr>| match other {
        Some(other) => kernel::stat(other, to) as c_int,
        None => make(),
    };
    if to.is_null() {
        return make();
    }
    let call = Call::on_open(STAT);
    let said = Said::Stat(to.cast());
    looks(call, Where::Open(fd), said, &plain).unwrap_or_else(make)
}

/// Whether a file can be read, or whatever is asked: a number.
fn asks(path: Name, make: &dyn Fn() -> c_int) -> c_int {
    // SAFETY: the caller passes a C string, or null where that was excluded above.
    if path.is_null() || is_of_the_kernel(unsafe { CStr::from_ptr(path) }) {
        return make();
    }
    // SAFETY: the path is a C string, which outlives the call.
    let call = unsafe { Call::new(ACCESS, path) };
    let value = recorded(&mut || {
        if let Some(value) = call.result_again() {
            return value;
        }
        if !is_new_change() {
            return outcome(make());
        }
        standing_in::before_new();
        freshness::looked_around();
        call.write_result(outcome(make()))
    });
    value.map_or_else(make, |value| value as c_int)
}

/// Where a link leads.
fn reads_link(path: Name, to: *mut c_char, len: size_t, make: &dyn Fn() -> ssize_t) -> ssize_t {
    // SAFETY: the caller passes a C string, or null where that was excluded above.
    if path.is_null() || to.is_null() || is_of_the_kernel(unsafe { CStr::from_ptr(path) }) {
        return make();
    }
    // SAFETY: a C string, and as much room as the program says.
    let (call, room) = unsafe {
        (Call::new(READLINK, path), std::slice::from_raw_parts_mut(to.cast::<u8>(), len))
    };
    let value = recorded(&mut || {
        let replayed = call.content_again(&mut |at, part| {
            if let Some(room) = room.get_mut(at..at + part.len()) {
                room.copy_from_slice(part);
            }
        });
        if let Some(n) = replayed {
            return n;
        }
        let value = outcome(make() as i64);
        if is_new_change() {
            standing_in::before_new();
            freshness::looked_around();
            // SAFETY: so many bytes were put there.
            call.write_content(value, &mut |at, most| unsafe {
                std::slice::from_raw_parts(to.cast::<u8>().add(at), most)
            });
        }
        value
    });
    value.map_or_else(make, |value| value as ssize_t)
}

/// Functions that look at a path: ours, the one behind it, its name, its arguments before the path
/// and behind it, the directory, where it is put.
macro_rules! looking {
    ($($our:ident, $next:ident, $symbol:literal, ($($arg:ident: $kind:ty),*),
        ($dir:expr, $path:ident), $said:expr, |$at:ident, $name:ident| ($($again:expr),*);)*) => {
        $(
            /// # Safety
            /// As the function of the C library.
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our($($arg: $kind),*) -> c_int {
                // SAFETY: the program keeps the contract of the C function, which gets its
                // arguments unchanged.
                let make = |$at: c_int, $name: Name| unsafe { $next.get()($($again),*) };
                looks_at(($dir, $path), $said, &make)
            }
        )*
    };
}
looking! {
    our_stat, stat, "stat", (path: Name, to: *mut c_void),
        (HERE, path), Said::Stat(to.cast()), |_at, name| (name, to);
    our_stat64, stat64, "stat64", (path: Name, to: *mut c_void),
        (HERE, path), Said::Stat(to.cast()), |_at, name| (name, to);
    our_lstat, lstat, "lstat", (path: Name, to: *mut c_void),
        (HERE, path), Said::Stat(to.cast()), |_at, name| (name, to);
    our_lstat64, lstat64, "lstat64", (path: Name, to: *mut c_void),
        (HERE, path), Said::Stat(to.cast()), |_at, name| (name, to);
    our_fstatat, fstatat, "fstatat", (dir: c_int, path: Name, to: *mut c_void, how: c_int),
        (dir, path), Said::Stat(to.cast()), |at, name| (at, name, to, how);
    our_fstatat64, fstatat64, "fstatat64", (dir: c_int, path: Name, to: *mut c_void, how: c_int),
        (dir, path), Said::Stat(to.cast()), |at, name| (at, name, to, how);
    our_xstat, __xstat, "__xstat", (version: c_int, path: Name, to: *mut c_void),
        (HERE, path), Said::Stat(to.cast()), |_at, name| (version, name, to);
    our_xstat64, __xstat64, "__xstat64", (version: c_int, path: Name, to: *mut c_void),
        (HERE, path), Said::Stat(to.cast()), |_at, name| (version, name, to);
    our_lxstat, __lxstat, "__lxstat", (version: c_int, path: Name, to: *mut c_void),
        (HERE, path), Said::Stat(to.cast()), |_at, name| (version, name, to);
    our_lxstat64, __lxstat64, "__lxstat64", (version: c_int, path: Name, to: *mut c_void),
        (HERE, path), Said::Stat(to.cast()), |_at, name| (version, name, to);
    our_fxstatat, __fxstatat, "__fxstatat",
        (version: c_int, dir: c_int, path: Name, to: *mut c_void, how: c_int),
        (dir, path), Said::Stat(to.cast()), |at, name| (version, at, name, to, how);
    our_fxstatat64, __fxstatat64, "__fxstatat64",
        (version: c_int, dir: c_int, path: Name, to: *mut c_void, how: c_int),
        (dir, path), Said::Stat(to.cast()), |at, name| (version, at, name, to, how);
    our_statx, statx, "statx", (dir: c_int, path: Name, how: c_int, mask: c_uint, to: *mut c_void),
        (dir, path), Said::Statx(to.cast()), |at, name| (at, name, how, mask, to);
}

/// Functions that look at an open file: ours, the one behind it, its name, its arguments.
macro_rules! looking_at_open {
    ($($our:ident, $next:ident, $symbol:literal, ($($arg:ident: $kind:ty),*);)*) => {
        $(
            /// # Safety
            /// As the function of the C library.
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our($($arg: $kind,)* fd: c_int, to: *mut c_void) -> c_int {
                // SAFETY: the program keeps the contract of the C function, which gets its
                // arguments unchanged.
                looks_at_open(fd, to, &|| unsafe { $next.get()($($arg,)* fd, to) })
            }
        )*
    };
}
looking_at_open! {
    our_fstat, fstat, "fstat", ();
    our_fstat64, fstat64, "fstat64", ();
    our_fxstat, __fxstat, "__fxstat", (version: c_int);
    our_fxstat64, __fxstat64, "__fxstat64", (version: c_int);
}

/// # Safety
/// As access(2).
#[export_name = "access"]
pub unsafe extern "C-unwind" fn our_access(path: Name, how: c_int) -> c_int {
    let mut room = own_number::NO_PATH;
    // SAFETY: the caller keeps this contract, which is that of the function called.
    let path = unsafe { own_number::path(path, &mut room) };
    // SAFETY: `own_number::path` returns a C string.
    asks(path, &|| unsafe { access.get()(path, how) })
}

/// # Safety
/// As faccessat(2).
#[export_name = "faccessat"]
pub unsafe extern "C-unwind" fn our_faccessat(
    dir: c_int,
    path: Name,
    how: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    asks(path, &|| unsafe { faccessat.get()(dir, path, how, flags) })
}

/// # Safety
/// As euidaccess(3).
#[export_name = "euidaccess"]
pub unsafe extern "C-unwind" fn our_euidaccess(path: Name, how: c_int) -> c_int {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    asks(path, &|| unsafe { euidaccess.get()(path, how) })
}

/// # Safety
/// As eaccess(3).
#[export_name = "eaccess"]
pub unsafe extern "C-unwind" fn our_eaccess(path: Name, how: c_int) -> c_int {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    asks(path, &|| unsafe { eaccess.get()(path, how) })
}

/// # Safety
/// As readlink(2).
#[export_name = "readlink"]
pub unsafe extern "C-unwind" fn our_readlink(path: Name, to: *mut c_char, len: size_t) -> ssize_t {
    let mut room = own_number::NO_PATH;
    // SAFETY: the caller keeps this contract, which is that of the function called.
    let path = unsafe { own_number::path(path, &mut room) };
    // SAFETY: `own_number::path` returns a C string; the caller passes room for `len` bytes.
    reads_link(path, to, len, &|| unsafe { readlink.get()(path, to, len) })
}

/// # Safety
/// As readlinkat(2).
#[export_name = "readlinkat"]
pub unsafe extern "C-unwind" fn our_readlinkat(
    dir: c_int,
    path: Name,
    to: *mut c_char,
    len: size_t,
) -> ssize_t {
    // SAFETY: the program keeps the contract of the C function, which gets its arguments unchanged.
    reads_link(path, to, len, &|| unsafe { readlinkat.get()(dir, path, to, len) })
}
