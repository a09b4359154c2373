//! Memory for Intel MPI. Its own heap places what it gives by the processor's time stamp counter,
//! which cannot be recorded. Ranks tell each other such addresses (of windows), and a rank that is
//! executed again must tell the same ones. So that library gets memory of the C library, which
//! places it by what was asked for before. Other libraries have no functions of these names. Blocks
//! must lie as that heap places them, at multiples of a cache line.

use libc::{c_void, size_t};
use std::ptr::null_mut;

const LINE: size_t = 64;

/// # Safety
/// As malloc(3).
#[no_mangle]
pub unsafe extern "C" fn impi_malloc(len: size_t) -> *mut c_void {
    let mut at = null_mut();
    // SAFETY: the pointer is ours, the alignment a power of two and a multiple of a pointer's size.
    match unsafe { libc::posix_memalign(&mut at, LINE, len) } {
        0 => at,
        _ => null_mut(),
    }
}

/// # Safety
/// As calloc(3).
#[no_mangle]
pub unsafe extern "C" fn impi_calloc(count: size_t, size: size_t) -> *mut c_void {
    let Some(len) = count.checked_mul(size) else { return null_mut() };
    // SAFETY: as the caller promises.
    let at = unsafe { impi_malloc(len) };
    if !at.is_null() {
        // SAFETY: the block has this length.
        unsafe { at.write_bytes(0, len) };
    }
    at
}

/// # Safety
/// As realloc(3).
#[no_mangle]
pub unsafe extern "C" fn impi_realloc(old: *mut c_void, len: size_t) -> *mut c_void {
    // SAFETY: `old` is a block of the C library's, or null, as the caller promises. The new one has
    // the length that is copied.
    unsafe {
        if len == 0 && !old.is_null() {
            libc::free(old);
            return null_mut();
        }
        let new = impi_malloc(len);
        if !new.is_null() && !old.is_null() {
            new.copy_from_nonoverlapping(old, len.min(libc::malloc_usable_size(old)));
            libc::free(old);
        }
        new
    }
}

/// # Safety
/// As free(3).
#[no_mangle]
pub unsafe extern "C" fn impi_free(at: *mut c_void) {
    // SAFETY: a block of the functions above, or of the C library's, as the caller promises.
    unsafe { libc::free(at) };
}
