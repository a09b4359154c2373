//! The state of a rank that has not said yet what it has, and the messages that are pending for it.
//! Decides nothing.

use super::mutation::{active, Mutation};
use eyrie_wire::data::{Message, Shown};
use eyrie_wire::Rank;
use std::collections::{BTreeMap, VecDeque};

/// A rank whose primary router this is and that has not said yet what it has.
#[derive(Default)]
pub struct Adoption {
    /// What it has said on its present connection: the last send sequence number from each source
    /// of its messages, and its own receive sequence number.
    pub(super) table: Vec<Shown>,
    pub(super) has: Option<u64>,
    /// It has died since this router started.
    pub(super) died: bool,
    /// Messages for it in their order of arrival, and the last one from each source.
    pub(super) pending: VecDeque<Pending>,
    pub(super) last: BTreeMap<Rank, u64>,
}

/// A message that is pending until the adoption. A payload in a segment stays there.
pub struct Pending {
    pub(super) source: Rank,
    pub(super) message: Message,
    pub(super) payload: Box<[u8]>,
}

impl Adoption {
    /// The rank has a new connection: what it said on the last one does not count.
    pub fn begin(&mut self) {
        self.table.clear();
        self.has = None;
    }

    /// The rank says which messages of one source it has seen.
    pub fn shown(&mut self, shown: Shown) {
        self.table.push(shown);
    }

    /// The rank says which messages it has received: it does not re-execute.
    pub fn has(&mut self, rsn: u64) {
        self.has = Some(rsn);
    }

    /// The rank has died.
    pub fn fence(&mut self) {
        self.died = !active(Mutation::AdoptTheDead);
    }

    /// Send sequence number of the last message from `source` that is here when `next` arrives. The
    /// first message may have any number.
    pub fn last_ssn(&self, source: Rank, next: u64) -> u64 {
        self.last.get(&source).copied().unwrap_or(next.saturating_sub(1))
    }

    /// Keeps a message until it can be logged.
    /// Returns the bytes that it takes.
    pub fn keep_pending(&mut self, source: Rank, message: &Message, payload: &[u8]) -> u64 {
        if active(Mutation::DropPending) {
            return 0;
        }
        self.last.insert(source, message.ssn);
        self.pending.push_back(Pending { source, message: *message, payload: payload.into() });
        payload.len() as u64
    }
}
