//! What comes over a line, counted for users. It decides nothing.

use std::time::{Duration, Instant};

/// A rate is that of so long.
const WINDOW: Duration = Duration::from_secs(1);

/// Counts the bytes that come from another domain.
pub struct Meter {
    /// When the window began that counts at present, and what came in it.
    since: Instant,
    window: u64,
    last: u64,
    most: u64,
    total: u64,
}

impl Meter {
    /// One that begins now.
    pub fn new(now: Instant) -> Meter {
        Meter { since: now, window: 0, last: 0, most: 0, total: 0 }
    }

    /// So many bytes have come.
    pub fn add(&mut self, bytes: u64, now: Instant) {
        self.close(now);
        self.window += bytes;
        self.total += bytes;
    }

    /// Ends the window, if its time is over.
    fn close(&mut self, now: Instant) {
        let took = now.saturating_duration_since(self.since);
        if took < WINDOW {
            return;
        }
        // One that lasted longer has seen nothing after its bytes.
        let is_last = took < 2 * WINDOW;
        self.most = self.most.max(self.window);
        self.last = if is_last { self.window } else { 0 };
        self.window = 0;
        self.since = now;
    }

    /// Bytes since the start, in the last whole second, and in the second in which most came.
    pub fn figures(&mut self, now: Instant) -> [u64; 3] {
        self.close(now);
        [self.total, self.last, self.most]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_second_and_the_busiest_one_are_known() {
        let begun = Instant::now();
        let at = |ms: u64| begun + Duration::from_millis(ms);
        let mut meter = Meter::new(begun);
        meter.add(5, at(0));
        meter.add(6, at(900));
        assert_eq!(meter.figures(at(950)), [11, 0, 0]);
        meter.add(3, at(1100));
        assert_eq!(meter.figures(at(1200)), [14, 11, 11]);
        meter.add(1, at(2150));
        assert_eq!(meter.figures(at(2200)), [15, 3, 11]);
        assert_eq!(meter.figures(at(9000)), [15, 0, 11]);
    }
}
