//! The stream of what the other domain's gateway has for one own rank. The gateway goes on behind
//! what it knows to be safe, so the courier need not know where that is. Decides nothing.

use super::mutation::{active, Mutation};
use eyrie_wire::data::{Deliver, Place};
use eyrie_wire::Rank;
use std::collections::VecDeque;

/// A message that was fetched, and is not known to be safe.
pub struct Awaited {
    pub rsn: u64,
    pub source: Rank,
    /// The place of its source.
    pub other: usize,
    pub ssn: u64,
}

/// A message whose payload is coming in pieces.
pub struct Incoming {
    pub message: Deliver,
    /// Where its router wants the payload; `None`: the router has it.
    pub place: Option<Place>,
    /// Bytes of the payload that have come.
    pub bytes: u64,
}

/// The stream of one own rank.
#[derive(Default)]
pub struct Fetch {
    pub up: bool,
    /// How often the gateway was asked to begin and has not said that it does. What comes before it
    /// does is of the stream before.
    pub unbegun: u32,
    /// In the order of the gateway.
    pub awaited: VecDeque<Awaited>,
    pub incoming: Option<Incoming>,
    /// All up to this receive sequence number is safe, and what the gateway was told of that.
    pub safe: u64,
    pub reported: u64,
}

impl Fetch {
    /// The stream begins again. True: the gateway must be told.
    pub fn begin(&mut self) -> bool {
        self.awaited.clear();
        self.unbegun += u32::from(self.up);
        self.up
    }

    /// There is no connection any more.
    pub fn lost(&mut self) {
        *self = Fetch::default();
    }

    /// Whether something of this source has come, or is coming, behind its message `safe`.
    pub fn depends_on(&self, source: Rank, safe: u64) -> bool {
        let coming = self.incoming.as_ref().is_some_and(|i| i.message.source == source);
        let awaited = |a: &Awaited| a.source == source && a.ssn > safe;
        (coming || self.awaited.iter().any(awaited)) && !active(Mutation::LoseWithTheConnection)
    }
}
