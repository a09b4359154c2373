//! How far each rank's delivery stream has come. Decides nothing.

use super::ahead::Ahead;
use super::log::Cursor;
use eyrie_wire::data::{Resume, MAX_INLINE};
use eyrie_wire::Rank;

/// The delivery stream of one rank.
#[derive(Default)]
pub struct Stream {
    /// The place in the log of what comes next.
    pub cursor: Cursor,
    /// How much of the next message's payload was sent ahead of it.
    pub ahead: Ahead,
    /// The rsn behind which the stream began; `None` until its rank has sent it.
    pub resumed: Option<u64>,
    /// Where the stream is to begin once the recovery is prepared. The rank's connection and the
    /// controller's command may come in either order.
    pub early: Option<Resume>,
}

/// The delivery streams of all ranks.
pub struct Streams {
    ranks: Vec<Stream>,
    /// Buffer for a piece of a payload.
    piece: Vec<u8>,
}

impl Streams {
    /// None has begun, of this many ranks.
    pub fn new(ranks: usize) -> Streams {
        Streams {
            ranks: (0..ranks).map(|_| Stream::default()).collect(),
            piece: vec![0; MAX_INLINE],
        }
    }

    pub fn of(&self, rank: Rank) -> &Stream {
        &self.ranks[rank.index()]
    }

    pub fn of_mut(&mut self, rank: Rank) -> &mut Stream {
        &mut self.ranks[rank.index()]
    }

    /// The stream of a rank, and a buffer for a piece of a payload.
    pub fn with_buffer(&mut self, rank: Rank) -> (&mut Stream, &mut [u8]) {
        (&mut self.ranks[rank.index()], &mut self.piece)
    }
}
