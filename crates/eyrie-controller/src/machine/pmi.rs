//! The job-wide part of PMI: what the ranks have put, and which barriers the job has passed.

use super::io::{Command, ToPeer};
use eyrie_wire::control::ToAgent;
use eyrie_wire::entries::{Entries, Entry};
use eyrie_wire::{NodeId, Rank};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most bytes of entries in one message to the agents: a job of many ranks sends several.
const PIECE_BYTES: usize = 1 << 20;

/// Keys and barriers of all ranks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Pmi {
    /// Highest barrier that each rank has arrived at, in any of its incarnations.
    arrived: Vec<u32>,
    /// How many ranks have arrived at each number, and at none beyond it.
    at: BTreeMap<u32, u32>,
    passed: u32,
    /// All that was put, for nodes that come later.
    entries: Entries,
    /// Put since the last release.
    fresh: Entries,
}

impl Pmi {
    pub fn new(ranks: u32) -> Pmi {
        let at = BTreeMap::from([(0, ranks)]);
        let arrived = vec![0; ranks as usize];
        let (entries, fresh) = Default::default();
        Pmi { arrived, at, passed: 0, entries, fresh }
    }

    /// Barriers that the job has passed.
    pub fn passed(&self) -> u32 {
        self.passed
    }

    pub fn put(&mut self, rank: Rank, key: String, value: String) {
        if let Some(entry) = self.entries.put(rank, key, value) {
            self.fresh.add(entry);
        }
    }

    /// A rank has arrived at its barrier number `barrier`. When the job passes one: the entries
    /// that the nodes must know first, and with the last of them the number of barriers passed.
    pub fn arrive(&mut self, rank: Rank, barrier: u32) -> Vec<Command> {
        let Some(arrived) = self.arrived.get_mut(rank.index()) else { return Vec::new() };
        if barrier <= *arrived {
            return Vec::new();
        }
        let before = std::mem::replace(arrived, barrier);
        *self.at.entry(barrier).or_default() += 1;
        if let Some(left) = self.at.get_mut(&before) {
            *left -= 1;
            if *left == 0 {
                self.at.remove(&before);
            }
        }
        let all = self.at.keys().next().copied().unwrap_or(0);
        if all <= self.passed {
            return Vec::new();
        }
        let before = std::mem::replace(&mut self.passed, all);
        messages(None, &std::mem::take(&mut self.fresh), before, all)
    }

    /// What a node, or all of them, must know of what was before they came.
    pub fn so_far(&self, node: Option<NodeId>) -> Vec<Command> {
        match self.passed {
            0 => Vec::new(),
            passed => messages(node, &self.entries, 0, passed),
        }
    }
}

/// Entries in pieces that one message has room for.
fn pieces(entries: &Entries) -> Vec<Vec<Entry>> {
    let mut pieces = Vec::<Vec<Entry>>::new();
    let mut room = 0;
    for entry in entries.iter() {
        let bytes = entry.most_bytes();
        match pieces.last_mut().filter(|_| bytes <= room) {
            Some(piece) => piece.push(entry),
            None => {
                pieces.push(vec![entry]);
                room = PIECE_BYTES;
            }
        }
        room = room.saturating_sub(bytes);
    }
    pieces
}

/// The entries, in pieces. The number of barriers goes with the last one.
fn messages(node: Option<NodeId>, entries: &Entries, before: u32, passed: u32) -> Vec<Command> {
    let mut pieces = pieces(entries);
    let last = pieces.pop().unwrap_or_default();
    let early = pieces.into_iter();
    let all = early.map(|entries| (entries, before)).chain([(last, passed)]);
    let message = |(entries, barriers)| {
        let pmi = ToAgent::Pmi { entries, barriers };
        Command::Send(node.map_or(ToPeer::Agents(pmi.clone()), |node| ToPeer::Agent(node, pmi)))
    };
    all.map(message).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_transport::frame;

    #[test]
    fn the_last_rank_opens_the_barrier_and_a_later_incarnation_does_not_close_it() {
        let mut pmi = Pmi::new(2);
        let opened = |commands: Vec<Command>| {
            commands.first().map(|command| match command {
                Command::Send(ToPeer::Agents(ToAgent::Pmi { entries, barriers })) => {
                    (entries.len(), *barriers)
                }
                other => panic!("{other:?}"),
            })
        };
        pmi.put(Rank(0), "a".into(), "1".into());
        assert_eq!(opened(pmi.arrive(Rank(0), 1)), None);
        // Rank 0 dies at the barrier and arrives again.
        assert_eq!(opened(pmi.arrive(Rank(0), 1)), None);
        pmi.put(Rank(1), "b".into(), "2".into());
        assert_eq!(opened(pmi.arrive(Rank(1), 1)), Some((2, 1)));
        assert_eq!(opened(pmi.arrive(Rank(0), 1)), None);
        assert_eq!(opened(pmi.arrive(Rank(7), 1)), None);
        assert_eq!(opened(pmi.arrive(Rank(1), 2)), None);
        assert_eq!(opened(pmi.arrive(Rank(0), 2)), Some((0, 2)));
        // A node that comes later hears all of it.
        let all: usize = (pmi.so_far(Some(NodeId(3))).iter())
            .map(|command| match command {
                Command::Send(ToPeer::Agent(NodeId(3), ToAgent::Pmi { entries, .. })) => {
                    entries.len()
                }
                other => panic!("{other:?}"),
            })
            .sum();
        assert_eq!((all, opened(pmi.so_far(None)).map(|(_, passed)| passed)), (2, Some(2)));
    }

    #[test]
    fn entries_of_thousands_of_ranks_go_in_frames_within_the_bound() {
        const RANKS: u32 = 20_000;
        let mut pmi = Pmi::new(RANKS);
        let mut commands = Vec::new();
        for rank in 0..RANKS {
            // As long as MPICH may make them.
            pmi.put(Rank(rank), format!("-bc-{rank}-{}", "k".repeat(50)), "v".repeat(1024));
            commands.extend(pmi.arrive(Rank(rank), 1));
        }
        assert!(commands.len() > 10, "{} pieces", commands.len());
        let mut entries = 0;
        let last = commands.len() - 1;
        for (i, command) in commands.into_iter().enumerate() {
            let Command::Send(ToPeer::Agents(ToAgent::Pmi { entries: piece, barriers })) = command
            else {
                panic!("{command:?}")
            };
            entries += piece.len();
            // No rank goes on before all entries are there.
            assert_eq!(barriers, u32::from(i == last));
            let mut bytes = Vec::new();
            frame::write(&mut bytes, &ToAgent::Pmi { entries: piece, barriers }).unwrap();
            assert!(bytes.len() <= PIECE_BYTES + 64, "{} bytes", bytes.len());
        }
        assert_eq!(entries, RANKS as usize);
    }
}
