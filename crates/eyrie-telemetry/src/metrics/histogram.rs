//! How many durations were how long.

use std::time::Duration;

/// Upper bounds in seconds: from the pause of an image to the recovery of a large rank.
const BOUNDS: [f64; 12] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0];

/// The durations of all events of a kind.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// In seconds.
    sum: f64,
    counts: [u64; BOUNDS.len() + 1],
}

impl Histogram {
    pub fn add(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        self.sum += seconds;
        let at = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        self.counts[at] += 1;
    }

    /// All of them together, in seconds.
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// How many were not above each bound but above the one before.
    pub fn buckets(&self) -> Vec<(f64, u64)> {
        BOUNDS.into_iter().chain([f64::MAX]).zip(self.counts).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_counts_once_below_its_bound() {
        let mut all = Histogram::default();
        for ms in [1, 2, 300, 301, 1_000_000] {
            all.add(Duration::from_millis(ms));
        }
        let counted: Vec<_> = all.buckets().into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [(0.001, 1), (0.003, 1), (0.3, 1), (1.0, 1), (f64::MAX, 1)]);
        assert!((all.sum() - 1000.604).abs() < 1e-9);
    }
}
