//! Paths and calls that name this process by the number that getpid(2) gives: that of the rank's
//! first process, which the kernel knows no more, or knows another process by.

use crate::process::{is_own, meant};
use libc::{c_char, c_int, c_void, pid_t, size_t};
use std::ffi::CStr;

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
    // SAFETY: handed on to the caller.
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
    // SAFETY: handed on to the caller.
    unsafe { libc::syscall(libc::SYS_sched_setaffinity, meant(pid), len, mask) as c_int }
}
