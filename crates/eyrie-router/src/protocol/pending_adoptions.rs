//! The ranks that have not said yet to a router that has taken over what they have, and the
//! messages that are pending for them. Decides nothing.

use super::mutation::{active, Mutation};
use super::orders::RouterEvent;
use super::output::Output;
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
    /// It goes on from an image that has all that it ever received, also when it dies again before
    /// it says so.
    pub(super) moved: bool,
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
        self.died = !self.moved && !active(Mutation::AdoptTheDead);
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

/// The adoptions of a router.
pub struct Adoptions {
    /// Whether this router has taken over from a lost one.
    takes_over: bool,
    /// For each rank whose log this router does not know yet.
    ranks: Vec<Option<Adoption>>,
    /// Bytes of messages that are pending until an adoption.
    pending_bytes: u64,
}

impl Adoptions {
    /// None, of this many ranks.
    pub fn none(ranks: usize) -> Adoptions {
        Adoptions { takes_over: false, ranks: (0..ranks).map(|_| None).collect(), pending_bytes: 0 }
    }

    /// This router has taken over from a lost one: it knows the log of no rank whose primary router
    /// it is.
    pub fn take_over(&mut self, is_primary: &[bool]) {
        self.takes_over = true;
        self.ranks = is_primary.iter().map(|here| here.then(Adoption::default)).collect();
    }

    /// This router is the primary one from now on of a rank that comes from elsewhere.
    pub fn begin(&mut self, rank: Rank) {
        self.ranks[rank.index()] = Some(Adoption { moved: true, ..Adoption::default() });
    }

    /// Nothing that the lost router held is needed by this rank: it comes from elsewhere and was
    /// not adopted yet.
    pub fn needs_nothing(&mut self, rank: Rank) {
        if let Some(adoption) = self.of_mut(rank) {
            adoption.moved = true;
            adoption.died = false;
        }
    }

    /// This router has taken over from a lost gateway. A gateway acknowledges only what is safe in
    /// another domain, so the senders have all that it had, and send it again.
    pub fn take_over_nothing(&mut self) {
        self.takes_over = true;
    }

    /// Whether this router has taken over from a lost one.
    pub fn takes_over(&self) -> bool {
        self.takes_over
    }

    /// This router goes on with one that had taken over, and has adopted its ranks.
    pub fn restore(&mut self, takes_over: bool) {
        self.takes_over = takes_over;
    }

    /// The first rank that is not adopted yet.
    pub fn first(&self) -> Option<Rank> {
        self.ranks.iter().position(Option::is_some).map(|rank| Rank(rank as u32))
    }

    pub fn of(&self, rank: Rank) -> Option<&Adoption> {
        self.ranks[rank.index()].as_ref()
    }

    pub fn of_mut(&mut self, rank: Rank) -> Option<&mut Adoption> {
        self.ranks[rank.index()].as_mut()
    }

    /// The rank is adopted.
    pub fn end(&mut self, rank: Rank) {
        self.ranks[rank.index()] = None;
    }

    /// Keeps a message until it can be logged. False: its destination needs no adoption.
    pub fn keep_pending(&mut self, source: Rank, message: &Message, payload: &[u8]) -> bool {
        let Some(adoption) = &mut self.ranks[message.destination.index()] else { return false };
        self.pending_bytes += adoption.keep_pending(source, message, payload);
        true
    }

    /// This many bytes are not pending any more.
    pub fn log_pending(&mut self, bytes: usize) {
        self.pending_bytes -= bytes as u64;
    }

    /// Bytes of messages that are pending.
    pub fn pending_bytes(&self) -> u64 {
        self.pending_bytes
    }

    /// After the message `last` comes `next`: those in between are missing. If this router has
    /// taken over, they are lost for good. If not, the sender is at fault; returns what it did
    /// wrong.
    pub fn missing<F>(
        &self,
        (source, destination): (Rank, Rank),
        last: u64,
        next: u64,
        out: &mut impl Output<F>,
    ) -> &'static str {
        if self.takes_over {
            let reason = format!(
                "messages {} to {} from rank {source} to rank {destination} were lost with a \
                 router",
                last + 1,
                next - 1
            );
            out.event(RouterEvent::Fatal { reason });
        }
        "a message is missing in the sequence of its sender"
    }
}
