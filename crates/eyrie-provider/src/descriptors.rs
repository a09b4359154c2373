//! Descriptors: those that come with a message over a socket, and where the provider's own are.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Descriptors that may come with one read.
pub const MAX_DESCRIPTORS: usize = 32;
/// The provider's descriptors are moved to numbers from here on, out of the program's way.
const FIRST_FD: i32 = 300;

/// Calls `each` with every descriptor that came with a message.
pub fn for_each_descriptor(message: &libc::msghdr, each: &mut dyn FnMut(OwnedFd)) {
    // SAFETY: the kernel has filled the control buffer of `message`; the macros walk within its
    // length, and the descriptors are new and ours.
    unsafe {
        let mut c = libc::CMSG_FIRSTHDR(message);
        while !c.is_null() {
            if (*c).cmsg_level == libc::SOL_SOCKET && (*c).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*c).cmsg_len - libc::CMSG_LEN(0) as usize;
                for i in 0..(bytes / size_of::<RawFd>()).min(MAX_DESCRIPTORS) {
                    let fd = libc::CMSG_DATA(c).cast::<RawFd>().add(i).read_unaligned();
                    each(OwnedFd::from_raw_fd(fd));
                }
            }
            c = libc::CMSG_NXTHDR(message, c);
        }
    }
}

/// Moves a descriptor to a high number, so that the program's own numbers are the same in each
/// incarnation.
pub fn move_up(fd: OwnedFd) -> OwnedFd {
    // SAFETY: duplicates a descriptor that we own.
    let high = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, FIRST_FD) };
    if high < 0 {
        return fd;
    }
    // SAFETY: the kernel has just given us this descriptor.
    unsafe { OwnedFd::from_raw_fd(high) }
}
