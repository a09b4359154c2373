//! What can be wrong with a ledger, in sentences for users. Making one allocates nothing.

use crate::layout::{Channel, Rank};

/// Why a ledger cannot be read or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LedgerError {
    /// What lies in the region of `rank` cannot be read. What lies before `behind` was sound.
    #[error("rank {rank}'s ledger is damaged behind {} ({what})", Behind(*channel, *behind))]
    Damaged { rank: Rank, channel: Channel, behind: u64, what: &'static str },
    /// The region's head, or its extents, cannot be read.
    #[error("rank {rank}'s ledger is damaged ({what})")]
    Unusable { rank: Rank, what: &'static str },
    /// The messages from `wanted` on are asked for, and the ledger begins later.
    #[error("rank {rank}'s ledger begins with {}, and {wanted} is needed", Named(*channel, *first))]
    Gone { rank: Rank, channel: Channel, wanted: u64, first: u64 },
    /// There is no room: more must be granted, or something be released, before it is tried again.
    /// Nothing was changed.
    #[error(
        "rank {rank}'s ledger is full: {bytes} more bytes are needed, and {granted} are granted"
    )]
    Full { rank: Rank, bytes: u64, granted: u64 },
    /// The system has no memory for the ledger. Nothing was changed.
    #[error("there is no memory for {bytes} more bytes of rank {rank}'s ledger")]
    NoMemory { rank: Rank, bytes: u64 },
    /// A rank that re-executes sends something other than before.
    #[error(
        "message {ssn} from rank {rank} to rank {to} was sent with {before}, and is sent again with \
         {now}{}", if before == now { " as another kind of message" } else { "" }
    )]
    Diverged { rank: Rank, to: Rank, ssn: u64, before: Sign, now: Sign },
    /// A message that no ledger of this size can hold.
    #[error("a message of {bytes} bytes is longer than rank {rank}'s ledger")]
    TooLong { rank: Rank, bytes: u64 },
}

/// What is said of a message that is not the one that was expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sign {
    /// The first word of its envelope: the tag of a tagged message.
    pub tag: u64,
    /// Length of its payload in bytes.
    pub bytes: u64,
}

impl std::fmt::Display for Sign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "tag {:#x} and {} bytes", self.tag, self.bytes)
    }
}

/// A message, or a place in a stream.
struct Named(Channel, u64);

impl std::fmt::Display for Named {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Channel::Rank(to) => write!(f, "message {} to rank {to}", self.1),
            Channel::Order => write!(f, "clock {} of its order", self.1),
            Channel::Observed => write!(f, "byte {} of what it observed", self.1),
        }
    }
}

/// The last message, or place, that was sound.
struct Behind(Channel, u64);

impl std::fmt::Display for Behind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.0, self.1) {
            (Channel::Rank(to), 0) => write!(f, "the start of its messages to rank {to}"),
            (channel, number) => Named(channel, number).fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_ledger_is_said_as_users_read_it() {
        let error = LedgerError::Damaged {
            rank: 3,
            channel: Channel::Rank(5),
            behind: 17,
            what: "its check is wrong",
        };
        assert_eq!(
            error.to_string(),
            "rank 3's ledger is damaged behind message 17 to rank 5 (its check is wrong)"
        );
    }
}
