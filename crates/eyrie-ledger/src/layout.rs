//! Where things lie in a region, and what the words of its head mean. Nothing here reads or writes.
//!
//! ```text
//! 0x0000 HEAD      the keeper writes: magic and version, rank, ranks, incarnation, granted bytes
//! 0x1000 OWN       the rank writes: end of the extents in use, bytes that it waits for
//! 0x2000 CHANNELS  the rank writes: 64 B for each rank of the job, then ORDER, OBSERVED, FOREIGN
//!        RELEASED  the keeper writes: 8 B for each of these channels
//!        EXTENTS   the rank writes
//! ```
//!
//! Each part begins at a page of its own. Where several nodes come in, HEAD has room for the
//! current and the stable epoch and for the wish to trim (from 0x40 on), OWN for what the rank
//! depends on and for the counts that it has consumed (from 0x40 on), an entry 32 bits for the
//! epoch that it depends on, and CHANNELS a place for FOREIGN. All of these are 0 now.

use crate::check::{words, START};

/// A process of the job, by its number in MPI_COMM_WORLD.
pub type Rank = u32;

/// What a chain of extents holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Channel {
    /// The messages to this rank.
    Rank(Rank),
    /// In which order the rank has received.
    Order,
    /// What the rank has observed.
    Observed,
}

/// Bytes of a page, of the smallest extent, and what extents are multiples of.
pub const PAGE: u64 = 4096;
/// Bytes of the largest extent that holds several messages. So many of 64 KiB, of 1 MiB or of any
/// power of two between and above fit into it that 4 MiB hold, with what they take beside payload.
pub const LARGEST: u64 = (4 << 20) + 2 * PAGE;
/// Bytes of a line: entries lie at multiples of it.
pub const LINE: u64 = 64;

/// How often extents may be taken off a chain while a reader opens it.
pub(crate) const MOST_TRIES: usize = 1000;

/// First word of a region: "EYRIELG" and the version of all this.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"EYRIELG\x03");

/// Words of HEAD.
pub(crate) mod head {
    pub const MAGIC: u64 = 0x00;
    /// Sealed: the rank, and from bit 24 on how many ranks the job has.
    pub const WHO: u64 = 0x08;
    /// Sealed.
    pub const INCARNATION: u64 = 0x10;
    /// Sealed: bytes of extents that the rank may use.
    pub const GRANTED: u64 = 0x18;
}

/// Words of OWN.
pub(crate) mod own {
    /// Sealed: the end of the extents that were ever used, in bytes from the region's start.
    pub const END: u64 = 0x1000;
    /// Sealed: bytes of extents that the rank would need granted beyond what it has; 0 for none.
    pub const WANTED: u64 = 0x1008;
}

/// Words of a channel.
pub(crate) mod channel {
    /// The first extent of the chain; 0: there is none.
    pub const FIRST: u64 = 0;
    /// The ssn of the newest message.
    pub const NEWEST: u64 = 8;
    /// Bytes of the chain's extents, for people.
    pub const BYTES: u64 = 16;
    /// Bytes of the payload of all messages since the start, up to the newest one: the first word
    /// where its ssn is even, the second one where it is odd. A word is stored before its message
    /// is published, so that the words of the newest message are whole whenever its rank is killed.
    /// Of OBSERVED: the first word has the bytes of all that was observed.
    pub const PAYLOAD: [u64; 2] = [24, 32];
}

/// Words of the head of an extent.
pub(crate) mod extent {
    /// Sealed: its size in bytes. It is right in free extents, too.
    pub const SIZE: u64 = 0;
    /// The channel's index and 1; 0: the extent is free.
    pub const CHANNEL: u64 = 8;
    /// ssn of its first message; of a stream, where it begins.
    pub const FIRST: u64 = 16;
    /// Of a stream: two numbers that its first item goes on from. Of messages: how
    /// many extents of the channel came before it; and 0.
    pub const BASE: [u64; 2] = [24, 32];
    /// The check of all before, and of where it lies.
    pub const CHECK: u64 = 40;
    /// The next extent of the chain, or the next free one; 0: none.
    pub const NEXT: u64 = 48;
    /// Of a stream: how many bytes are published, and their check.
    pub const PUBLISHED: u64 = 56;
}

/// The layout of the region of one rank.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    rank: Rank,
    ranks: u32,
    bytes: u64,
    seed: u32,
}

impl Layout {
    /// Most ranks of a job.
    pub const MOST_RANKS: u32 = 1 << 20;

    /// The region of `rank` in a job of `ranks`, in memory of `bytes` bytes.
    ///
    /// # Panics
    /// When there is no such rank, or the memory has no room for one extent.
    pub fn new(rank: Rank, ranks: u32, bytes: u64) -> Layout {
        assert!(rank < ranks && ranks <= Self::MOST_RANKS, "rank {rank} of {ranks}");
        let layout = Layout {
            rank,
            ranks,
            bytes: bytes / PAGE * PAGE,
            seed: words(START, &[u64::from(rank)]),
        };
        assert!(layout.extents() + PAGE <= layout.end(), "a region of {bytes} bytes");
        layout
    }

    /// Whose region it is.
    pub const fn rank(&self) -> Rank {
        self.rank
    }

    /// How many ranks the job has.
    pub const fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Channels of a region.
    pub(crate) const fn channels(&self) -> u32 {
        self.ranks + 3
    }

    pub(crate) const fn index(&self, channel: Channel) -> u32 {
        match channel {
            Channel::Rank(rank) => rank,
            Channel::Order => self.ranks,
            Channel::Observed => self.ranks + 1,
        }
    }

    /// The line of a channel in CHANNELS.
    pub(crate) const fn channel(&self, index: u32) -> u64 {
        2 * PAGE + index as u64 * LINE
    }

    /// The word of a channel in RELEASED.
    pub(crate) const fn released(&self, index: u32) -> u64 {
        self.channel(self.channels()).next_multiple_of(PAGE) + index as u64 * 8
    }

    /// Where EXTENTS begin.
    pub const fn extents(&self) -> u64 {
        self.released(self.channels()).next_multiple_of(PAGE)
    }

    /// Where EXTENTS end at most.
    pub const fn end(&self) -> u64 {
        self.bytes
    }

    /// What checks of a channel begin with: the same bytes of another rank, or in another channel,
    /// are nonsense.
    pub(crate) fn seed(&self, index: u32) -> u32 {
        words(self.seed, &[u64::from(index)])
    }

    /// What a word of this region is sealed with.
    pub(crate) const fn salt(&self, at: u64) -> u64 {
        at << 20 | self.rank as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap_and_begin_at_pages() {
        for ranks in [1, 61, 62, 128, 4096] {
            let l = Layout::new(0, ranks, 16 << 30);
            assert!(l.channel(l.channels()) <= l.released(0));
            assert!(l.released(l.channels()) <= l.extents());
            assert_eq!((l.released(0) % PAGE, l.extents() % PAGE), (0, 0));
            assert_eq!(l.index(Channel::Observed) + 2, l.channels(), "FOREIGN comes last");
        }
    }
}
