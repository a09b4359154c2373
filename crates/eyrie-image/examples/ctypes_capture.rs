//! A shared library for Python's ctypes: a capture with the arguments that a script can pass. The
//! tests use it to capture an interpreter as a rank's provider does.

use eyrie_image::{capture, Mode, Outcome, Request};

/// Captures into `out_fd`. Returns 0 in the original, 1 in a restored process, and -1 when refused
/// (the reason is on standard error).
///
/// # Safety
/// As [`eyrie_image::capture`].
#[no_mangle]
pub unsafe extern "C" fn eyrie_ctypes_capture(out_fd: i32, sync: i32, rsn: u64) -> i32 {
    let mode = if sync != 0 { Mode::Sync } else { Mode::Async };
    // SAFETY: the caller keeps the contract of `capture`, which is that of this function.
    unsafe { capture_by(&Request { rsn, ..Request::plain(out_fd, mode) }) }
}

/// As [`eyrie_ctypes_capture`], with the content of the program and its libraries.
///
/// # Safety
/// As [`eyrie_image::capture`].
#[no_mangle]
pub unsafe extern "C" fn eyrie_ctypes_capture_whole(out_fd: i32) -> i32 {
    let plain = Request::plain(out_fd, Mode::Async);
    // SAFETY: the caller keeps the contract of `capture`, which is that of this function.
    unsafe { capture_by(&Request { self_contained: true, ..plain }) }
}

/// Adds up the numbers below `n` from a table in this library.
#[no_mangle]
pub extern "C" fn eyrie_ctypes_sum(n: u64) -> u64 {
    static TABLE: [u64; 4096] = [3; 4096];
    TABLE
        .iter()
        .take(std::hint::black_box(n) as usize)
        .enumerate()
        .map(|(at, x)| at as u64 * x)
        .sum()
}

/// # Safety
/// As [`eyrie_image::capture`].
unsafe fn capture_by(request: &Request) -> i32 {
    // SAFETY: the caller keeps the contract of `capture`, which is that of this function.
    match unsafe { capture(request) } {
        Outcome::Captured { .. } => 0,
        Outcome::Restored => 1,
        Outcome::Refused(refusal) => {
            eprintln!("refused: {refusal}");
            -1
        }
    }
}
