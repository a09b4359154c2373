//! A shared library for Python's ctypes: a capture with the arguments a script can give.
//! Used by the tests to capture an interpreter as a rank's provider does.

use eyrie_image::{capture, Mode, Outcome, Request};

/// Captures into `out_fd`; 0 in the original, 1 in a restored process, -1 when refused (the reason
/// goes to standard error).
///
/// # Safety
/// As [`eyrie_image::capture`].
#[no_mangle]
pub unsafe extern "C" fn eyrie_ctypes_capture(out_fd: i32, sync: i32, rsn: u64) -> i32 {
    let mode = if sync != 0 { Mode::Sync } else { Mode::Async };
    let request = Request { rsn, ..Request::plain(out_fd, mode) };
    // SAFETY: handed on to the caller.
    match unsafe { capture(&request) } {
        Outcome::Captured { .. } => 0,
        Outcome::Restored => 1,
        Outcome::Refused(refusal) => {
            eprintln!("refused: {refusal}");
            -1
        }
    }
}
