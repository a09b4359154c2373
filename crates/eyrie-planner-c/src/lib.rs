//! What libeyrie-ulfm needs from the Rust side, behind a C interface: the planner ([`planner`]),
//! parity of groups ([`parity`]) and checksums. The header is include/eyrie_planner.h, made by
//! cbindgen.
//!
//! Nothing here may print, end the process on bad input, or keep a pointer that it was given. The
//! only input read is the file that a network description or traffic names.

pub mod parity;
pub mod planner;

use std::ffi::{c_char, c_void, CStr};
use std::hash::Hasher;

/// Checksum of `len` bytes (XXH3, 64 bits): fast enough to go along with a copy; finds damage, does
/// not resist forgery.
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

/// Copies `len` bytes and returns their [`eyrie_checksum`]: one way through memory, where a copy
/// and then a checksum are two. `past_cache`: the copy goes to memory directly; else what it
/// overwrites is loaded first, a third way through memory.
///
/// # Safety
/// `from` points to `len` readable bytes and `to` to as many writable ones elsewhere; both may be
/// NULL when `len` is 0.
#[no_mangle]
pub unsafe extern "C" fn eyrie_copy_checksum(
    to: *mut c_void,
    from: *const c_void,
    len: usize,
    past_cache: bool,
) -> u64 {
    // What has been read for the checksum is copied while the first-level cache still has it.
    const PIECE: usize = 4096;
    let mut hasher = twox_hash::XxHash3_64::new();
    for at in (0..len).step_by(PIECE) {
        let part = PIECE.min(len - at);
        // SAFETY: the caller says that `len` bytes can be read, and at + part is at most len.
        let piece = unsafe { std::slice::from_raw_parts(from.cast::<u8>().add(at), part) };
        hasher.write(piece);
        // SAFETY: the caller says that as many can be written, and that they lie elsewhere.
        unsafe { copy(to.cast::<u8>().add(at), piece, past_cache) };
    }
    hasher.finish()
}

/// # Safety
/// `to` has room for the bytes of `from`, which lie elsewhere.
unsafe fn copy(to: *mut u8, from: &[u8], past_cache: bool) {
    #[cfg(target_arch = "x86_64")]
    if past_cache && to.addr() % 16 == 0 && from.len() % 64 == 0 {
        use std::arch::x86_64::{_mm_loadu_si128, _mm_sfence, _mm_stream_si128};
        for at in (0..from.len()).step_by(16) {
            // SAFETY: every x86-64 has SSE2; 16 bytes can be read and written, and the place to
            // write is aligned.
            unsafe {
                let bytes = _mm_loadu_si128(from.as_ptr().add(at).cast());
                _mm_stream_si128(to.add(at).cast(), bytes);
            }
        }
        // Such stores are in no order with others until a fence.
        // SAFETY: every x86-64 has SSE.
        unsafe { _mm_sfence() };
        return;
    }
    let _ = past_cache;
    // SAFETY: the caller says so.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_the_checksum_of_its_source() {
        let byte = |i: u32| (i.wrapping_mul(2_654_435_761) >> 13) as u8;
        let source: Vec<u8> = (0..20_000).map(byte).collect();
        for len in [0, 1, 16, 240, 241, 1024, 4095, 4096, 4097, 8192, 20_000] {
            for (past_cache, shift) in [(false, 0), (true, 0), (true, 1)] {
                let mut copy = vec![0u8; len + shift];
                // SAFETY: both have `len` bytes.
                let (sum, plain) = unsafe {
                    let (to, from) = (copy.as_mut_ptr().add(shift), source.as_ptr());
                    (
                        eyrie_copy_checksum(to.cast(), from.cast(), len, past_cache),
                        eyrie_checksum(from.cast(), len),
                    )
                };
                assert_eq!((sum, &copy[shift..]), (plain, &source[..len]));
            }
        }
    }
}
