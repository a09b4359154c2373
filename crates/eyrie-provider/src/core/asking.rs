//! Whether the program does nothing but ask for messages, and for how long it has asked in vain:
//! by the ticks at which its progress calls begin and end. Reads no clock.

/// Progress calls that find nothing, one right after another, before the next one sleeps for a
/// message.
const SPINS: u32 = 300;
/// Ticks between two progress calls up to which the program is taken to do nothing but wait.
const WAITING_GAP: u64 = 30_000;

/// The idle progress calls of a rank.
#[derive(Clone, Copy, Default)]
pub struct Asking {
    /// One right after another, without a message.
    calls: u32,
    /// When the last one ended.
    last: u64,
    /// What was asked in vain up to here is counted, and whether the present call sleeps.
    since: u64,
    sleeps: bool,
}

impl Asking {
    /// A call begins. Whether it may sleep for a message.
    pub fn begin(&mut self, now: u64) -> bool {
        if now.wrapping_sub(self.last) > WAITING_GAP {
            self.calls = 0;
        }
        self.since = if self.calls > 0 { self.last } else { now };
        self.calls += 1;
        self.sleeps = self.calls > SPINS;
        self.sleeps
    }

    /// The call is over. For how many ticks the processor was kept busy in vain: one that sleeps
    /// needs none, and one that took long was interrupted, so that others had it.
    pub fn end(&mut self, now: u64, nothing: bool) -> u64 {
        self.last = now;
        let ticks = now.wrapping_sub(self.since);
        match nothing && !self.sleeps && ticks <= 2 * WAITING_GAP {
            true => ticks,
            false => 0,
        }
    }

    /// There was something: the program goes on.
    pub fn found(&mut self) {
        self.calls = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls that take 1000 ticks, with pauses before them.
    fn polled(asking: &mut Asking, now: &mut u64, pauses: &[u64]) -> u64 {
        let mut call = |pause: &u64| {
            *now += pause;
            asking.begin(*now);
            *now += 1000;
            asking.end(*now, true)
        };
        pauses.iter().map(&mut call).sum()
    }

    #[test]
    fn who_asks_all_the_time_has_polled_all_the_time_and_then_sleeps() {
        let (mut asking, mut now) = (Asking::default(), 1 << 40);
        assert_eq!(polled(&mut asking, &mut now, &[500; 100]), 100 * 1500 - 500);
        assert!(!asking.begin(now));
        asking.end(now, true);
        polled(&mut asking, &mut now, &[500; SPINS as usize]);
        assert!(asking.begin(now), "it spins for ever");
        assert_eq!(asking.end(now + 3_000_000, true), 0, "it has slept");
    }

    #[test]
    fn what_is_computed_between_calls_or_by_others_in_one_is_not_polled() {
        let (mut asking, mut now) = (Asking::default(), 1 << 40);
        let computes = [10_000_000; 10];
        assert_eq!(polled(&mut asking, &mut now, &computes), 10 * 1000);
        asking.begin(now);
        assert_eq!(asking.end(now + 10_000_000, true), 0);
        asking.begin(now + 10_000_500);
        assert_eq!(asking.end(now + 10_001_000, false), 0, "a message has come");
        asking.found();
        now += 10_002_000;
        assert_eq!(polled(&mut asking, &mut now, &[100]), 1000, "what came before was no asking");
    }
}
