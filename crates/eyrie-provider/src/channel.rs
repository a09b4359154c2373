//! The channel to the agent: small messages, each sent and received as a whole, some with
//! descriptors.

use crate::descriptors::receive_message;
use eyrie_wire::agent::{FromRank, ToRank, MAX_MESSAGE};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// How long the agent may take to say what a starting or restored rank waits for.
const AGENT_TIMEOUT: Duration = Duration::from_secs(30);

static AGENT_FD: AtomicI32 = AtomicI32::new(-1);

/// Descriptors that came with a message: at most two do.
pub type Files = [Option<OwnedFd>; 2];

/// The channel has this number from now on.
pub fn open(fd: RawFd) {
    AGENT_FD.store(fd, Ordering::Relaxed);
}

/// The channel's number.
pub fn descriptor() -> RawFd {
    AGENT_FD.load(Ordering::Relaxed)
}

/// The agent's process, which has started this one; 0 when the kernel does not say.
pub fn agent_pid() -> i32 {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of_val(&peer) as libc::socklen_t;
    // SAFETY: structure and length live through the call.
    unsafe {
        let at = (&raw mut peer).cast();
        libc::getsockopt(descriptor(), libc::SOL_SOCKET, libc::SO_PEERCRED, at, &mut len);
    }
    peer.pid
}

/// Sends one message. Must not allocate. An error is ignored: this process ends with its agent.
pub fn send(message: &FromRank) {
    let mut buf = [0u8; MAX_MESSAGE];
    let len = message.encode(&mut buf);
    // SAFETY: the buffer has this length.
    unsafe { libc::send(descriptor(), buf.as_ptr().cast(), len, libc::MSG_NOSIGNAL) };
}

/// One message with its descriptors, if there is one. Must not wait or allocate.
pub fn receive() -> Option<(Option<ToRank>, Files)> {
    let mut buf = [0u8; MAX_MESSAGE];
    let mut files = [None, None];
    let mut count = 0;
    let received = receive_message(descriptor(), &mut buf, false, &mut |fd| {
        if count < files.len() {
            files[count] = Some(fd);
        }
        count += 1;
    });
    let len = received.ok()??;
    Some((ToRank::decode(&buf[..len]), files))
}

/// Waits until there is a message, or until `deadline`.
pub fn wait(deadline: Instant) {
    let left = deadline.saturating_duration_since(Instant::now()).as_millis() as i32;
    let mut poll = libc::pollfd { fd: descriptor(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, which lives through the call.
    unsafe { libc::poll(&mut poll, 1, left) };
}

/// Waits for a message that `wanted` takes; drops others. Allocates only for an error.
///
/// # Errors
/// When none comes in time.
pub fn await_agent<T>(wanted: impl Fn(ToRank, Files) -> Option<T>) -> Result<T, String> {
    let deadline = Instant::now() + AGENT_TIMEOUT;
    while Instant::now() < deadline {
        match receive() {
            Some((Some(message), files)) => {
                if let Some(value) = wanted(message, files) {
                    return Ok(value);
                }
            }
            Some((None, _)) => {}
            None => wait(deadline),
        }
    }
    let timeout = AGENT_TIMEOUT.as_secs();
    Err(format!("the agent has not answered this rank within {timeout} s"))
}
