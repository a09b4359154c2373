//! The Rust side of libeyrie-ulfm, behind a C interface: the planner ([`planner`]), parity of
//! groups ([`parity`]) and checksums. cbindgen makes the header, include/eyrie_planner.h.
//!
//! Nothing here may print, end the process on bad input, or keep a pointer that it was given. The
//! only input that is read is the file that a network description or traffic names.

pub mod parity;
pub mod planner;

use std::ffi::{c_char, c_void, CStr};
use std::hash::Hasher;

/// Checksum of `len` bytes (XXH3, 64 bits). It is fast enough to go along with a copy. It finds
/// damage, but does not resist forgery.
///
/// # Safety
/// `bytes` points to `len` readable bytes; it may be NULL when `len` is 0.
#[no_mangle]
pub unsafe extern "C" fn eyrie_checksum(bytes: *const c_void, len: usize) -> u64 {
    if len == 0 {
        return twox_hash::XxHash3_64::oneshot(&[]);
    }
    // SAFETY: the caller promises that `len` bytes can be read.
    twox_hash::XxHash3_64::oneshot(unsafe { std::slice::from_raw_parts(bytes.cast(), len) })
}

/// Copies `len` bytes and returns their [`eyrie_checksum`] in one pass through memory; a copy and
/// then a checksum take two. `past_cache`: the copy goes to memory directly; otherwise the
/// overwritten memory is loaded first, a further pass.
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
    // Bytes are copied while the first-level cache still has them from the checksum.
    const PIECE: usize = 4096;
    let mut hasher = twox_hash::XxHash3_64::new();
    for at in (0..len).step_by(PIECE) {
        let part = PIECE.min(len - at);
        // SAFETY: the caller promises `len` readable bytes, and `at + part` is at most `len`.
        let piece = unsafe { std::slice::from_raw_parts(from.cast::<u8>().add(at), part) };
        hasher.write(piece);
        // SAFETY: the caller promises `len` writable bytes at `to`, which do not overlap `from`.
        unsafe { copy(to.cast::<u8>().add(at), piece, past_cache) };
    }
    hasher.finish()
}

/// # Safety
/// `to` has room for the bytes of `from`, which are elsewhere.
unsafe fn copy(to: *mut u8, from: &[u8], past_cache: bool) {
    #[cfg(target_arch = "x86_64")]
    if past_cache && to.addr() % 16 == 0 && from.len() % 64 == 0 {
        use std::arch::x86_64::{_mm_loadu_si128, _mm_sfence, _mm_stream_si128};
        for at in (0..from.len()).step_by(16) {
            // SAFETY: every x86-64 has SSE2. The caller promises room at `to`, `at + 16` is at most
            // the length, and `to + at` is aligned to 16 bytes, as the store needs.
            unsafe {
                let bytes = _mm_loadu_si128(from.as_ptr().add(at).cast());
                _mm_stream_si128(to.add(at).cast(), bytes);
            }
        }
        // Such stores are not ordered with others before a fence.
        // SAFETY: the instruction needs SSE, which every x86-64 has. It accesses no memory.
        unsafe { _mm_sfence() };
        return;
    }
    let _ = past_cache;
    // SAFETY: the caller promises room for `from` at `to`, elsewhere.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
}

/// The text of a C string; `None` for NULL or text that is not UTF-8.
///
/// # Safety
/// `text` is NULL or ends with a zero byte.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: `text` is not NULL, and the caller promises a zero byte at its end.
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
    // SAFETY: `end` is less than `len`, and the caller promises `len` writable bytes.
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
                // SAFETY: `source` and `copy` have at least `len` bytes, `copy` after `shift` ones.
                let (sum, plain) = unsafe {
                    let to = copy.as_mut_ptr().add(shift);
                    let from = source.as_ptr();
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
