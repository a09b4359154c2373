//! /dev/urandom and /dev/random: a rank that reads them gets numbers of its own stream
//! ([`crate::random`]). Descriptors are the device's own and are remembered. Streams are ours,
//! because the C library reads them without calling us. [`crate::files`] opens and reads.

use crate::random::{draw, draws, fill};
use libc::{c_char, c_int, c_void, size_t, ssize_t, FILE};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers of the two devices (mem(4)): both give the same.
const RANDOM: u64 = libc::makedev(1, 8);
const URANDOM: u64 = libc::makedev(1, 9);

/// Descriptors below this number are remembered.
const DESCRIPTORS: usize = 4096;
/// A bit for each descriptor that was opened as one of the devices and may have become another
/// since.
static OPENED: [AtomicU64; DESCRIPTORS / 64] = [const { AtomicU64::new(0) }; DESCRIPTORS / 64];

fn bit(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((OPENED.get(fd / 64)?, 1 << (fd % 64)))
}

/// # Safety
/// `path` must be null or a C string.
unsafe fn is_random(path: *const c_char) -> bool {
    // SAFETY: by the contract of this function, `path` is null or a C string.
    !path.is_null()
        && matches!(unsafe { CStr::from_ptr(path) }.to_bytes(), b"/dev/urandom" | b"/dev/random")
}

/// Remembers what was opened.
///
/// # Safety
/// `path` must be null or a C string.
pub unsafe fn opened(fd: c_int, path: *const c_char) -> c_int {
    // SAFETY: by the contract of this function, `path` is null or a C string.
    if fd >= 0 && draws() && unsafe { is_random(path) } {
        if let Some((word, mask)) = bit(fd) {
            word.fetch_or(mask, Ordering::Relaxed);
        }
    }
    fd
}

/// Whether this descriptor is one of the devices. Costs one load for any other that was never one.
fn is_device(fd: c_int) -> bool {
    let Some((word, mask)) =
        bit(fd).filter(|(word, mask)| word.load(Ordering::Relaxed) & mask != 0)
    else {
        return false;
    };
    // SAFETY: all zero is a valid structure, which lives through the call.
    let device = unsafe {
        let mut st: libc::stat = std::mem::zeroed();
        libc::fstat(fd, &mut st) == 0
            && st.st_mode & libc::S_IFMT == libc::S_IFCHR
            && [RANDOM, URANDOM].contains(&st.st_rdev)
    };
    if !device {
        word.fetch_and(!mask, Ordering::Relaxed);
    }
    device
}

/// Reads from a descriptor of one of the devices; `None`: it is another file.
///
/// # Safety
/// As read(2).
pub unsafe fn drawn(fd: c_int, buffer: *mut c_void, len: size_t) -> Option<ssize_t> {
    if !is_device(fd) || buffer.is_null() || len > isize::MAX as usize {
        return None;
    }
    // SAFETY: the caller keeps the contract of the C function, which gets the same arguments.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast(), len) };
    draw(bytes).then_some(len as ssize_t)
}

/// What fopencookie(3) takes.
#[repr(C)]
struct Functions {
    read: Option<unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t>,
    write: *const c_void,
    seek: *const c_void,
    close: *const c_void,
}

extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
}

/// Fills the buffer of a stream of ours.
unsafe extern "C-unwind" fn read_stream(
    _: *mut c_void,
    buffer: *mut c_char,
    len: size_t,
) -> ssize_t {
    // SAFETY: the C library gives a buffer of that length.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), len) };
    fill(bytes);
    len as ssize_t
}

/// A stream of ours for one of the devices, when it is to be read.
///
/// # Safety
/// As fopen(3).
pub unsafe fn stream(path: *const c_char, mode: *const c_char) -> Option<*mut FILE> {
    // SAFETY: handed on to the caller; the functions live for ever.
    unsafe {
        if !draws() || !is_random(path) || mode.is_null() || *mode != b'r' as c_char {
            return None;
        }
        let none = std::ptr::null();
        let functions = Functions { read: Some(read_stream), write: none, seek: none, close: none };
        Some(fopencookie(std::ptr::null_mut(), c"r".as_ptr(), functions))
    }
}
