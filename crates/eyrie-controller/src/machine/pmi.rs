//! The job-wide part of PMI: what the ranks have put, and which barriers the job has passed. Other
//! domains say both of their ranks by themselves.

use super::io::{Command, ToPeer};
use super::ranks::Ranks;
use eyrie_wire::control::ToAgent;
use eyrie_wire::domains::{Domain, DomainSays};
use eyrie_wire::entries::{Entries, Entry};
use eyrie_wire::{DomainId, NodeId, Rank};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most bytes of entries in one message to the agents: a job of many ranks sends several.
const PIECE_BYTES: usize = 1 << 20;

/// Keys and barriers of all ranks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Pmi {
    /// Highest barrier that each rank has arrived at, in any of its incarnations.
    arrived: Vec<u32>,
    /// How many ranks of this domain have arrived at each number, and at none beyond it.
    at: BTreeMap<u32, u32>,
    /// The barrier that the ranks of each other domain have arrived at; none of one without ranks.
    elsewhere: BTreeMap<DomainId, u32>,
    /// There are other domains, with ranks or without: they are told what is put here.
    is_shared: bool,
    passed: u32,
    /// All that was put, for nodes that come later.
    entries: Entries,
    /// Put since the last release.
    fresh: Entries,
    /// Put by ranks of this domain since the others were told of an arrival.
    untold: Entries,
    /// The last barrier that other domains were told of.
    told: u32,
    /// Keys that were put in other domains, but for those of addresses.
    keys_elsewhere: BTreeMap<String, DomainId>,
}

impl Pmi {
    /// `others`: the other domains that have ranks, which are not of these.
    pub fn new(ranks: &Ranks, others: impl IntoIterator<Item = DomainId>) -> Pmi {
        let elsewhere: BTreeMap<_, _> = others.into_iter().map(|domain| (domain, 0)).collect();
        Pmi {
            arrived: vec![0; ranks.len()],
            at: [(0, ranks.here())].into_iter().filter(|(_, ranks)| *ranks > 0).collect(),
            is_shared: !elsewhere.is_empty(),
            elsewhere,
            passed: 0,
            entries: Entries::default(),
            fresh: Entries::default(),
            untold: Entries::default(),
            told: 0,
            keys_elsewhere: BTreeMap::new(),
        }
    }

    /// Barriers that the job has passed.
    pub fn passed(&self) -> u32 {
        self.passed
    }

    pub fn put(&mut self, rank: Rank, key: String, value: String) {
        if let Some(entry) = self.entries.put(rank, key, value) {
            if self.is_shared {
                self.untold.add(entry.clone());
            }
            self.fresh.add(entry);
        }
    }

    /// A rank of another domain has put this. False, and nothing is done: it has a key that a rank
    /// of another domain, or of this one, has.
    pub fn put_elsewhere(&mut self, domain: DomainId, entry: Entry) -> bool {
        let is_its_own = |(key, value): &(String, String)| match self.entries.get(key) {
            Some(known) if known != *value => self.keys_elsewhere.get(key) == Some(&domain),
            _ => true,
        };
        if !entry.texts().iter().all(is_its_own) {
            return false;
        }
        if let Entry::Text { key, .. } = &entry {
            self.keys_elsewhere.entry(key.clone()).or_insert(domain);
        }
        self.entries.add(entry.clone());
        self.fresh.add(entry);
        true
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
        self.take_from(before);
        self.release()
    }

    /// All ranks of another domain have arrived at this barrier. As [`Pmi::arrive`].
    pub fn arrive_elsewhere(&mut self, domain: DomainId, barrier: u32) -> Vec<Command> {
        let Some(arrived) = self.elsewhere.get_mut(&domain) else { return Vec::new() };
        *arrived = barrier.max(*arrived);
        self.release()
    }

    /// The last barrier that all ranks of this domain have arrived at; `None`: it has no ranks.
    fn here(&self) -> Option<u32> {
        self.at.keys().next().copied()
    }

    /// As [`Pmi::here`], as other domains are told.
    pub fn arrived(&self) -> u32 {
        self.here().unwrap_or(0)
    }

    /// The last barrier that other domains were told of.
    pub fn told(&self) -> u32 {
        self.told
    }

    /// A rank of this domain goes to another one. The barrier that it has arrived at.
    pub fn leave(&mut self, rank: Rank) -> u32 {
        let arrived = self.arrived.get(rank.index()).copied().unwrap_or(0);
        self.take_from(arrived);
        arrived
    }

    fn take_from(&mut self, barrier: u32) {
        if let Some(left) = self.at.get_mut(&barrier) {
            *left -= 1;
            if *left == 0 {
                self.at.remove(&barrier);
            }
        }
    }

