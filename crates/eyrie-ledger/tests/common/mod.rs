//! What tests over whole regions share: messages whose content follows from their numbers, and a
//! region in memory of this process.
#![allow(dead_code)] // Each test file uses a part.

use eyrie_ledger::heap::Heap;
use eyrie_ledger::layout::{Layout, Rank};
use eyrie_ledger::reader::Reader;
use eyrie_ledger::writer::{Message, Sizes, Writer};
use eyrie_ledger::{region, Entry, Envelope};

/// Large messages begin early, and in small steps, so that tests are quick.
pub const SIZES: Sizes = Sizes { at_once: 3000, step: 1000 };
pub const RANKS: u32 = 3;
pub const BYTES: u64 = 24 << 20;

/// A number that follows from others.
pub fn mix(a: u64, b: u64) -> u64 {
    let x = (a ^ b.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ x >> 32
}

/// A message that is sent again by an incarnation that re-executes is the same.
pub struct Sample {
    pub to: Rank,
    pub envelope: Envelope,
    pub clock: u32,
    pub payload: Vec<u8>,
}

impl Sample {
    pub fn new(seed: u64, to: Rank, ssn: u64) -> Sample {
        let n = mix(mix(seed, u64::from(to)), ssn);
        let len = Sample::bytes(seed, to, ssn);
        let payload = (0..len).map(|at| mix(n, at / 8) as u8 ^ at as u8).collect();
        let words = [mix(n, 1), mix(n, 2)];
        let more = (n >> 4 & 7 == 0).then(|| [mix(n, 3), 0, u64::MAX]);
        let envelope = Envelope { kind: n as u8, flags: (n >> 8) as u8, words, more };
        Sample { to, envelope, clock: ssn as u32 * 3, payload }
    }

    /// Bytes of the payload of this message.
    pub fn bytes(seed: u64, to: Rank, ssn: u64) -> u64 {
        let n = mix(mix(seed, u64::from(to)), ssn);
        match n % 16 {
            0..=5 => n >> 8 & 31,
            6..=11 => n >> 8 & 511,
            12..=13 => n >> 8 & 4095,
            14 => n >> 8 & 0x7fff,
            _ => n >> 8 & 0x1_ffff,
        }
    }

    pub fn message(&self) -> Message<'_> {
        let Sample { to, envelope, clock, payload } = self;
        Message { to: *to, envelope: *envelope, clock: *clock, payload }
    }

    /// What differs from the message that a reader shows.
    pub fn difference(&self, reader: &Reader<&Heap>, entry: &Entry) -> Option<String> {
        let shown = (entry.envelope, entry.clock, entry.len);
        let sent = (self.envelope, self.clock, self.payload.len() as u64);
        if shown != sent {
            return Some(format!("{shown:?} was sent as {sent:?}"));
        }
        let mut payload = vec![0; self.payload.len()];
        reader.read(entry, 0, &mut payload);
        let at = payload.iter().zip(&self.payload).position(|(a, b)| a != b)?;
        Some(format!("byte {at} of {} differs", payload.len()))
    }
}

pub fn layout() -> Layout {
    Layout::new(0, RANKS, BYTES)
}

/// Memory with a region of rank 0.
pub fn region(granted: u64) -> Heap {
    let memory = Heap::new(BYTES);
    region::prepare(&memory, &layout(), 1, granted);
    memory
}

pub fn writer(memory: &Heap) -> Writer<&Heap> {
    Writer::open(memory, layout(), |_| 0, SIZES).unwrap()
}
