//! Payloads that are sent to their receiver in pieces, ahead of their message. The message must
//! never be sent before the last piece of its payload.

use super::mutation::{active, Mutation};
use eyrie_wire::data::{Deliver, MAX_INLINE};

/// How much of the payload of a message was sent to its receiver, ahead of the message.
#[derive(Clone, Copy, Default)]
pub struct Ahead {
    /// The message.
    rsn: u64,
    bytes: u64,
}

impl Ahead {
    /// Where in the payload of this message the next piece begins, and its length; `None` when all
    /// was sent.
    pub fn next(&mut self, message: &Deliver) -> Option<(u64, usize)> {
        if self.rsn != message.rsn {
            *self = Ahead { rsn: message.rsn, bytes: 0 };
        }
        let from = self.bytes;
        let left = message.size - from;
        let len = left.min(MAX_INLINE as u64);
        self.bytes += len;
        let enough = len == 0 || (active(Mutation::SkipLastPiece) && len == left);
        (!enough).then_some((from, len as usize))
    }
}
