//! A hard bound on what the monitor may use: when samples cost more, it reads less, then less
//! often. Pure; must never allocate.

use crate::sample::Detail;

/// Samples over which the cost is averaged.
const WINDOW: f64 = 16.0;
/// Samples at one level before the next one is tried, downwards and upwards.
const DOWN_AFTER: u32 = 4;
const UP_AFTER: u32 = 64;
/// The most intervals that may lie between two samples.
pub const LONGEST_STRETCH: u32 = 64;

/// Levels: full, busy, least, then least with twice, four times ... the interval.
const STRETCHES: u32 = LONGEST_STRETCH.ilog2();
const LOWEST: u32 = 2 + STRETCHES;

#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Share of one core.
    allowed: f64,
    used: Option<f64>,
    level: u32,
    since: u32,
}

impl Budget {
    pub fn new(allowed: f64) -> Budget {
        Budget { allowed, used: None, level: 0, since: 0 }
    }

    pub fn detail(&self) -> Detail {
        match self.level {
            0 => Detail::Full,
            1 => Detail::Busy,
            _ => Detail::Least,
        }
    }

    /// Intervals from one sample to the next.
    pub fn stretch(&self) -> u32 {
        1 << self.level.saturating_sub(2)
    }

    /// The share of a core that is used now, averaged.
    pub fn used(&self) -> f64 {
        self.used.unwrap_or(0.0)
    }

    /// Notes that `cpu_ns` of CPU time were used in `elapsed_ns`; true when the level has changed.
    pub fn observe(&mut self, cpu_ns: u64, elapsed_ns: u64) -> bool {
        if elapsed_ns == 0 {
            return false;
        }
        let share = cpu_ns as f64 / elapsed_ns as f64;
        self.used = Some(self.used.map_or(share, |used| used + (share - used) / WINDOW));
        self.since += 1;
        let before = self.level;
        if self.used() > self.allowed && self.since >= DOWN_AFTER && self.level < LOWEST {
            self.level += 1;
        } else if self.used() < self.allowed / 3.0 && self.since >= UP_AFTER && self.level > 0 {
            self.level -= 1;
        }
        if self.level != before {
            self.since = 0;
            // The use at the other level says nothing about this one.
            self.used = None;
        }
        self.level != before
    }
}

/// The smallest share of a core to which samples of this cost can be reduced.
pub fn smallest_share(cost_ns: u64, interval_ns: u64) -> f64 {
    cost_ns as f64 / (interval_ns as f64 * f64::from(LONGEST_STRETCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Runs `n` samples whose cost depends on the detail, 500 ms apart. Returns the share of a core
    /// over the last half.
    fn run(budget: &mut Budget, n: u32, cost_us: impl Fn(Detail) -> u64) -> f64 {
        let mut cpu = 0;
        let mut elapsed = 0;
        for i in 0..n {
            let cost = cost_us(budget.detail()) * 1000;
            let gap = u64::from(budget.stretch()) * 500 * MS;
            budget.observe(cost, gap);
            if i >= n / 2 {
                (cpu, elapsed) = (cpu + cost, elapsed + gap);
            }
        }
        cpu as f64 / elapsed as f64
    }

    #[test]
    fn cheap_samples_are_read_in_full() {
        let mut budget = Budget::new(0.0005);
        run(&mut budget, 100, |_| 100);
        assert_eq!((budget.detail(), budget.stretch()), (Detail::Full, 1));
    }

    #[test]
    fn less_is_read_until_it_fits() {
        let mut budget = Budget::new(0.0005);
        let share = run(&mut budget, 400, |detail| match detail {
            Detail::Full => 2000,
            Detail::Busy => 300,
            Detail::Least => 100,
        });
        assert_eq!(budget.stretch(), 1);
        assert!(share <= 0.0006, "{share}");
    }

    #[test]
    fn expensive_samples_are_taken_less_often() {
        let mut budget = Budget::new(0.0005);
        let share = run(&mut budget, 400, |_| 2000);
        assert!(budget.stretch() >= 8 && share <= 0.0005, "{share} at {}", budget.stretch());
    }

    #[test]
    fn when_it_costs_less_again_more_is_read() {
        let mut budget = Budget::new(0.0005);
        run(&mut budget, 100, |_| 2000);
        run(&mut budget, 2000, |_| 50);
        assert_eq!((budget.detail(), budget.stretch()), (Detail::Full, 1));
    }

    #[test]
    fn the_smallest_share_is_the_longest_stretch() {
        assert!((smallest_share(64_000, MS) - 0.001).abs() < 1e-12);
    }
}
