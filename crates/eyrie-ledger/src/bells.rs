//! Bells and boards: hints between the ranks of a node, in memory that all of them write. A bell
//! says that its rank sleeps, or is to wake. A board says how many messages each rank has for its
//! rank. A stray write here costs time and nothing else: what counts is in the ledgers. Nothing
//! here sleeps or wakes anything by itself: the caller has the futex.
//!
//! A slot is the place of a rank on its node.

use crate::layout::LINE;
use crate::memory::Hints;
use crate::mutation::{active, Mutation};

/// The rank sleeps: nonzero.
const SLEEPING: u64 = 0;
/// The word to sleep at.
const WORD: u64 = 4;

/// The bells and boards of the ranks of a node.
#[derive(Clone, Copy, Debug)]
pub struct Bells<H> {
    hints: H,
    slots: u32,
}

impl<H: Hints> Bells<H> {
    /// Bytes that so many slots need.
    pub const fn bytes(slots: u32) -> u64 {
        slots as u64 * (LINE + Self::row(slots))
    }

    /// Bells in zeroed memory of [`Bells::bytes`] bytes.
    pub const fn new(hints: H, slots: u32) -> Bells<H> {
        Bells { hints, slots }
    }

    /// Slot `from` has published message `ssn` for slot `to`. True: that one sleeps, or is about
    /// to, and [`Bells::word`] is to be woken.
    #[inline]
    pub fn ring(&self, to: u32, from: u32, ssn: u64) -> bool {
        self.hints.store(self.board(to, from), ssn as u32);
        // What was published is seen by a receiver that says that it sleeps after we have looked.
        if !active(Mutation::NoFenceBeforeRing) {
            self.hints.fence();
        }
        if self.hints.load(self.bell(to) + SLEEPING) == 0 {
            return false;
        }
        self.hints.add(self.bell(to) + WORD, 1);
        true
    }

    /// A slot will sleep: then it must look once more, at all that it can look at, and sleep at
    /// [`Bells::word`] only while that has the value that is returned, and not long.
    #[inline]
    pub fn begin_sleep(&self, slot: u32) -> u32 {
        let word = self.hints.load(self.bell(slot) + WORD);
        self.hints.store(self.bell(slot) + SLEEPING, 1);
        if !active(Mutation::NoFenceBeforeSleep) {
            self.hints.fence();
        }
        word
    }

    /// It sleeps no more.
    #[inline]
    pub fn end_sleep(&self, slot: u32) {
        self.hints.store(self.bell(slot) + SLEEPING, 0);
    }

    /// Where the word lies that a slot sleeps at.
    pub const fn word(&self, slot: u32) -> u64 {
        self.bell(slot) + WORD
    }

    /// Whether the newest message of slot `from` to `slot` is another than the one in `seen`.
    #[inline]
    pub fn has_new(&self, slot: u32, from: u32, seen: u64) -> bool {
        self.hints.load(self.board(slot, from)) != seen as u32
    }

    /// Calls `changed` with each slot whose newest message to `slot` is another than the one in
    /// `seen`, as far as that is long.
    #[inline]
    pub fn scan(&self, slot: u32, seen: &[u64], mut changed: impl FnMut(u32)) {
        for (from, seen) in (0..self.slots).zip(seen) {
            if self.has_new(slot, from, *seen) {
                changed(from);
            }
        }
    }

    const fn bell(&self, slot: u32) -> u64 {
        slot as u64 * LINE
    }

    const fn board(&self, slot: u32, from: u32) -> u64 {
        self.slots as u64 * LINE + slot as u64 * Self::row(self.slots) + from as u64 * 4
    }

    const fn row(slots: u32) -> u64 {
        (slots as u64 * 4).next_multiple_of(LINE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::HeapHints;

    #[test]
    fn a_ring_wakes_who_sleeps_and_a_board_names_the_source() {
        let bells = Bells::new(HeapHints::new(Bells::<HeapHints>::bytes(128)), 128);
        assert!(!bells.ring(5, 3, 1), "it does not sleep");
        let word = bells.begin_sleep(5);
        assert!(bells.ring(5, 127, 9));
        assert_ne!(bells.hints.load(bells.word(5)), word, "a sleep that begins now ends at once");
        bells.end_sleep(5);
        let mut named = Vec::new();
        bells.scan(5, &[0; 128], |from| named.push(from));
        assert_eq!(named, [3, 127]);
        let mut seen = [0; 128];
        (seen[3], seen[127]) = (1, 9 + (1 << 32));
        bells.scan(5, &seen, |from| panic!("{from} has nothing new"));
        bells.scan(4, &[0; 128], |from| panic!("{from} has nothing for slot 4"));
    }
}
