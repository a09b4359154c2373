//! Ends a rank that cannot go on, and tells the user why. Nothing below a provider call may end the
//! process by itself.

use crate::channel;
use crate::core::error::RankError;
use eyrie_wire::agent::FromRank;
use std::fmt;
use std::io::Write;

/// Ends this process when the rank cannot go on.
pub fn or_end<R>(result: Result<R, RankError>) -> R {
    result.unwrap_or_else(|e| fatal(&e.to_string()))
}

/// Tells the user something on standard error, which may be closed.
pub fn say(text: &str) {
    let line = format!("eyrie: {text}\n");
    // SAFETY: the line has this length. An error is ignored: there is no other place to report it.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}

/// As [`say`], where nothing can be allocated; what is longer than a line is cut.
pub fn say_without_memory(text: fmt::Arguments<'_>) {
    let mut line = [0u8; 512];
    let mut rest = &mut line[..];
    // A text that does not fit is cut.
    let _ = rest.write_fmt(format_args!("eyrie: {text}\n"));
    let len = 512 - rest.len();
    // SAFETY: the line has this length. An error is ignored: standard error may be closed.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), len) };
}

/// Ends this rank, which cannot go on, and sends the agent the reason.
pub fn fatal(reason: &str) -> ! {
    channel::send(&FromRank::Fatal { reason });
    // SAFETY: ends the process without running the program's exit handlers, which may call MPI.
    unsafe { libc::_exit(70) }
}
