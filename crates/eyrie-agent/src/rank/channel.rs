//! Messages to ranks over their channels.

use eyrie_wire::agent::{ToRank, MAX_MESSAGE};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Sends a message over a rank's channel, with the descriptors that go along, at most two.
///
/// # Errors
/// When the other end is closed, or has no room at present.
pub fn send(channel: &OwnedFd, message: ToRank, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut bytes = [0; MAX_MESSAGE];
    let len = message.encode(&mut bytes);
    send_bytes(channel, &bytes[..len], fds)
}

/// Sends bytes over a rank's channel, with the descriptors that go along, at most two.
///
/// # Errors
/// When the other end is closed, or has no room at present.
pub fn send_bytes(channel: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(fds));
    }
    let parts = [IoSlice::new(bytes)];
    rustix::net::sendmsg(channel, &parts, &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}
