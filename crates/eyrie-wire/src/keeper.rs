//! The messages between a rank and the keeper of the ledgers of its host, over a Unix connection on
//! which the rank has proven its claim ([`crate::control::Claim::Ledger`]). Messages of MPI never
//! come this way. A message is its length (32 bits, little endian) and its encoding (postcard).

use serde::{Deserialize, Serialize};

/// Longest message in bytes.
pub const MAX_MESSAGE: usize = 4096;

/// Longest reason in bytes: a rank cuts it.
pub const MAX_REASON: usize = 1024;

/// Keeper to rank.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FromKeeper {
    /// The rank may read and write its ledger from now on. With the first byte of the message come
    /// three descriptors (SCM_RIGHTS): the ledgers of all ranks, to be read only; the same file, of
    /// which the rank writes its own region; bells and boards.
    ///
    /// A fourth one where there are spilled messages, which the rank has received before and reads
    /// again when it is executed again: a file that has them between these two bytes.
    Admitted { ledgers: Ledgers, spilled_begin: u64, spilled_end: u64 },
}

/// How the ledgers of a job lie in their file: one region a rank, in the order of ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ledgers {
    pub ranks: u32,
    /// Bytes of addresses of a region: a multiple of 2 MiB. Most of them have no memory.
    pub region_bytes: u64,
}

/// Rank to keeper.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToKeeper {
    /// The rank re-executes no more: so many messages became visible again.
    Replayed { messages: u64 },
    /// The rank's ledger is full. It waits until more is granted, or something is released; its
    /// ledger says how much it needs.
    RoomWanted,
    /// A message that was sent again has the same envelope and another content. The first one
    /// counts.
    ContentDiffers { reason: String },
    /// A message that was sent again is another one. The job must end.
    Diverged { reason: String },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_message_fits() {
        let longest = ToKeeper::Diverged { reason: "x".repeat(MAX_REASON) };
        let bytes = postcard::to_stdvec(&longest).unwrap();
        assert!(bytes.len() <= MAX_MESSAGE);
        assert_eq!(postcard::from_bytes::<ToKeeper>(&bytes), Ok(longest));
    }
}
