//! The state of messages that were received, and of those that were not yet when they arrived.
//! Decides nothing.

use super::log::Cursor;
use eyrie_wire::Rank;
use std::collections::VecDeque;
use std::time::Duration;

/// Most bytes that one sender keeps for its receivers. It has room for more (`MAX_KEPT` of the
/// provider), so it is not stopped.
pub const UNRECEIVED_BYTES: u64 = 16 << 20;
/// How far the messages of a rank have been received whose primary router this is.
#[derive(Default)]
pub struct Receipts {
    /// Messages up to this receive sequence number were received.
    pub(super) rsn: u64,
    /// The place in the log behind that message.
    pub(super) cursor: Cursor,
    /// Send sequence number of the last of them from each source.
    pub(super) ssn: Vec<u64>,
    /// Only this router keeps some of the messages up to this one.
    pub(super) exposed: Option<u64>,
}

impl Receipts {
    /// Of a rank with messages from this many sources.
    pub fn new(sources: usize) -> Receipts {
        Receipts { ssn: vec![0; sources], ..Receipts::default() }
    }

    /// Messages up to this receive sequence number were received.
    pub fn rsn(&self) -> u64 {
        self.rsn
    }

    /// Send sequence number of the last message from `source` that was received.
    pub fn last_ssn(&self, source: Rank) -> u64 {
        self.ssn[source as usize]
    }

    /// Goes on with what was saved; `cursor` is behind the message `rsn`.
    pub fn go_on(&mut self, rsn: u64, ssn: &[u64], cursor: Cursor) {
        if ssn.len() == self.ssn.len() {
            (self.rsn, self.cursor) = (rsn, cursor);
            self.ssn.copy_from_slice(ssn);
        }
    }

    /// The rank has been adopted at `rsn` and `ssn`; its messages go on up to `newest`.
    pub fn adopt(&mut self, rsn: u64, ssn: &[u64], newest: u64) {
        self.rsn = rsn;
        self.ssn.copy_from_slice(ssn);
        self.exposed = self.exposed.map(|_| newest);
    }
}

/// The frames of one sender's connection that are not acknowledged because of receivers.
#[derive(Default)]
pub struct Unreceived {
    /// In order.
    pub(super) messages: VecDeque<Awaited>,
    /// Bytes ever received, and those up to the last frame that is acknowledged by itself.
    pub(super) bytes: u64,
    pub(super) whole_bytes: u64,
    /// The same, before that frame.
    pub(super) before_last: u64,
    /// Frames and bytes that were acknowledged to the sender.
    pub(super) acknowledged: u64,
    pub(super) acknowledged_bytes: u64,
    /// The last frame for which the sender waits, and since when.
    pub(super) flush: Option<(u64, Duration)>,
}

/// A message that was not received yet when it arrived here.
pub struct Awaited {
    pub(super) destination: Rank,
    pub(super) ssn: u64,
    /// Frames and bytes before it.
    pub(super) frames: u64,
    pub(super) bytes: u64,
}

impl Unreceived {
    /// A frame of `len` bytes; `whole`: it is acknowledged by itself.
    pub fn count(&mut self, len: usize, whole: bool) {
        self.bytes += len as u64;
        if whole {
            self.before_last = self.whole_bytes;
            self.whole_bytes = self.bytes;
        }
    }
}
