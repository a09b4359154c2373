//! How far the output of each rank has been shown. What a re-executing rank writes again is not
//! shown again, and an image counts only when all that was written before it has arrived.

use eyrie_wire::control::StandardStream;
use eyrie_wire::Rank;
use serde::{Deserialize, Serialize};

/// How far the output of each rank has been taken, of all its incarnations together.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Ledger {
    taken: Vec<[u64; 2]>,
}

impl Ledger {
    pub fn new(ranks: u32) -> Ledger {
        Ledger { taken: vec![[0; 2]; ranks as usize] }
    }

    /// Takes so many bytes from `offset` of the stream on; returns how many of them were known.
    pub fn take(&mut self, rank: Rank, stream: StandardStream, offset: u64, bytes: u64) -> u64 {
        let Some(taken) = self.taken.get_mut(rank.index()) else { return bytes };
        let taken = &mut taken[stream as usize];
        let known = taken.saturating_sub(offset).min(bytes);
        *taken = (*taken).max(offset.saturating_add(bytes));
        known
    }

    /// The rank comes from another domain, which has shown so many bytes of it.
    pub fn set(&mut self, rank: Rank, shown: [u64; 2]) {
        if let Some(taken) = self.taken.get_mut(rank.index()) {
            *taken = shown;
        }
    }

    /// Bytes taken of (standard output, standard error).
    pub fn taken(&self, rank: Rank) -> [u64; 2] {
        self.taken.get(rank.index()).copied().unwrap_or_default()
    }

    /// Bytes taken of both: a sign of progress.
    pub fn total(&self, rank: Rank) -> u64 {
        self.taken(rank).into_iter().fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_shown_is_not_shown_again() {
        let mut l = Ledger::new(2);
        assert_eq!(l.take(Rank(1), StandardStream::Stdout, 0, 6), 0);
        // The next incarnation writes it again, in other pieces.
        assert_eq!(l.take(Rank(1), StandardStream::Stdout, 0, 3), 3);
        assert_eq!(l.take(Rank(1), StandardStream::Stdout, 3, 8), 3);
        assert_eq!(l.take(Rank(1), StandardStream::Stderr, 0, 1), 0);
        assert_eq!(l.taken(Rank(1)), [11, 1]);
        assert_eq!(l.take(Rank(9), StandardStream::Stdout, 0, 12), 12, "no such rank");
    }
}
