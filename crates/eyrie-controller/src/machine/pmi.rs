//! The job-wide part of PMI: what the ranks have put, and which barriers the job has passed.

use eyrie_wire::Rank;

/// Keys and barriers of all ranks.
#[derive(Debug)]
pub struct Pmi {
    /// Highest barrier that each rank has arrived at, in any of its incarnations.
    arrived: Vec<u32>,
    passed: u32,
    /// Put since the last release.
    fresh: Vec<(String, String)>,
}

impl Pmi {
    pub fn new(ranks: u32) -> Pmi {
        Pmi { arrived: vec![0; ranks as usize], passed: 0, fresh: Vec::new() }
    }

    /// Barriers that the job has passed.
    pub fn passed(&self) -> u32 {
        self.passed
    }

    pub fn put(&mut self, key: String, value: String) {
        self.fresh.push((key, value));
    }

    /// A rank has arrived at its barrier number `barrier`. When the job passes one: the entries that the
    /// nodes must know first, and the number of barriers passed.
    pub fn arrive(&mut self, rank: Rank, barrier: u32) -> Option<(Vec<(String, String)>, u32)> {
        let arrived = self.arrived.get_mut(rank as usize)?;
        *arrived = (*arrived).max(barrier);
        let all = self.arrived.iter().copied().min().unwrap_or(0);
        if all <= self.passed {
            return None;
        }
        self.passed = all;
        Some((std::mem::take(&mut self.fresh), all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_rank_opens_the_barrier_and_a_later_life_does_not_close_it() {
        let mut pmi = Pmi::new(2);
        pmi.put("a".into(), "1".into());
        assert_eq!(pmi.arrive(0, 1), None);
        // Rank 0 dies at the barrier and arrives again.
        assert_eq!(pmi.arrive(0, 1), None);
        pmi.put("b".into(), "2".into());
        let (entries, barriers) = pmi.arrive(1, 1).unwrap();
        assert_eq!((entries.len(), barriers), (2, 1));
        assert_eq!(pmi.arrive(0, 1), None);
        assert_eq!(pmi.arrive(7, 1), None);
        assert_eq!(pmi.arrive(1, 2), None);
        assert_eq!(pmi.arrive(0, 2), Some((vec![], 2)));
    }
}
