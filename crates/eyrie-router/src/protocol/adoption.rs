//! A rank that has not said yet what it has, and the messages that are kept aside for it. Decides
//! nothing.

use super::mutation::{active, Mutation};
use eyrie_wire::data::{Message, Shown};
use eyrie_wire::Rank;
use std::collections::{BTreeMap, VecDeque};

/// What is known of a rank at home here that has not said yet what it has.
#[derive(Default)]
pub struct Adoption {
    /// What it has said on its present connection: the last send sequence number from each source
    /// that it has heard from, and its own receive sequence number.
    pub(super) table: Vec<Shown>,
    pub(super) has: Option<u64>,
    /// It has died since this router began.
    pub(super) died: bool,
    /// Messages for it, in the order in which they came, and the last one from each source.
    pub(super) aside: VecDeque<Aside>,
    pub(super) last: BTreeMap<Rank, u64>,
}

/// A message that is kept aside. A payload in a segment stays there.
pub struct Aside {
    pub(super) source: Rank,
    pub(super) message: Message,
    pub(super) payload: Box<[u8]>,
}

impl Adoption {
    /// A new connection of the rank: what it said on the last one does not count.
    pub fn begin(&mut self) {
        self.table.clear();
        self.has = None;
    }

    /// The rank says what it has seen of one source.
    pub fn shown(&mut self, shown: Shown) {
        self.table.push(shown);
    }

    /// The rank says what it has received: it does not re-execute.
    pub fn has(&mut self, rsn: u64) {
        self.has = Some(rsn);
    }

    /// The rank has died.
    pub fn fence(&mut self) {
        self.died = !active(Mutation::AdoptTheDead);
    }

    /// Send sequence number of the last message from `source` that is here, when `next` comes: the
    /// first one may have any.
    pub fn last_ssn(&self, source: Rank, next: u64) -> u64 {
        self.last.get(&source).copied().unwrap_or(next.saturating_sub(1))
    }

    /// Keeps a message until it can be logged.
    /// Returns the bytes that it takes.
    pub fn keep_aside(&mut self, source: Rank, message: &Message, payload: &[u8]) -> u64 {
        if active(Mutation::KeepNothingAside) {
            return 0;
        }
        self.last.insert(source, message.ssn);
        self.aside.push_back(Aside { source, message: *message, payload: payload.into() });
        payload.len() as u64
    }
}
