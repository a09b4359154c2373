//! How far from the intended moment samples are taken: a summary of constant size, and the
//! comparison of nodes. Pure.

use serde::Serialize;
use std::collections::BTreeMap;

/// Buckets of a quarter of a power of two, from 256 ns.
const BUCKETS: usize = 100;
const LOWEST_LOG: f64 = 8.0;

/// Counts of skews by size, so that quantiles are known to a fifth of their value.
#[derive(Clone, Copy, Debug)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    count: u64,
    sum_ns: f64,
    largest_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: [0; BUCKETS], count: 0, sum_ns: 0.0, largest_ns: 0 }
    }
}

/// A summary of many skews, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    pub count: u64,
    pub mean_ns: f64,
    pub median_ns: f64,
    pub p99_ns: f64,
    pub largest_ns: u64,
}

impl Histogram {
    pub fn add(&mut self, skew_ns: i64) {
        let size = skew_ns.unsigned_abs();
        let bucket = ((size.max(1) as f64).log2() - LOWEST_LOG).max(0.0) * 4.0;
        self.counts[(bucket as usize).min(BUCKETS - 1)] += 1;
        self.count += 1;
        self.sum_ns += size as f64;
        self.largest_ns = self.largest_ns.max(size);
    }

    fn quantile(&self, q: f64) -> f64 {
        let rank = (q * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                let upper = (LOWEST_LOG + (bucket + 1) as f64 / 4.0).exp2();
                return upper.min(self.largest_ns as f64);
            }
        }
        0.0
    }

    pub fn summary(&self) -> Summary {
        if self.count == 0 {
            return Summary::default();
        }
        Summary {
            count: self.count,
            mean_ns: self.sum_ns / self.count as f64,
            median_ns: self.quantile(0.5),
            p99_ns: self.quantile(0.99),
            largest_ns: self.largest_ns,
        }
    }
}

/// When one node took one sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    pub node: String,
    pub intended_ns: u64,
    pub skew_ns: i64,
}

/// For each moment at which at least two nodes sampled, in order of time: the nanoseconds from the
/// first to the last of them. Samples of the same interval belong to one moment; the clocks of the
/// nodes are assumed to be right.
pub fn between_nodes(taken: &[Taken], interval_ns: u64) -> Vec<u64> {
    let mut moments: BTreeMap<u64, BTreeMap<&str, i128>> = BTreeMap::new();
    for t in taken {
        let at = i128::from(t.intended_ns) + i128::from(t.skew_ns);
        let moment = (t.intended_ns + interval_ns / 2) / interval_ns.max(1);
        moments.entry(moment).or_default().insert(&t.node, at);
    }
    let spread = |nodes: BTreeMap<&str, i128>| {
        let first = nodes.values().min()?;
        let last = nodes.values().max()?;
        (nodes.len() > 1).then(|| (last - first) as u64)
    };
    moments.into_values().filter_map(spread).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_near_the_truth() {
        let mut h = Histogram::default();
        (1..=1000).for_each(|us| h.add(us * 1000));
        let s = h.summary();
        assert_eq!((s.count, s.largest_ns), (1000, 1_000_000));
        assert!((s.mean_ns - 500_500.0).abs() < 1.0);
        assert!((0.8..1.25).contains(&(s.median_ns / 500_000.0)), "{s:?}");
        assert!((0.8..1.25).contains(&(s.p99_ns / 990_000.0)), "{s:?}");
        assert_eq!(Histogram::default().summary(), Summary::default());
    }

    #[test]
    fn early_counts_as_much_as_late() {
        let mut h = Histogram::default();
        h.add(-5000);
        assert_eq!(h.summary().largest_ns, 5000);
    }

    #[test]
    fn nodes_are_compared_moment_by_moment() {
        let t =
            |node: &str, intended_ns, skew_ns| Taken { node: node.into(), intended_ns, skew_ns };
        let taken = [
            t("a", 1000, 10),
            t("b", 1000, 30),
            t("a", 2000, 5),
            t("c", 3000, 1),
            t("a", 3000, 9),
            t("b", 3000, -1),
        ];
        assert_eq!(between_nodes(&taken, 1000), [20, 10]);
        assert!(between_nodes(&[], 1000).is_empty());
    }
}
