//! A leaky bucket: counts recent events. Its content leaks away evenly, a whole threshold within
//! the rule's time, so that faults spread over years never add up. It overflows at twice the
//! threshold, so that one bad hour does not count against a node for weeks. Pure.

use std::time::Duration;

#[derive(Clone, Copy, Debug, Default)]
pub struct Bucket {
    level: f64,
    at: Option<Duration>,
}

impl Bucket {
    /// Adds `count` at `now`; returns the new level. `threshold` leaks away in `within`.
    pub fn add(&mut self, count: f64, threshold: f64, within: Duration, now: Duration) -> f64 {
        let elapsed = self.at.map_or(Duration::ZERO, |at| now.saturating_sub(at));
        let leaked = threshold * elapsed.as_secs_f64() / within.as_secs_f64();
        self.level = ((self.level - leaked).max(0.0) + count).min(2.0 * threshold);
        self.at = Some(now);
        self.level
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn a_burst_fills_it_and_time_empties_it() {
        let mut bucket = Bucket::default();
        assert_eq!(bucket.add(6.0, 10.0, DAY, Duration::ZERO), 6.0);
        assert!((bucket.add(0.0, 10.0, DAY, DAY / 2) - 1.0).abs() < 1e-9);
        assert_eq!(bucket.add(0.0, 10.0, DAY, DAY * 9), 0.0);
        assert_eq!(bucket.add(1e9, 10.0, DAY, DAY * 9), 20.0);
        assert_eq!(bucket.add(0.0, 10.0, DAY, DAY * 11), 0.0);
    }

    #[test]
    fn events_slower_than_the_leak_never_add_up() {
        let mut bucket = Bucket::default();
        let levels = (0..1000).map(|day| bucket.add(9.0, 10.0, DAY, DAY * day));
        assert!(levels.fold(0.0, f64::max) < 10.0);
    }
}
