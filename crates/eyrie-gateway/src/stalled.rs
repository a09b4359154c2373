//! Frames that came on trunks for ranks whose router has no room at present, in their order. The
//! other gateway was asked to send no more for these ranks, so there is no more than was under way.
//! It must never hold more than that.

use eyrie_wire::Rank;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// Most bytes of all ranks of a line: more is never under way.
const MAX_BYTES: usize = 256 << 20;
/// What keeping a frame takes besides its own bytes.
const EACH: usize = 64;

/// What waits, by ranks.
#[derive(Default)]
pub struct Stalled {
    ranks: FxHashMap<Rank, VecDeque<Vec<u8>>>,
    bytes: usize,
}

impl Stalled {
    /// Whether something waits for this rank, so that what comes must wait behind it.
    pub fn has(&self, rank: Rank) -> bool {
        self.ranks.contains_key(&rank)
    }

    pub fn ranks(&self) -> Vec<Rank> {
        self.ranks.keys().copied().collect()
    }

    /// A frame must wait.
    ///
    /// # Errors
    /// When more has come than can have been under way.
    pub fn push(&mut self, rank: Rank, frame: &[u8]) -> Result<(), &'static str> {
        self.bytes += frame.len() + EACH;
        self.ranks.entry(rank).or_default().push_back(frame.to_vec());
        if self.bytes > MAX_BYTES {
            return Err("more comes for ranks that have no room than was under way");
        }
        Ok(())
    }

    /// Takes the first frame that waits for a rank, to be offered.
    pub fn take(&mut self, rank: Rank) -> Option<Vec<u8>> {
        let frame = self.ranks.get_mut(&rank)?.pop_front()?;
        self.bytes -= frame.len() + EACH;
        Some(frame)
    }

    /// It must wait on.
    pub fn put_back(&mut self, rank: Rank, frame: Vec<u8>) {
        self.bytes += frame.len() + EACH;
        self.ranks.entry(rank).or_default().push_front(frame);
    }

    /// Whether no other frame waits for the rank. Then what comes need not wait any more.
    pub fn has_ended(&mut self, rank: Rank) -> bool {
        let has_ended = self.ranks.get(&rank).is_some_and(VecDeque::is_empty);
        if has_ended {
            self.ranks.remove(&rank);
        }
        has_ended
    }

    /// The stream of a rank is over.
    pub fn forget(&mut self, rank: Rank) {
        let frames = self.ranks.remove(&rank).unwrap_or_default();
        self.bytes -= frames.iter().map(|frame| frame.len() + EACH).sum::<usize>();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_wait_in_order_and_are_counted() {
        let mut stalled = Stalled::default();
        let [one, other] = [Rank(1), Rank(2)];
        for (rank, frame) in [(one, [1, 1]), (other, [2, 2]), (one, [3, 3])] {
            stalled.push(rank, &frame).unwrap();
        }
        assert!(stalled.has(one) && stalled.has(other));
        let first = stalled.take(one).unwrap();
        assert_eq!(first, [1, 1]);
        stalled.put_back(one, first);
        assert_eq!(stalled.take(one), Some(vec![1, 1]));
        assert!(!stalled.has_ended(one));
        assert_eq!(stalled.take(one), Some(vec![3, 3]));
        assert!(stalled.has(one) && stalled.has_ended(one) && !stalled.has(one));
        stalled.forget(other);
        stalled.forget(other);
        assert!(stalled.ranks().is_empty());
        assert_eq!(stalled.bytes, 0);
        let much = vec![0; MAX_BYTES - EACH];
        stalled.push(one, &much).unwrap();
        assert!(stalled.push(other, &[0]).is_err());
    }
}
