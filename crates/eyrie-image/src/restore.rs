//! Starts the restorer, from any process. The restorer is embedded in this library, so no path is
//! needed. Never restores in the calling process.

use std::ffi::CString;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use eyrie_image_format::{HELD_FROM, SLOTS_MAX};

/// The restorer, a static program, see docs/images.md.
static RESTORER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/eyrie-restorer"));

/// A command that restores the image read from `image` (a pipe, a socket or a file), with
/// `slots[n]` for slot n (`None`: /dev/null; at most [`HELD_FROM`]). `held` are files that the
/// image may need and whose names lead elsewhere now, opened with O_PATH; those beyond
/// [`SLOTS_MAX`] are left out. Slots 0, 1 and 2 are standard input, output and error of the
/// restored process. The command's own are the restorer's until it becomes the process. If it
/// cannot, one line on its standard error says why.
///
/// The process id of the spawned child is that of the restored process. It exits with a code of
/// [`eyrie_image_format::exit`] if there is no restored process.
pub fn command(
    image: BorrowedFd,
    slots: &[Option<BorrowedFd>],
    held: &[BorrowedFd],
) -> io::Result<Command> {
    assert!(slots.len() <= HELD_FROM, "more slots than there are");
    let program = OwnedFd::from(program()?);
    // Above standard input, output and error, which the command sets before the rest.
    let above = |fd: BorrowedFd| -> io::Result<OwnedFd> {
        // SAFETY: the call takes a descriptor and numbers. The new descriptor belongs to nothing
        // else.
        unsafe {
            match libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) {
                -1 => Err(io::Error::last_os_error()),
                fd => Ok(OwnedFd::from_raw_fd(fd)),
            }
        }
    };
    let image = above(image)?;
    let held = held.iter().take(SLOTS_MAX - HELD_FROM).map(|fd| Some(*fd));
    let free = std::iter::repeat_n(None, HELD_FROM - slots.len());
    let slots = slots.iter().copied().chain(free).chain(held);
    let slots = slots.map(|s| s.map(above).transpose()).collect::<io::Result<Vec<_>>>()?;
    let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
    command.arg0("eyrie-restorer").env_clear().arg(image.as_raw_fd().to_string());
    for slot in &slots {
        command.arg(slot.as_ref().map_or(-1, |fd| fd.as_raw_fd()).to_string());
    }
    // SAFETY: the closure makes only async-signal-safe calls and does not allocate. It owns the
    // descriptors, so they stay open until then.
    unsafe {
        command.pre_exec(move || {
            let _ = &program;
            // The image has its own addresses; this is for programs that the process starts later.
            // A sandbox may forbid it, so a failure is ignored.
            libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong);
            for fd in slots.iter().flatten().chain([&image]) {
                if libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, 0) == -1 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    Ok(command)
}

/// The restorer in a memory file.
fn program() -> io::Result<std::fs::File> {
    let name = CString::from(c"eyrie-restorer");
    // SAFETY: the name ends in a NUL, and the new descriptor belongs to nothing else.
    let mut file = unsafe {
        match libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) {
            -1 => return Err(io::Error::last_os_error()),
            fd => std::fs::File::from_raw_fd(fd),
        }
    };
    file.write_all(RESTORER)?;
    Ok(file)
}
