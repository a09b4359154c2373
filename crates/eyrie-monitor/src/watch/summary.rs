//! The summary of all samples at the end.

use crate::ring::Frame;
use crate::sample::Detail;
use crate::skew::Histogram;
use eyrie_units::nanoseconds;

/// All samples together.
#[derive(Default)]
pub struct Summary {
    pub count: u64,
    missed: u64,
    failed: u64,
    lowered: u64,
    skew: Histogram,
    cost: Vec<u64>,
    first: Option<(u64, u64)>,
    /// Intended moment and CPU time of the whole monitor, in nanoseconds.
    pub(super) last: (u64, u64),
}

/// Costs kept for the median.
const COSTS: usize = 100_000;

impl Summary {
    pub fn add(&mut self, frame: &Frame) {
        let head = &frame.head;
        self.count += 1;
        self.missed += if self.count > 1 { u64::from(head.step - 1) } else { 0 };
        self.failed += u64::from(head.failed);
        self.lowered += u64::from(head.detail != Detail::Full);
        self.skew.add(head.skew_ns);
        if self.cost.len() < COSTS && head.number > 0 {
            self.cost.push(head.cost.whole_ns);
        }
        self.last = (head.intended_ns, head.cost.monitor_ns);
        self.first.get_or_insert(self.last);
    }

    /// The summary in words; `None` without a sample.
    pub fn text(&mut self) -> Option<String> {
        let (begin, used) = self.first?;
        let cost = self.cost_text(begin, used);
        let skew = self.skew.summary();
        Some(format!(
            "{} samples, {} missed, {} failed reads, {} with less detail; late by {} (median), {} \
             (99 %), {} (most){}",
            self.count,
            self.missed,
            self.failed,
            self.lowered,
            nanoseconds(skew.median_ns),
            nanoseconds(skew.p99_ns),
            nanoseconds(skew.largest_ns as f64),
            cost,
        ))
    }

    /// The cost in words. With a single sample nothing is known, since each sample has the cost of
    /// the one before.
    fn cost_text(&mut self, begin_ns: u64, used_ns: u64) -> String {
        self.cost.sort_unstable();
        let Some(cost) = self.cost.get(self.cost.len() / 2) else { return String::new() };
        let elapsed = self.last.0.saturating_sub(begin_ns).max(1);
        let share = (self.last.1 - used_ns) as f64 / elapsed as f64 * 100.0;
        format!(
            "; a sample costs {} (median, with waking); the whole monitor used {share:.4} % of a \
             core",
            nanoseconds(*cost as f64)
        )
    }
}
