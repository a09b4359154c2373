//! What ranks have sent each other. A sender counts it, in memory that its images have; so what is
//! sent again after a failure counts once, whichever routers it came through.

use crate::Rank;
use serde::{Deserialize, Serialize};

/// What one rank has sent to another one since the job began, up to some message. Both numbers only
/// grow: of what several parts of a job know of a pair, the most counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Sent {
    /// How many messages, which is the send sequence number of the last one.
    pub messages: u64,
    /// Bytes of their content.
    pub bytes: u64,
}

impl Sent {
    /// One more message, with so many bytes of content.
    #[must_use]
    pub fn and(self, bytes: u64) -> Sent {
        Sent { messages: self.messages + 1, bytes: self.bytes + bytes }
    }

    /// What is known of a pair by both.
    #[must_use]
    pub fn max(self, other: Sent) -> Sent {
        Sent { messages: self.messages.max(other.messages), bytes: self.bytes.max(other.bytes) }
    }

    /// What was sent since `before`.
    #[must_use]
    pub fn since(self, before: Sent) -> Sent {
        Sent {
            messages: self.messages.saturating_sub(before.messages),
            bytes: self.bytes.saturating_sub(before.bytes),
        }
    }
}

/// What one rank has sent to another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PairSent {
    pub from: Rank,
    pub to: Rank,
    pub sent: Sent,
}
