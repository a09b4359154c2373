//! What processes are started with of which images are to be taken, by who starts them: fixed
//! addresses, and nothing open but what they are given. Never changes the calling process.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The process has fixed addresses where that is allowed, as ranks have them.
pub fn at_fixed_addresses(command: &mut Command) {
    // SAFETY: one system call.
    unsafe {
        command.pre_exec(|| {
            libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong);
            Ok(())
        })
    };
}

/// The process has nothing open from this number on but what is put there later.
pub fn with_nothing_open_from(command: &mut Command, number: RawFd) {
    // SAFETY: one system call.
    unsafe {
        command.pre_exec(move || {
            let cloexec = libc::CLOSE_RANGE_CLOEXEC as libc::c_int;
            libc::close_range(number as libc::c_uint, libc::c_uint::MAX, cloexec);
            Ok(())
        })
    };
}

/// The process has `stream`, to which it writes its image, as descriptor `number`. What its starter
/// has open from there on is not for it, as agents keep theirs from ranks. `stream` must stay open
/// until the process is started.
pub fn with_stream(command: &mut Command, stream: &OwnedFd, number: RawFd) {
    let raw = stream.as_raw_fd();
    with_nothing_open_from(command, number);
    // SAFETY: system calls only, between fork and exec. Where both numbers are the same there is
    // nothing to copy.
    unsafe {
        command.pre_exec(move || {
            let done = match raw == number {
                true => libc::fcntl(raw, libc::F_SETFD, 0),
                false => libc::dup2(raw, number),
            };
            match done {
                -1 => Err(io::Error::last_os_error()),
                _ => Ok(()),
            }
        })
    };
}
