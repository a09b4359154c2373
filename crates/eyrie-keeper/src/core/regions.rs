//! The regions of all ranks: the keeper's half of each of them, and what can be summed up over
//! them. What lies in a region was written by its rank and may be nonsense. Decides nothing.

use eyrie_ledger::figures::{self, Figures};
use eyrie_ledger::layout::{Channel, Layout};
use eyrie_ledger::memory::Memory;
use eyrie_ledger::region;
use eyrie_wire::traffic::{PairSent, Sent};
use eyrie_wire::Rank;

/// Bytes that a message takes in the ledger besides its payload.
const ENTRY: u64 = 64;

/// The region of each rank.
pub struct Regions<M> {
    all: Vec<(M, Layout)>,
}

impl<M: Memory> Regions<M> {
    /// `memories`: one for each rank of the job, of `bytes` bytes.
    pub fn new(memories: Vec<M>, bytes: u64) -> Regions<M> {
        let ranks = memories.len() as u32;
        let layouts = (0..ranks).map(|rank| Layout::new(rank, ranks, bytes));
        Regions { all: memories.into_iter().zip(layouts).collect() }
    }

    pub fn ranks(&self) -> impl Iterator<Item = Rank> {
        Rank::first(self.all.len() as u32)
    }

    pub fn count(&self) -> usize {
        self.all.len()
    }

    pub fn has(&self, rank: Rank) -> bool {
        rank.index() < self.all.len()
    }

    /// The region of a rank.
    pub fn of(&self, rank: Rank) -> (&M, &Layout) {
        let (memory, layout) = &self.all[rank.index()];
        (memory, layout)
    }

    /// Bytes of extents that the region of a rank has ever used.
    pub fn used(&self, rank: Rank) -> u64 {
        let (memory, layout) = self.of(rank);
        region::used(memory, layout)
    }

    /// ssn of the newest message of a rank to another one.
    pub fn newest(&self, rank: Rank, to: Rank) -> u64 {
        self.figures(rank, Channel::Rank(to.0)).newest
    }

    /// Up to which ssn the messages of a rank to another one are released.
    pub fn released(&self, rank: Rank, to: Rank) -> u64 {
        let (memory, layout) = self.of(rank);
        region::released(memory, layout, Channel::Rank(to.0))
    }

    /// Bytes that the channels of a region need.
    pub fn needed(&self, rank: Rank) -> u64 {
        let to_ranks = self.ranks().map(|to| Channel::Rank(to.0));
        let channels = to_ranks.chain([Channel::Order, Channel::Observed]);
        channels.map(|channel| self.needed_by(rank, channel)).fold(0, u64::saturating_add)
    }

    /// Bytes that are needed for a receiver: messages to it, its order, and what it has observed.
    pub fn needed_for(&self, receiver: Rank) -> u64 {
        let to = Channel::Rank(receiver.0);
        let messages = self.ranks().map(|source| self.needed_by(source, to));
        let own = [Channel::Order, Channel::Observed].map(|own| self.needed_by(receiver, own));
        messages.chain(own).fold(0, u64::saturating_add)
    }

    /// Bytes that a channel keeps and that are not released. A rank gives memory back when it
    /// needs some, so that a channel can keep more. They are estimated: a channel does not say how
    /// long its messages are.
    pub fn needed_by(&self, rank: Rank, channel: Channel) -> u64 {
        let Figures { kept, newest, payload } = self.figures(rank, channel);
        let (memory, layout) = self.of(rank);
        let released = region::released(memory, layout, channel);
        let last = match channel {
            Channel::Rank(_) => newest,
            Channel::Observed => payload,
            Channel::Order => return kept,
        };
        let first = figures::first(memory, layout, channel);
        let of = last.saturating_sub(first) + 1;
        let part = last.saturating_sub(released);
        if part >= of {
            return kept;
        }
        (u128::from(kept) * u128::from(part) / u128::from(of)) as u64
    }

    /// Bytes that the messages to a receiver, and what it has observed, have taken since the start.
    pub fn sent_to(&self, receiver: Rank) -> u64 {
        let messages = self.ranks().map(|source| {
            let figures = self.figures(source, Channel::Rank(receiver.0));
            figures.payload.saturating_add(figures.newest.saturating_mul(ENTRY))
        });
        let observed = self.figures(receiver, Channel::Observed).payload;
        messages.fold(observed, u64::saturating_add)
    }

    /// Releases all that a rank has observed. Returns how many bytes these are.
    pub fn release_observed(&self, rank: Rank) -> u64 {
        let (memory, layout) = self.of(rank);
        let end = self.figures(rank, Channel::Observed).payload;
        let before = region::released(memory, layout, Channel::Observed);
        region::release(memory, layout, Channel::Observed, end);
        end.saturating_sub(before)
    }

    /// Messages, and bytes of their payload, since the start.
    pub fn sent(&self) -> (u64, u64) {
        let mut sent = (0u64, 0u64);
        for source in self.ranks() {
            for to in self.ranks() {
                let Figures { newest, payload, .. } = self.figures(source, Channel::Rank(to.0));
                sent = (sent.0.saturating_add(newest), sent.1.saturating_add(payload));
            }
        }
        sent
    }

    /// What each rank has sent to each other one since the start, where it has sent something.
    pub fn traffic(&self) -> Vec<PairSent> {
        let mut traffic = Vec::new();
        for from in self.ranks() {
            let of_pair = |to: Rank| {
                let Figures { newest, payload, .. } = self.figures(from, Channel::Rank(to.0));
                PairSent { from, to, sent: Sent { messages: newest, bytes: payload } }
            };
            traffic.extend(self.ranks().map(of_pair).filter(|pair| pair.sent.messages > 0));
        }
        traffic
    }

    fn figures(&self, rank: Rank, channel: Channel) -> Figures {
        let (memory, layout) = self.of(rank);
        figures::of(memory, layout, channel)
    }
}
