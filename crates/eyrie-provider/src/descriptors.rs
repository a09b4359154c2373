//! Descriptors: those that come with a message over a socket, and where the provider's own are.

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Descriptors that may come with one read.
const MAX_DESCRIPTORS: usize = 32;
/// Room for what the kernel says of them: a header, and their numbers.
const CONTROL_WORDS: usize =
    (size_of::<libc::cmsghdr>() + MAX_DESCRIPTORS * size_of::<RawFd>()).div_ceil(size_of::<u64>());
/// The provider's descriptors are moved to numbers from here on, out of the program's way.
const FIRST_FD: i32 = 300;

/// Takes what has come over a socket, at most as much as fits into `into`, and calls `each` with
/// the descriptors that came with it. `None`: nothing is there, after the time that the socket
/// waits, or at once where `wait` is false. Allocates nothing.
///
/// # Errors
/// Those of the kernel; `UnexpectedEof` when the other side has closed it.
pub fn receive_message(
    socket: RawFd,
    into: &mut [u8],
    wait: bool,
    each: &mut dyn FnMut(OwnedFd),
) -> io::Result<Option<usize>> {
    let mut iov = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let mut control = [0u64; CONTROL_WORDS];
    // SAFETY: all zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    let flags = libc::MSG_CMSG_CLOEXEC | if wait { 0 } else { libc::MSG_DONTWAIT };
    // SAFETY: the header names a buffer and a control buffer that live through the call.
    let n = unsafe { libc::recvmsg(socket, &mut message, flags) };
    if n < 0 {
        let e = io::Error::last_os_error();
        let nothing = matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
        return if nothing { Ok(None) } else { Err(e) };
    }
    if message.msg_controllen > 0 {
        for_each_descriptor(&message, each);
    }
    if n == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(n as usize))
}

/// Calls `each` with every descriptor that came with a message.
fn for_each_descriptor(message: &libc::msghdr, each: &mut dyn FnMut(OwnedFd)) {
    // SAFETY: the kernel has filled the control buffer of `message`; the macros walk within its
    // length, and the descriptors are new and ours.
    unsafe {
        let mut c = libc::CMSG_FIRSTHDR(message);
        while !c.is_null() {
            if (*c).cmsg_level == libc::SOL_SOCKET && (*c).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*c).cmsg_len - libc::CMSG_LEN(0) as usize;
                for i in 0..bytes / size_of::<RawFd>() {
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
