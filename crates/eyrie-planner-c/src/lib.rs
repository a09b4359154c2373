//! What libeyrie-ulfm needs from the Rust side, behind a C interface: the planner ([`planner`]), parity of groups
//! ([`parity`]) and checksums. The header is include/eyrie_planner.h, made by cbindgen.
//!
//! Nothing here may print, end the process on bad input, or keep a pointer that it was given. The only input read is the
//! file that a network description or traffic names.

mod instance;
pub mod parity;
pub mod planner;

use std::ffi::{c_char, c_void, CStr};

/// Checksum of `len` bytes (XXH3, 64 bits): fast enough to go along with a copy; finds damage, does not resist forgery.
///
/// # Safety
/// `bytes` points to `len` readable bytes; it may be NULL when `len` is 0.
#[no_mangle]
pub unsafe extern "C" fn eyrie_checksum(bytes: *const c_void, len: usize) -> u64 {
    if len == 0 {
        return twox_hash::XxHash3_64::oneshot(&[]);
    }
    // SAFETY: the caller says that `len` bytes can be read.
    twox_hash::XxHash3_64::oneshot(unsafe { std::slice::from_raw_parts(bytes.cast(), len) })
}

/// The text of a C string; `None` for NULL or what is not UTF-8.
///
/// # Safety
/// `text` is NULL or ends with a zero byte.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller says that it ends with a zero byte.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

/// Writes as much of `words` as fits, always with a zero byte at the end.
///
/// # Safety
/// `room` is NULL or has `len` writable bytes.
unsafe fn write_text(words: &str, room: *mut c_char, len: usize) {
    if room.is_null() || len == 0 {
        return;
    }
    let mut end = words.len().min(len - 1);
    while !words.is_char_boundary(end) {
        end -= 1;
    }
    // SAFETY: `end` is less than `len`, and the caller says that `len` bytes can be written.
    unsafe {
        std::ptr::copy_nonoverlapping(words.as_ptr(), room.cast(), end);
        *room.add(end) = 0;
    }
}
