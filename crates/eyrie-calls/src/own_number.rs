//! Paths and calls that name this process by the number that getpid(2) gives, or the calling thread
//! by the one that the C library remembers: those of the rank's first process, which the kernel
//! knows no more, or knows another process or thread by.

use crate::next::next;
use crate::process::{is_own, meant};
use libc::{c_char, c_int, c_void, pid_t, pthread_t, size_t};
use std::ffi::CStr;

next! {
    pthread_getaffinity_np: fn(pthread_t, size_t, *mut c_void) -> c_int;
    pthread_setaffinity_np: fn(pthread_t, size_t, *const c_void) -> c_int;
}

/// Room for a path.
pub type Room = [u8; 128];
pub const NO_PATH: Room = [0; 128];

/// What is below the directory of this process in /proc, if the path leads there.
fn below(path: &[u8]) -> Option<&[u8]> {
    let rest = path.strip_prefix(b"/proc/")?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
    let rest = &rest[digits..];
    (is_own(number) && rest.first().is_none_or(|byte| *byte == b'/')).then_some(rest)
}

/// A path that is right in each process of the rank: in all of them the same, since it stays on the
/// program's stack.
///
/// # Safety
/// `path` must be null or a C string.
pub unsafe fn path(path: *const c_char, room: &mut Room) -> *const c_char {
    const SELF: &[u8] = b"/proc/self";
    if path.is_null() {
        return path;
    }
    // SAFETY: by the contract of this function, `path` is null or a C string.
    let Some(rest) = below(unsafe { CStr::from_ptr(path) }.to_bytes()) else { return path };
    let len = SELF.len() + rest.len();
    if len >= room.len() {
        return path;
    }
    room[..SELF.len()].copy_from_slice(SELF);
    room[SELF.len()..len].copy_from_slice(rest);
    room.as_ptr().cast()
}

/// # Safety
/// As sched_getaffinity(2).
#[export_name = "sched_getaffinity"]
pub unsafe extern "C-unwind" fn our_sched_getaffinity(
    pid: pid_t,
    len: size_t,
    mask: *mut c_void,
) -> c_int {
    // SAFETY: handed on to the caller. The kernel says how many bytes it has written.
    unsafe {
        let written = libc::syscall(libc::SYS_sched_getaffinity, meant(pid), len, mask);
        let Ok(written) = usize::try_from(written) else { return -1 };
        mask.byte_add(written).write_bytes(0, len - written);
        0
    }
}

/// # Safety
/// As sched_setaffinity(2).
#[export_name = "sched_setaffinity"]
pub unsafe extern "C-unwind" fn our_sched_setaffinity(
    pid: pid_t,
    len: size_t,
    mask: *const c_void,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function, which gets the same arguments.
    unsafe { libc::syscall(libc::SYS_sched_setaffinity, meant(pid), len, mask) as c_int }
}

/// As the C library gives a result of sched_getaffinity(2) and its like to callers of
/// pthread_getaffinity_np(3): the error itself.
fn error_of(result: c_int) -> c_int {
    if result == 0 {
        return 0;
    }
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)
}

fn is_calling(thread: pthread_t) -> bool {
    // SAFETY: pthread_self(3) takes no argument and always succeeds.
    thread == unsafe { libc::pthread_self() }
}

/// The C library asks for a thread by the number that it remembers, which the first thread of a
/// restored process no longer has.
///
/// # Safety
/// As pthread_getaffinity_np(3).
#[export_name = "pthread_getaffinity_np"]
pub unsafe extern "C-unwind" fn our_pthread_getaffinity_np(
    thread: pthread_t,
    len: size_t,
    mask: *mut c_void,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function: the mask has `len` bytes.
    unsafe {
        if is_calling(thread) {
            error_of(our_sched_getaffinity(0, len, mask))
        } else {
            pthread_getaffinity_np.get()(thread, len, mask)
        }
    }
}

/// # Safety
/// As pthread_setaffinity_np(3).
#[export_name = "pthread_setaffinity_np"]
pub unsafe extern "C-unwind" fn our_pthread_setaffinity_np(
    thread: pthread_t,
    len: size_t,
    mask: *const c_void,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function: the mask has `len` bytes.
    unsafe {
        if is_calling(thread) {
            error_of(our_sched_setaffinity(0, len, mask))
        } else {
            pthread_setaffinity_np.get()(thread, len, mask)
        }
    }
}
