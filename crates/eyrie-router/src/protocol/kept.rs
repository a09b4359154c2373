//! The messages that this router keeps: the logs of the ranks whose primary router it is. Decides
//! nothing.

use super::log::Log;
use crate::space::{Space, Store};
use eyrie_wire::data::Message;
use eyrie_wire::traffic::{PairSent, Sent};
use eyrie_wire::Rank;
use std::collections::BTreeSet;
use std::io;

/// The logs of a router.
pub struct Kept {
    /// For each rank of the job whether this is its primary router.
    is_primary: Vec<bool>,
    /// Those that it was the primary router of.
    left: BTreeSet<Rank>,
    /// This is the gateway of a domain: the ranks whose primary router it is are in others.
    is_gateway: bool,
    /// Empty ones for the ranks that have another primary router.
    logs: Vec<Log>,
    /// Bytes of frames in memory.
    memory: u64,
    /// Messages and bytes logged since the start.
    messages: u64,
    bytes: u64,
    /// Ranks with new messages.
    dirty: Vec<Rank>,
}

impl Kept {
    /// Nothing yet; `is_primary`: for each rank of the job whether this is its primary router.
    pub fn new(is_primary: Vec<bool>) -> Kept {
        let count = is_primary.len() as u32;
        let log = |here: &bool| Log::new(if *here { count } else { 0 });
        let logs = is_primary.iter().map(log).collect();
        Kept {
            is_primary,
            left: BTreeSet::new(),
            is_gateway: false,
            logs,
            memory: 0,
            messages: 0,
            bytes: 0,
            dirty: Vec::new(),
        }
    }

    /// For each rank of the job whether this is its primary router.
    pub fn is_primary(&self) -> &[bool] {
        &self.is_primary
    }

    /// The ranks whose primary router this is are in other domains.
    pub fn become_gateway(&mut self) {
        self.is_gateway = true;
    }

    pub fn is_gateway(&self) -> bool {
        self.is_gateway
    }

    /// Whether the rank is in another domain: no image of it is taken here, and what it does is
    /// nothing to the controller.
    pub fn is_elsewhere(&self, rank: Rank) -> bool {
        self.is_gateway && self.is_primary_of(rank)
    }

    pub fn is_primary_of(&self, rank: Rank) -> bool {
        self.is_primary.get(rank.index()).copied().unwrap_or(false)
    }

    /// This is the primary router of the rank as well, whose log is empty. False: it is already.
    pub fn serve(&mut self, rank: Rank) -> bool {
        if self.is_primary_of(rank) {
            return false;
        }
        self.is_primary[rank.index()] = true;
        self.left.remove(&rank);
        self.logs[rank.index()] = Log::new(self.is_primary.len() as u32);
        true
    }

    /// Another router is the primary one of the rank from now on: its log is dropped. Returns how
    /// many frames no longer name each segment.
    pub fn leave<S: Store>(&mut self, rank: Rank, space: &mut Space<S>) -> Vec<(u32, u32)> {
        let freed = self.truncate(rank, self.log(rank).newest(), space);
        self.is_primary[rank.index()] = false;
        self.left.insert(rank);
        freed
    }

    /// Another router is the primary one of the rank, and this one was, or ranks here took it for
    /// that.
    pub fn note_left(&mut self, rank: Rank) {
        self.left.insert(rank);
    }

    /// Who sends to the rank next may begin with any message.
    pub fn forget_senders(&mut self, rank: Rank) {
        self.logs[rank.index()].forget_senders();
    }

    /// Whether this was the primary router of the rank, and is no more.
    pub fn has_left(&self, rank: Rank) -> bool {
        self.left.contains(&rank)
    }

    pub fn log(&self, rank: Rank) -> &Log {
        &self.logs[rank.index()]
    }

    /// The logs of all ranks, in their order.
    pub fn logs(&self) -> impl Iterator<Item = (Rank, &Log)> {
        (0..).map(Rank).zip(&self.logs)
    }

    /// Bytes of frames in memory.
    pub fn memory(&self) -> u64 {
        self.memory
    }

    /// Messages and bytes logged since the start.
    pub fn counts(&self) -> (u64, u64) {
        (self.messages, self.bytes)
    }

    /// The log of a rank begins behind `rsn`, when each source has sent so much.
    pub fn begin_log(&mut self, rank: Rank, rsn: u64, sent: &[Sent]) {
        self.logs[rank.index()].adopt(rsn, sent);
    }

    /// What ranks have sent to those whose primary router this is or was, as far as it came here.
    pub fn traffic(&self) -> Vec<PairSent> {
        let mut traffic = Vec::new();
        for (to, log) in self.logs() {
            let pairs = (0..).map(Rank).zip(log.sent());
            let used = pairs.filter(|(_, sent)| sent.messages > 0);
            traffic.extend(used.map(|(from, sent)| PairSent { from, to, sent: *sent }));
        }
        traffic
    }

    /// Logs the next message of its sender.
    pub fn append(&mut self, source: Rank, m: &Message, payload: &[u8]) {
        let log = &mut self.logs[m.destination.index()];
        let before = log.memory();
        log.append(source, m, payload);
        self.memory += log.memory() - before;
        self.messages += 1;
        self.bytes += m.size;
        if self.dirty.last() != Some(&m.destination) {
            self.dirty.push(m.destination);
        }
    }

    /// A rank with messages that have come since it was last returned.
    pub fn next_dirty(&mut self) -> Option<Rank> {
        self.dirty.pop()
    }

    /// No rank is to be given what has come.
    pub fn forget_dirty(&mut self) {
        self.dirty.clear();
    }

    /// Truncates the log of a rank: removes its messages up to `rsn`. Returns how many frames no
    /// longer name each segment.
    pub fn truncate<S: Store>(
        &mut self,
        rank: Rank,
        rsn: u64,
        space: &mut Space<S>,
    ) -> Vec<(u32, u32)> {
        let log = &mut self.logs[rank.index()];
        let before = log.memory();
        let freed = log.truncate(rsn, space);
        self.memory -= before - log.memory();
        freed
    }

    /// Moves blocks to disk, of the largest logs first, until those in memory take at most `goal`
    /// bytes. Blocks that are still written are moved only with `also_last`, because that makes
    /// small ones.
    ///
    /// # Errors
    /// When the disk cannot be written.
    pub fn spill<S: Store>(
        &mut self,
        goal: u64,
        also_last: bool,
        space: &mut Space<S>,
    ) -> io::Result<()> {
        let mut order: Vec<usize> = (0..self.logs.len()).collect();
        order.sort_by_key(|i| std::cmp::Reverse(self.logs[*i].memory()));
        for i in order {
            while self.memory > goal {
                match self.logs[i].spill_one(space, also_last)? {
                    0 => break,
                    moved => self.memory -= moved,
                }
            }
        }
        Ok(())
    }
}
