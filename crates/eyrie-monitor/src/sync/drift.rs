//! Another node's clock relative to this one: offset and rate, from exchanges some of which were
//! delayed. Pure; must never allocate.

/// An exchange, in nanoseconds: this node sent, the other received and answered by its own clock,
/// this node received.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    pub sent: u64,
    pub received: u64,
    pub answered: u64,
    pub returned: u64,
}

/// The other clock minus this one at a moment of this one, and its possible error: half of the
/// round trip (RFC 5905, section 8).
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    at: u64,
    offset: i128,
    delay: u64,
}

const POINTS: usize = 64;
/// The largest rate that is believed: crystals differ by parts in a hundred thousand.
const FASTEST: f64 = 500e-6;
/// A slope over less time than this shows more of the delays than of the clocks.
const BASELINE_NS: u64 = 5_000_000_000;

#[derive(Clone, Debug)]
pub struct Drift {
    points: [Option<Point>; POINTS],
    next: usize,
}

impl Default for Drift {
    fn default() -> Self {
        Drift { points: [None; POINTS], next: 0 }
    }
}

impl Drift {
    /// Adds an exchange; impossible ones are left out.
    pub fn add(&mut self, e: Exchange) {
        let (away, inside) = (e.returned.checked_sub(e.sent), e.answered.checked_sub(e.received));
        let (Some(away), Some(inside)) = (away, inside) else { return };
        let Some(delay) = away.checked_sub(inside) else { return };
        let offset = (i128::from(e.received) - i128::from(e.sent) + i128::from(e.answered)
            - i128::from(e.returned))
            / 2;
        self.points[self.next] = Some(Point { at: e.sent + away / 2, offset, delay });
        self.next = (self.next + 1) % POINTS;
    }

    /// The half of the points with the least delay: a delay is mostly in one direction, and looks
    /// like an offset.
    fn good(&self) -> impl Iterator<Item = &Point> {
        let mut delays = [u64::MAX; POINTS];
        let mut count = 0;
        for point in self.points.iter().flatten() {
            delays[count] = point.delay;
            count += 1;
        }
        delays.sort_unstable();
        let limit = delays[count / 2];
        self.points.iter().flatten().filter(move |p| p.delay <= limit)
    }

    /// The offset at the middle of the points, that middle, and the rate, by least squares.
    fn line(&self) -> Option<(i128, u64, f64)> {
        let first = self.good().next()?;
        let mut n = 0.0;
        let mut x = 0.0;
        let mut y = 0.0;
        let mut xx = 0.0;
        let mut xy = 0.0;
        let mut early = u64::MAX;
        let mut late = 0;
        for p in self.good() {
            let dx = p.at as f64 - first.at as f64;
            let dy = (p.offset - first.offset) as f64;
            (n, x, y, xx, xy) = (n + 1.0, x + dx, y + dy, xx + dx * dx, xy + dx * dy);
            (early, late) = (early.min(p.at), late.max(p.at));
        }
        let variance = xx - x * x / n;
        let long = n >= 4.0 && late - early >= BASELINE_NS && variance > 0.0;
        let rate = if long { ((xy - x * y / n) / variance).clamp(-FASTEST, FASTEST) } else { 0.0 };
        let middle = (first.at as f64 + x / n) as u64;
        Some((first.offset + (y / n) as i128, middle, rate))
    }

    /// This clock at the moment when the other shows `theirs`; `None` before the first exchange.
    pub fn ours(&self, theirs: u64) -> Option<u64> {
        let (offset, middle, rate) = self.line()?;
        // theirs = ours + offset + rate (ours − middle)
        let without = i128::from(theirs) - offset;
        let correction = ((without - i128::from(middle)) as f64 * rate / (1.0 + rate)) as i128;
        u64::try_from(without - correction).ok()
    }

    /// The other clock when this one shows `ours`.
    pub fn theirs(&self, ours: u64) -> Option<u64> {
        let (offset, middle, rate) = self.line()?;
        let correction = ((i128::from(ours) - i128::from(middle)) as f64 * rate) as i128;
        u64::try_from(i128::from(ours) + offset + correction).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    /// A clock that is `offset` ahead and runs `rate` faster.
    fn their_clock(ours: u64, offset: i64, rate: f64) -> u64 {
        (ours as i128 + i128::from(offset) + (ours as f64 * rate) as i128) as u64
    }

    proptest! {
        #[test]
        fn moments_agree_although_clocks_drift_and_answers_are_late(
            offset in -1_000_000_000_000i64..1_000_000_000_000, rate in -100e-6..100e-6f64,
            late in prop::collection::vec((0..40_000u64, 0..40_000u64, 0..10u8), 120),
        ) {
            let mut drift = Drift::default();
            let begin = 10_000 * SECOND;
            let mut now = begin;
            for (there, back, jam) in &late {
                // One in ten is delayed by a busy network for up to a millisecond, in one
                // direction.
                let jam = if *jam == 0 { 1_000_000 } else { 0 };
                let received = now + 10_000 + there + jam;
                let returned = received + 5_000 + 10_000 + back;
                drift.add(Exchange {
                    sent: now,
                    received: their_clock(received, offset, rate),
                    answered: their_clock(received + 5_000, offset, rate),
                    returned,
                });
                now += SECOND / 2;
            }
            let true_moment = now + SECOND / 2;
            let found = drift.ours(their_clock(true_moment, offset, rate)).unwrap();
            let off = found.abs_diff(true_moment);
            prop_assert!(off < 40_000, "{off} ns off");
            let theirs = drift.theirs(found).unwrap();
            prop_assert!(theirs.abs_diff(their_clock(true_moment, offset, rate)) < 1_000);
        }

        #[test]
        fn impossible_exchanges_are_left_out(n in any::<[u64; 4]>()) {
            let mut drift = Drift::default();
            drift.add(Exchange { sent: n[0], received: n[1], answered: n[2], returned: n[3] });
            let _ = (drift.ours(n[0]), drift.theirs(n[1]));
        }
    }

    #[test]
    fn before_the_first_exchange_nothing_is_known() {
        assert_eq!(Drift::default().ours(5), None);
    }
}
