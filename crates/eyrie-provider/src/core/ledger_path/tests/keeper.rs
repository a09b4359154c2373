//! The keeper of a test's ledgers: it prepares regions, grants room late, and releases what images
//! have. Where it is strict it grants room only to a rank that no other one can give room, as the
//! real one beyond its bound.

use crate::core::mutation::{active, Mutation};
use eyrie_ledger::figures;
use eyrie_ledger::heap::Heap;
use eyrie_ledger::layout::{Channel, Layout, PAGE};
use eyrie_ledger::order::OrderReader;
use eyrie_ledger::region;
use eyrie_wire::RankInstance;
use std::rc::Rc;

/// Attempts for which a rank waits for room at most.
const MOST_WAITS: u32 = 20;

pub struct Keeper {
    pub heaps: Vec<Rc<Heap>>,
    bytes: u64,
    granted: Vec<u64>,
    is_strict: bool,
    waits: Vec<u32>,
    /// Of the counting image of each rank: its clock, and the messages of each source that it has.
    imaged: Vec<(u64, Vec<u64>)>,
}

impl Keeper {
    /// Of regions of so many bytes, of which each rank gets some.
    pub fn new(bytes: u64, granted: Vec<u64>, is_strict: bool) -> Keeper {
        let ranks = granted.len();
        Keeper {
            heaps: (0..ranks).map(|_| Rc::new(Heap::new(bytes))).collect(),
            bytes,
            granted,
            is_strict,
            waits: vec![0; ranks],
            imaged: vec![(0, vec![0; ranks]); ranks],
        }
    }

    pub fn layout(&self, rank: usize) -> Layout {
        Layout::new(rank as u32, self.heaps.len() as u32, self.bytes)
    }

    /// Lets an incarnation in.
    pub fn admit(&self, instance: RankInstance) {
        let rank = instance.rank.index();
        let heap = &self.heaps[rank];
        let layout = self.layout(rank);
        region::prepare(&**heap, &layout, instance.incarnation.0, self.granted[rank]);
    }

    /// A rank waits; it may get room now, and does at last. `is_free`: a rank is in no call.
    pub fn give_room(&mut self, rank: usize, at_once: bool, is_free: impl Fn(usize) -> bool) {
        if self.is_strict && (0..self.heaps.len()).any(|to| is_free(to) && self.owes(rank, to)) {
            return;
        }
        let heap = &self.heaps[rank];
        let layout = self.layout(rank);
        let wanted = region::wanted(&**heap, &layout);
        if wanted == 0 {
            return;
        }
        self.waits[rank] += 1;
        if at_once || self.waits[rank] > MOST_WAITS {
            self.waits[rank] = 0;
            self.granted[rank] += wanted.next_multiple_of(PAGE);
            assert!(self.granted[rank] < self.bytes, "too little memory for this test");
            region::grant(&**heap, &layout, self.granted[rank]);
        }
    }

    /// Whether a rank has yet to receive, and to record, something of another one.
    fn owes(&self, source: usize, to: usize) -> bool {
        let heap = &self.heaps[source];
        let layout = self.layout(source);
        let sent = figures::of(&**heap, &layout, Channel::Rank(to as u32)).newest;
        let (clock, counts) = &self.imaged[to];
        let mut received = counts[source];
        let mut order = OrderReader::open(&*self.heaps[to], self.layout(to), *clock).unwrap();
        while let Some(determinant) = order.next().unwrap() {
            let of = determinant.shown.iter().filter(|(from, _)| *from == source as u32);
            received += of.map(|(_, count)| u64::from(*count)).sum::<u64>();
        }
        sent > received
    }

    /// An image of a rank counts: releases what it has.
    pub fn truncate(&mut self, rank: usize, clock: u64, rsn: u64, observed: u64) {
        let heap = self.heaps[rank].clone();
        let layout = self.layout(rank);
        let (before, counts) = &mut self.imaged[rank];
        assert!(clock >= *before, "an image of clock {clock} after one of {before}");
        let mut order = OrderReader::open(&*heap, layout, *before).unwrap();
        while let Some(determinant) = order.next_until(clock).unwrap() {
            for (source, count) in determinant.shown {
                counts[*source as usize] += u64::from(*count);
            }
        }
        *before = clock;
        assert_eq!(counts.iter().sum::<u64>(), rsn, "messages of an image of rank {rank}");
        let more = u64::from(active(Mutation::ReleaseTooMuch));
        for (source, count) in counts.clone().into_iter().enumerate() {
            let to = Channel::Rank(rank as u32);
            region::release(&*self.heaps[source], &self.layout(source), to, count + more);
        }
        region::release(&*heap, &layout, Channel::Order, clock + more);
        region::release(&*heap, &layout, Channel::Observed, observed + more);
    }
}