    /// All ranks of this domain have left it ([`Pmi::leave`]) and had arrived at this barrier.
    /// Until another one has taken them they count like those of a third one, of this number.
    pub fn leave_all(&mut self, own: DomainId, arrived: u32) {
        self.elsewhere.insert(own, arrived);
        for entry in self.entries.iter() {
            if let Entry::Text { key, .. } = entry {
                self.keys_elsewhere.entry(key).or_insert(own);
            }
        }
    }

    /// What ranks of this domain have put and other domains were not told. It is the business of
    /// the one that takes them.
    pub fn take_entries(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.untold).iter().collect()
    }

    /// A rank that is taken from another domain has put this, and no other domain was told.
    pub fn put_of_taken(&mut self, from: DomainId, entry: Entry) {
        if self.put_elsewhere(from, entry.clone()) {
            self.untold.add(entry);
        }
    }

    /// The ranks of another domain are those of this one, and have arrived at these barriers; all
    /// domains know it of the barrier `known`, and what they had put before. As [`Pmi::arrive`].
    pub fn take(&mut self, from: DomainId, ranks: &[(Rank, u32)], known: u32) -> Vec<Command> {
        for (rank, barrier) in ranks {
            if let Some(arrived) = self.arrived.get_mut(rank.index()) {
                *arrived = *barrier;
                *self.at.entry(*barrier).or_default() += 1;
            }
        }
        // They may have to arrive yet where the others have.
        self.told = self.told.min(self.arrived()).min(known);
        self.elsewhere.remove(&from);
        self.keys_elsewhere.retain(|_, domain| *domain != from);
        self.release()
    }

    /// The ranks of a domain are those of another one, which have arrived at this barrier. That one
    /// may have had no ranks before. As [`Pmi::arrive`].
    pub fn taken(&mut self, by: DomainId, from: DomainId, barrier: u32) -> Vec<Command> {
        let arrived = self.elsewhere.entry(by).or_insert(barrier);
        *arrived = barrier.min(*arrived);
        self.elsewhere.remove(&from);
        let theirs = self.keys_elsewhere.values_mut().filter(|domain| **domain == from);
        theirs.for_each(|domain| *domain = by);
        self.release()
    }

    /// Whether the ranks of this domain wait at a barrier for those of another one.
    pub fn waits_for(&self, domain: DomainId) -> bool {
        self.elsewhere.get(&domain).is_some_and(|arrived| *arrived < self.arrived())
    }

    /// What other domains are to be told, when all ranks of this one have arrived at a barrier:
    /// what these have put, and then the barrier.
    pub fn take_untold(&mut self) -> Vec<DomainSays> {
        let barrier = self.arrived();
        if !self.is_shared || barrier <= self.told {
            return Vec::new();
        }
        self.told = barrier;
        let untold = pieces(&std::mem::take(&mut self.untold));
        let arrived = DomainSays::Arrived { barrier };
        untold.into_iter().map(DomainSays::Put).chain([arrived]).collect()
    }

    /// What other domains were told of the ranks of this one, for one that is new. What they are
    /// told next may be a part of it.
    pub fn told_so_far(&self, own: &Domain) -> Vec<DomainSays> {
        if own.ranks.is_empty() {
            return Vec::new();
        }
        let mut entries = Entries::default();
        for entry in self.entries.iter() {
            match entry {
                Entry::Text { ref key, .. } if self.keys_elsewhere.contains_key(key) => {}
                Entry::Text { .. } => entries.add(entry),
                Entry::Addresses { pattern, first, last } => {
                    for (from, to) in &own.ranks {
                        let (first, last) = (first.max(*from), last.min(*to));
                        if first <= last {
                            entries.add(Entry::Addresses { pattern: pattern.clone(), first, last });
                        }
                    }
                }
            }
        }
        let arrived = DomainSays::Arrived { barrier: self.told };
        let arrived = Some(arrived).filter(|_| self.told > 0);
        pieces(&entries).into_iter().map(DomainSays::Put).chain(arrived).collect()
    }

    fn release(&mut self) -> Vec<Command> {
        let elsewhere = self.elsewhere.values().copied();
        let all = elsewhere.chain(self.here()).min().unwrap_or(0);
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
    use crate::machine::Config;
    use eyrie_transport::frame;

    fn ranks(ranks: u32) -> Ranks {
        let start = vec![NodeId(0); ranks as usize];
        Ranks::new(&Config { ranks, start, ..Config::of_one_rank() })
    }

    #[test]
    fn the_last_rank_opens_the_barrier_and_a_later_incarnation_does_not_close_it() {
        let mut pmi = Pmi::new(&ranks(2), []);
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

    /// Three domains: this one has two ranks, which have arrived at the second barrier.
    fn of_three() -> Pmi {
        let mut pmi = Pmi::new(&ranks(2), [1, 2].map(DomainId));
        for barrier in 1..3 {
            (0..2).for_each(|rank| drop(pmi.arrive(Rank(rank), barrier)));
            pmi.take_untold();
        }
        (1..3).for_each(|domain| drop(pmi.arrive_elsewhere(DomainId(domain), 1)));
        assert_eq!((pmi.passed(), pmi.arrived()), (1, 2));
        pmi
    }

    #[test]
    fn ranks_that_come_from_another_domain_are_waited_for_and_told_of_again() {
        let mut pmi = of_three();
        // Rank 1 goes to another domain and comes back: it stands for a rank of another one.
        assert_eq!(pmi.leave(Rank(1)), 2);
        assert!(pmi.take(DomainId(1), &[(Rank(1), 1)], 1).is_empty());
        assert_eq!(pmi.arrived(), 1);
        assert!(pmi.arrive_elsewhere(DomainId(2), 2).is_empty(), "rank 1 has not arrived");
        assert!(!pmi.arrive(Rank(1), 2).is_empty());
        assert_eq!(pmi.take_untold(), [DomainSays::Arrived { barrier: 2 }], "once more");
    }

    #[test]
    fn what_another_domain_says_counts_for_the_ranks_that_it_has_taken() {
        let mut pmi = of_three();
        assert!(pmi.arrive_elsewhere(DomainId(2), 2).is_empty(), "domain 1 has not arrived");
        assert!(pmi.taken(DomainId(2), DomainId(1), 1).is_empty(), "nor its ranks in domain 2");
        assert!(!pmi.arrive_elsewhere(DomainId(2), 2).is_empty());
        // One whose own ranks have gone waits for nothing here.
        Rank::first(2).for_each(|rank| {
            pmi.leave(rank);
        });
        assert_eq!((pmi.here(), pmi.waits_for(DomainId(2))), (None, false));
        assert!(!pmi.arrive_elsewhere(DomainId(2), 3).is_empty());
    }

    #[test]
    fn ranks_that_have_left_are_waited_for_and_come_back() {
        let own = DomainId(0);
        let mut pmi = of_three();
        pmi.put(Rank(0), "k".into(), "v".into());
        Rank::first(2).for_each(|rank| {
            pmi.leave(rank);
        });
        pmi.leave_all(own, 2);
        assert_eq!(pmi.take_entries().len(), 1);
        // Domain 1 has ranks of its own, and has not taken these.
        pmi.arrive_elsewhere(DomainId(2), 3);
        pmi.arrive_elsewhere(DomainId(1), 3);
        assert_eq!(pmi.passed(), 2, "the ranks that have left have arrived at no more");
        pmi.taken(DomainId(1), own, 2);
        assert_eq!(pmi.passed(), 2);
        let entry = |value: &str| Entry::Text { key: "k".into(), value: value.into() };
        assert!(pmi.put_elsewhere(DomainId(1), entry("new")), "their key is domain 1's");
        assert!(!pmi.put_elsewhere(DomainId(2), entry("other")));
        // All of domain 1 come here, with one more.
        pmi.arrive_elsewhere(DomainId(1), 3);
        assert_eq!(pmi.passed(), 3);
        pmi.take(DomainId(1), &[(Rank(0), 3), (Rank(1), 4)], 3);
        assert_eq!((pmi.arrived(), pmi.passed()), (3, 3));
        pmi.arrive_elsewhere(DomainId(2), 4);
        assert_eq!(pmi.passed(), 3);
        assert!(!pmi.arrive(Rank(0), 4).is_empty());
        assert_eq!(pmi.take_untold(), [DomainSays::Arrived { barrier: 4 }]);
        assert!(!pmi.put_elsewhere(DomainId(1), entry("late")), "it is this domain's again");
        // And another domain, which had none left, takes those of domain 2.
        pmi.taken(DomainId(1), DomainId(2), 4);
        Rank::first(2).for_each(|rank| drop(pmi.arrive(rank, 5)));
        assert_eq!(pmi.passed(), 4);
        assert!(!pmi.arrive_elsewhere(DomainId(1), 5).is_empty());
    }

    #[test]
    fn a_domain_without_ranks_is_told_as_well() {
        let mut pmi = of_three();
        for domain in [1, 2].map(DomainId) {
            pmi.take(domain, &[], 2);
        }
        pmi.put(Rank(0), "late".into(), "v".into());
        (0..2).for_each(|rank| drop(pmi.arrive(Rank(rank), 3)));
        let told = pmi.take_untold();
        assert!(matches!(told[..], [DomainSays::Put(_), DomainSays::Arrived { barrier: 3 }]));
    }

    #[test]
    fn entries_of_thousands_of_ranks_go_in_frames_within_the_bound() {
        const RANKS: u32 = 20_000;
        let mut pmi = Pmi::new(&ranks(RANKS), []);
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
