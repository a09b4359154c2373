//! The provider's sockets: connecting, proving, waiting. Everything works on raw descriptors, because a
//! restored process finds the old numbers dead and must not close what they may mean by then.

use super::identity::Identity;
use eyrie_wire::auth::{random, Side};
use eyrie_wire::data::{Challenge, Hello, Stream};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long a router may take in a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The provider's descriptors are moved to numbers from here on, out of the program's way.
const FIRST_FD: i32 = 300;
/// Buffer asked of the kernel for a stream, in bytes.
static SOCKET_BUFFER: i32 = 1 << 20;

/// Moves a descriptor to a high number, so that the program's own numbers are the same in each life.
pub fn move_up(fd: OwnedFd) -> OwnedFd {
    // SAFETY: duplicates a descriptor that we own.
    let high = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, FIRST_FD) };
    if high < 0 {
        return fd;
    }
    // SAFETY: the kernel has just given us this descriptor.
    unsafe { OwnedFd::from_raw_fd(high) }
}

/// Connects to a router and proves who we are, both ways. The socket blocks.
///
/// # Errors
/// `PermissionDenied` when the router does not know the job's secret; else the socket's.
pub fn connect(me: &Identity, router: u32, stream: Stream) -> io::Result<OwnedFd> {
    use std::io::{Read, Write};
    let mut socket = UnixStream::connect(&me.router_sockets[router as usize])?;
    socket.set_read_timeout(Some(HANDSHAKE_TIMEOUT))?;
    socket.set_write_timeout(Some(HANDSHAKE_TIMEOUT))?;
    let hello = Hello { stream, rank: me.rank, incarnation: me.incarnation, nonce: random() };
    let claim = hello.encode();
    socket.write_all(&claim)?;
    let mut answer = [0; Challenge::LEN];
    socket.read_exact(&mut answer)?;
    let Challenge { nonce, proof } = Challenge::decode(&answer);
    if !me.secret.verify(Side::Accepting, &hello.nonce, &nonce, &claim, &proof) {
        return Err(io::Error::new(
            ErrorKind::PermissionDenied,
            "who listens there does not know the secret of the job",
        ));
    }
    socket.write_all(&me.secret.proof(Side::Connecting, &hello.nonce, &nonce, &claim))?;
    for option in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
        // SAFETY: the option takes an int, whose address and size are given. Failure costs speed only.
        unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                (&raw const SOCKET_BUFFER).cast(),
                size_of::<i32>() as u32,
            )
        };
    }
    // SAFETY: the descriptor comes from the stream that gives it up here.
    Ok(move_up(unsafe { OwnedFd::from_raw_fd(socket.into_raw_fd()) }))
}

/// Waits until the descriptor is readable or writable, at most `timeout_ms`. False: it is not, or a signal came.
pub fn wait(fd: &OwnedFd, events: i16, timeout_ms: i32) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    // SAFETY: one pollfd, which lives through the call.
    unsafe { libc::poll(&mut poll, 1, timeout_ms) > 0 }
}
