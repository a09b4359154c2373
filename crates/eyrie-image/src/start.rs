//! How a process must be started so that images of it can be taken: with fixed addresses, and with
//! nothing open except what it is given. Never changes the calling process.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Gives the process fixed addresses if that is allowed, as ranks have them.
pub fn at_fixed_addresses(command: &mut Command) {
    // SAFETY: the closure makes one system call, which is async-signal-safe, and does not allocate.
    unsafe {
        command.pre_exec(|| {
            libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong);
            Ok(())
        })
    };
}

/// Closes all descriptors from this number on in the process, except those that are set later.
pub fn with_nothing_open_from(command: &mut Command, number: RawFd) {
    // SAFETY: the closure makes one system call, which is async-signal-safe, and does not allocate.
    unsafe {
        command.pre_exec(move || {
            let cloexec = libc::CLOSE_RANGE_CLOEXEC as libc::c_int;
            libc::close_range(number as libc::c_uint, libc::c_uint::MAX, cloexec);
            Ok(())
        })
    };
}

/// Gives the process `stream`, to which it writes its image, as descriptor `number`. Other
/// descriptors of its starter from there on are closed in it, as agents keep theirs from ranks.
/// `stream` must stay open until the process is started.
pub fn with_stream(command: &mut Command, stream: &OwnedFd, number: RawFd) {
    let raw = stream.as_raw_fd();
    with_nothing_open_from(command, number);
    // SAFETY: the closure makes only system calls, which are async-signal-safe, and does not
    // allocate. The caller keeps `stream` open. If both numbers are the same, only the
    // close-on-exec flag must be cleared.
    unsafe {
        command.pre_exec(move || {
            let done = if raw == number {
                libc::fcntl(raw, libc::F_SETFD, 0)
            } else {
                libc::dup2(raw, number)
            };
            match done {
                -1 => Err(io::Error::last_os_error()),
                _ => Ok(()),
            }
        })
    };
}
