//! Memory of one process: for the tests of this crate and of what stands on it. It can stop taking
//! stores, as the memory of a process that was killed does, and bytes of it can be flipped.

use crate::memory::{Hints, Memory, View};
use std::sync::atomic::{fence, AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Memory of one process, zeroed.
#[derive(Debug)]
pub struct Heap {
    words: Box<[AtomicU64]>,
    /// Stores that it still takes.
    left: AtomicU64,
    /// There are no more pages.
    full: AtomicBool,
}

impl Heap {
    /// `bytes` must be a multiple of 8.
    pub fn new(bytes: u64) -> Heap {
        let words = (0..bytes / 8).map(|_| AtomicU64::new(0)).collect();
        Heap { words, left: AtomicU64::new(u64::MAX), full: AtomicBool::new(false) }
    }

    /// After so many stores of words nothing is stored any more.
    pub fn stop_after(&self, stores: u64) {
        self.left.store(stores, Ordering::Relaxed);
    }

    /// Stores that it still takes.
    pub fn stores_left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// Whether it has stopped taking stores.
    pub fn stopped(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }

    /// Whether there are no more pages to populate.
    pub fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::Relaxed);
    }

    /// Flips bits of a byte.
    pub fn flip(&self, at: u64, bits: u8) {
        let mask = u64::from(bits) << (at % 8 * 8);
        self.words[(at / 8) as usize].fetch_xor(mask, Ordering::Relaxed);
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        assert!(at % 8 == 0, "a word at {at}");
        &self.words[(at / 8) as usize]
    }

    fn takes(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        if left != u64::MAX {
            self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        }
        left > 0
    }
}

impl View for Heap {
    fn bytes(&self) -> u64 {
        self.words.len() as u64 * 8
    }
    fn load(&self, at: u64) -> u64 {
        self.word(at).load(Ordering::Relaxed)
    }
    fn load_acquire(&self, at: u64) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }
    fn read(&self, at: u64, to: &mut [u8]) {
        for (at, byte) in (at..).zip(to) {
            *byte = (self.load(at & !7) >> (at % 8 * 8)) as u8;
        }
    }
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

impl Memory for Heap {
    fn store(&self, at: u64, word: u64) {
        if self.takes() {
            self.word(at).store(word, Ordering::Relaxed);
        }
    }
    fn store_release(&self, at: u64, word: u64) {
        if self.takes() {
            self.word(at).store(word, Ordering::Release);
        }
    }
    fn write(&self, mut at: u64, mut from: &[u8]) {
        while !from.is_empty() {
            let start = (at % 8) as usize;
            let n = from.len().min(8 - (at % 8) as usize);
            let mut word = self.load(at & !7).to_le_bytes();
            word[start..start + n].copy_from_slice(&from[..n]);
            self.store(at & !7, u64::from_le_bytes(word));
            (at, from) = (at + n as u64, &from[n..]);
        }
    }
    fn populate(&self, _at: u64, _bytes: u64) -> bool {
        !self.full.load(Ordering::Relaxed)
    }
}

/// Bells and boards of one process.
#[derive(Debug)]
pub struct HeapHints(Box<[AtomicU32]>);

impl HeapHints {
    pub fn new(bytes: u64) -> HeapHints {
        HeapHints((0..bytes / 4).map(|_| AtomicU32::new(0)).collect())
    }
}

impl Hints for HeapHints {
    fn load(&self, at: u64) -> u32 {
        self.0[(at / 4) as usize].load(Ordering::Relaxed)
    }
    fn store(&self, at: u64, word: u32) {
        self.0[(at / 4) as usize].store(word, Ordering::Relaxed);
    }
    fn add(&self, at: u64, n: u32) {
        self.0[(at / 4) as usize].fetch_add(n, Ordering::Release);
    }
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}
