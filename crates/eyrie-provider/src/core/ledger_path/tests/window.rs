//! The memory of ledgers as a test's ranks have it. A kill may come before each look and each
//! store; and other ranks may make calls there, which then find a half-written ledger.

use super::world::Shared;
use eyrie_ledger::heap::{Heap, HeapHints};
use eyrie_ledger::memory::{Hints, Memory, View};
use std::rc::Rc;

/// A region, as one rank sees it.
#[derive(Clone)]
pub struct Window {
    pub heap: Rc<Heap>,
    pub world: Shared,
    /// Who looks or stores.
    pub rank: usize,
}

impl View for Window {
    fn bytes(&self) -> u64 {
        self.heap.bytes()
    }

    fn load(&self, at: u64) -> u64 {
        self.world.happens(self.rank);
        self.heap.load(at)
    }

    fn load_acquire(&self, at: u64) -> u64 {
        self.world.happens(self.rank);
        self.heap.load_acquire(at)
    }

    fn read(&self, at: u64, to: &mut [u8]) {
        self.world.happens(self.rank);
        self.heap.read(at, to);
    }

    fn fence(&self) {
        self.heap.fence();
    }
}

impl Memory for Window {
    fn store(&self, at: u64, word: u64) {
        self.world.happens(self.rank);
        self.heap.store(at, word);
    }

    fn store_release(&self, at: u64, word: u64) {
        self.world.happens(self.rank);
        self.heap.store_release(at, word);
    }

    fn write(&self, mut at: u64, mut from: &[u8]) {
        // Word by word, so that a kill may come in the middle.
        while !from.is_empty() {
            self.world.happens(self.rank);
            let n = from.len().min(8 - (at % 8) as usize);
            self.heap.write(at, &from[..n]);
            (at, from) = (at + n as u64, &from[n..]);
        }
    }

    fn populate(&self, _: u64, _: u64) -> bool {
        self.world.happens(self.rank);
        !self.world.chance(0.1)
    }
}

/// Bells and boards, as one rank sees them.
#[derive(Clone)]
pub struct Hint {
    pub hints: Rc<HeapHints>,
    pub world: Shared,
    pub rank: usize,
}

impl Hints for Hint {
    fn load(&self, at: u64) -> u32 {
        self.world.happens(self.rank);
        let word = self.hints.load(at);
        self.world.after_look(self.rank, at);
        word
    }

    fn store(&self, at: u64, word: u32) {
        self.world.happens(self.rank);
        self.hints.store(at, word);
    }

    fn add(&self, at: u64, n: u32) {
        self.world.happens(self.rank);
        self.hints.add(at, n);
    }

    fn fence(&self) {
        self.hints.fence();
    }
}
