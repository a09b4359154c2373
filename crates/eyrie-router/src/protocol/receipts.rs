//! What is known of messages that were received, and of those that were not when they came. Decides
//! nothing.

use super::log::Cursor;
use eyrie_wire::Rank;
use std::collections::VecDeque;
use std::time::Duration;

/// Bytes that one sender keeps for its receivers at most; it has room for more (`MAX_KEPT` of the
/// provider), so it is not stopped.
pub const UNRECEIVED_BYTES: u64 = 16 << 20;
/// How far the messages of a rank that is at home here have been received.
#[derive(Default)]
pub struct Receipts {
    /// Messages up to this receive sequence number.
    pub(super) rsn: u64,
    /// Behind that message.
    pub(super) cursor: Cursor,
    /// Send sequence number of the last of them from each source.
    pub(super) ssn: Vec<u64>,
    /// Nobody but this router keeps some of the messages up to this one.
    pub(super) exposed: Option<u64>,
}

impl Receipts {
    /// Of a rank that may hear from so many.
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

    /// Goes on with what was saved; `cursor` is behind that message.
    pub fn go_on(&mut self, rsn: u64, ssn: &[u64], cursor: Cursor) {
        if ssn.len() == self.ssn.len() {
            (self.rsn, self.cursor) = (rsn, cursor);
            self.ssn.copy_from_slice(ssn);
        }
    }

    /// The rank has been adopted, with this; its messages go on up to `newest`.
    pub fn adopt(&mut self, rsn: u64, ssn: &[u64], newest: u64) {
        self.rsn = rsn;
        self.ssn.copy_from_slice(ssn);
        self.exposed = self.exposed.map(|_| newest);
    }
}

/// What of the frames of one sender's connection is not acknowledged for the sake of receivers.
#[derive(Default)]
pub struct Unreceived {
    /// In order.
    pub(super) messages: VecDeque<Awaited>,
    /// Bytes ever taken, and those up to the last frame that is acknowledged by itself.
    pub(super) bytes: u64,
    pub(super) whole_bytes: u64,
    /// The same, of what came before that frame.
    pub(super) before_last: u64,
    /// Frames and bytes that its sender has been told of.
    pub(super) told: u64,
    pub(super) told_bytes: u64,
    /// Its sender waits for all frames up to this one, and since when.
    pub(super) flush: Option<(u64, Duration)>,
}

/// A message that was not received when it came.
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
