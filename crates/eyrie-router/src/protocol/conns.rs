//! The proven connections of ranks. A rank has at most one of each stream. Decides nothing.

use super::output::ConnId;
use super::receipts::Unreceived;
use eyrie_wire::data::StreamKind;
use eyrie_wire::{Rank, RankInstance};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// A proven connection.
pub struct Conn {
    pub instance: RankInstance,
    pub stream: StreamKind,
    /// Whether files can be passed; if not, payloads go in pieces on the stream.
    pub passes_files: bool,
    /// Of a sender: the segments that it may fill. Of a receiver: those whose files it has, oldest
    /// first.
    pub segments: VecDeque<u32>,
    /// Frames of this connection that are logged, and those that its rank does not know of yet.
    pub frames: u64,
    pub unacknowledged: u64,
    pub unacknowledged_bytes: usize,
    /// The messages of a sender that its receivers have not received yet.
    pub unreceived: Unreceived,
}

impl Conn {
    pub fn new(instance: RankInstance, stream: StreamKind, passes_files: bool) -> Conn {
        Conn {
            instance,
            stream,
            passes_files,
            segments: VecDeque::new(),
            frames: 0,
            unacknowledged: 0,
            unacknowledged_bytes: 0,
            unreceived: Unreceived::default(),
        }
    }

    /// Whether frames were not acknowledged to its sender yet.
    pub fn awaits_acknowledgement(&self) -> bool {
        self.unreceived.acknowledged < self.frames
    }

    /// Counts a frame of `len` bytes; `whole`: it is acknowledged by itself.
    pub fn count(&mut self, len: usize, whole: bool) {
        self.frames += u64::from(whole);
        self.unacknowledged += u64::from(whole);
        self.unacknowledged_bytes += len;
        self.unreceived.count(len, whole);
    }
}

/// The connections that a rank has.
#[derive(Clone, Copy, Default)]
struct OfRank {
    delivery: Option<ConnId>,
    send: Option<ConnId>,
}

/// All connections of a router.
pub struct Conns {
    all: FxHashMap<ConnId, Conn>,
    ranks: Vec<OfRank>,
}

impl Conns {
    /// None yet, of this many ranks.
    pub fn new(ranks: usize) -> Conns {
        Conns { all: FxHashMap::default(), ranks: vec![OfRank::default(); ranks] }
    }

    fn slot(&mut self, rank: Rank, stream: StreamKind) -> Option<&mut Option<ConnId>> {
        let of_rank = self.ranks.get_mut(rank.index())?;
        Some(match stream {
            StreamKind::Delivery => &mut of_rank.delivery,
            StreamKind::Send => &mut of_rank.send,
        })
    }

    /// Adds a connection of its rank; returns the one that it replaces.
    pub fn add(&mut self, id: ConnId, conn: Conn) -> Option<ConnId> {
        let old = self.slot(conn.instance.rank, conn.stream)?.replace(id);
        self.all.insert(id, conn);
        old
    }

    pub fn get(&self, id: ConnId) -> Option<&Conn> {
        self.all.get(&id)
    }

    pub fn get_mut(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.all.get_mut(&id)
    }

    /// Removes a connection. Its rank has it until [`Conns::leave`].
    pub fn remove(&mut self, id: ConnId) -> Option<Conn> {
        self.all.remove(&id)
    }

    /// The rank does not have this connection any more. False: it has another one already.
    pub fn leave(&mut self, rank: Rank, stream: StreamKind, id: ConnId) -> bool {
        let slot = self.slot(rank, stream).filter(|slot| **slot == Some(id));
        slot.is_some_and(|slot| slot.take().is_some())
    }

    /// The connections of a rank, which does not have them any more.
    pub fn take(&mut self, rank: Rank) -> impl Iterator<Item = ConnId> {
        let taken = self.ranks.get_mut(rank.index()).map(std::mem::take).unwrap_or_default();
        [taken.delivery, taken.send].into_iter().flatten()
    }

    /// The connection on which a rank receives.
    pub fn delivery(&self, rank: Rank) -> Option<ConnId> {
        self.ranks.get(rank.index())?.delivery
    }

    /// The connection on which a rank sends.
    pub fn send(&self, rank: Rank) -> Option<ConnId> {
        self.ranks.get(rank.index())?.send
    }

    /// The connections on which ranks send, in the order of the ranks.
    pub fn of_senders(&self) -> Vec<ConnId> {
        self.ranks.iter().filter_map(|of_rank| of_rank.send).collect()
    }

    /// The connections of one kind, also those that their ranks have replaced.
    pub fn of_kind(&mut self, stream: StreamKind) -> impl Iterator<Item = (ConnId, &mut Conn)> {
        let all = self.all.iter_mut().map(|(id, conn)| (*id, conn));
        all.filter(move |(_, conn)| conn.stream == stream)
    }
}
