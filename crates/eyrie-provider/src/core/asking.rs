//! Whether the program only polls for messages, and for how long it has polled in vain. The
//! evidence is the ticks at which its progress calls begin and end, the processor time that the
//! rank has used where that says more, and what the program does after a sleep in vain: a program
//! that then sends had something to do. It must never read a clock.

/// Progress calls that find nothing, one right after another, before the next one sleeps for a
/// message.
const SPINS: u32 = 300;
/// Ticks between two progress calls up to which the program is taken to do nothing but wait.
const WAITING_GAP: u64 = 30_000;
/// Processor time between two progress calls, in ns, from which on the program has computed; and
/// what a call in vain may take by itself. Where there are more ranks than processors a rank that
/// waits lets others go first between its calls.
const COMPUTED_NS: u64 = 10_000;
const CALL_NS: u64 = 3_000;
/// Long pauses without a message after which processor time is asked for, which takes longer than a
/// call: where one processor does all there is one for each message.
const FREE_PAUSES: u32 = 3;
/// Ticks, and calls in vain, after which a program that waits like this sleeps, however few its
/// calls are.
const WAITED: u64 = 3_000_000;
const FEW_SPINS: u32 = 30;
/// Calls between one that has slept in vain and the next that sleeps. This bounds how much a
/// program is slowed that computes between its calls too little to be seen.
const AGAIN: u32 = 60;
/// How often all of that doubles for a program that had something to do while it slept: by so much
/// each time, at most up to the second; it halves when a message ends a long wait.
const DOUBLED: u32 = 4;
const DOUBLED_MOST: u32 = 8;

/// For how many ticks a call has asked for messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Asked {
    /// It kept the processor busy in vain: 0 for a call that slept, and for one that took so long
    /// that other processes must have run.
    pub polled: u64,
    /// It had nothing to do but to wait, busy or not.
    pub waited: u64,
}

/// The idle progress calls of a rank.
#[derive(Clone, Copy, Default)]
pub struct Asking {
    /// One right after another, without a message.
    calls: u32,
    /// When the first one began, and the last one ended.
    first: u64,
    last: u64,
    /// Long pauses since the last message; processor time at the last one, in ns, and calls since.
    pauses: u32,
    used: Option<u64>,
    calls_since: u32,
    /// Up to here polling in vain is counted; and whether the present call sleeps.
    since: u64,
    sleeps: bool,
    /// Whether it has slept in vain since the last message; and how often its patience has doubled.
    in_vain: bool,
    doubled: u32,
    /// Processor time at its first calls, in ns; whether it does nothing but wait since; and the
    /// call from which on it may sleep then.
    early: u64,
    waits: bool,
    next: u32,
}

impl Asking {
    /// A call begins. Whether it may sleep for a message. `used`: the processor time that the
    /// rank's thread has used, in ns.
    pub fn begin(&mut self, now: u64, used: impl Fn() -> u64) -> bool {
        let paused = now.wrapping_sub(self.last) > WAITING_GAP;
        if paused && self.calls > 0 {
            self.pauses += 1;
            if self.pauses <= FREE_PAUSES || self.has_computed(used()) {
                self.calls = 0;
            }
        }
        if self.calls == 0 {
            self.first = now;
        }
        self.since = if self.calls > 0 && !paused { self.last } else { now };
        self.calls += 1;
        self.calls_since += 1;
        if self.calls == FEW_SPINS {
            (self.early, self.waits, self.next) = (used(), false, 0);
        }
        self.waits = self.waits || self.has_waited_long(now) && self.only_asks(&used);
        self.sleeps = self.waits && self.calls > FEW_SPINS && self.calls >= self.next;
        self.sleeps
    }

    fn has_waited_long(&self, now: u64) -> bool {
        let waited = now.wrapping_sub(self.first) > WAITED << self.doubled;
        let calls = self.calls >> self.doubled;
        calls > FEW_SPINS && waited || calls > SPINS
    }

    /// Whether the processor time since the first calls went by asking; else the program computes a
    /// little between its calls, and has as much patience again.
    fn only_asks(&mut self, used: impl Fn() -> u64) -> bool {
        let calls = u64::from(self.calls - FEW_SPINS);
        let asks = used().saturating_sub(self.early) <= COMPUTED_NS + CALL_NS * calls;
        if !asks {
            self.calls = 0;
        }
        asks
    }

    /// The program does something else than polling. If it has polled so often before, its own work
    /// caused this, and no message.
    pub fn acted(&mut self) {
        if std::mem::take(&mut self.in_vain) || self.calls > SPINS {
            self.doubled = (self.doubled + DOUBLED).min(DOUBLED_MOST);
        }
        self.calls = 0;
    }

    /// Whether the program computed since the last long pause. True the first time, when it is not
    /// known.
    fn has_computed(&mut self, used: u64) -> bool {
        let calls = u64::from(std::mem::take(&mut self.calls_since));
        let before = self.used.replace(used);
        before.is_none_or(|before| used.saturating_sub(before) > COMPUTED_NS + CALL_NS * calls)
    }

    /// The call is over.
    pub fn end(&mut self, now: u64, nothing: bool) -> Asked {
        self.last = now;
        if nothing && self.sleeps {
            self.in_vain = true;
            self.next = self.calls + (AGAIN << self.doubled);
        }
        let ticks = now.wrapping_sub(self.since);
        let is_busy = nothing && !self.sleeps && ticks <= 2 * WAITING_GAP;
        let waits = nothing || self.sleeps;
        Asked { polled: if is_busy { ticks } else { 0 }, waited: if waits { ticks } else { 0 } }
    }

    /// The call found something: the program goes on.
    pub fn found(&mut self) {
        if self.calls > SPINS {
            self.doubled /= 2;
        }
        self.in_vain = false;
        self.calls = 0;
        self.pauses = 0;
        self.used = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls that take 1000 ticks, with pauses before them.
    fn polled(asking: &mut Asking, now: &mut u64, pauses: &[u64]) -> u64 {
        let mut call = |pause: &u64| {
            *now += pause;
            asking.begin(*now, || *now);
            *now += 1000;
            asking.end(*now, true).polled
        };
        pauses.iter().map(&mut call).sum()
    }

    #[test]
    fn who_asks_all_the_time_has_polled_all_the_time_and_then_sleeps() {
        let mut asking = Asking::default();
        let mut now = 1 << 40;
        assert_eq!(polled(&mut asking, &mut now, &[500; 100]), 100 * 1500 - 500);
        assert!(!asking.begin(now, || 0));
        asking.end(now, true);
        assert!(calls_to_sleep(&mut asking, &mut now) > SPINS - 102);
        let slept = Asked { polled: 0, waited: 3_000_500 };
        assert_eq!(asking.end(now + 3_000_000, true), slept);
        now += 3_000_000;
        assert_eq!(calls_to_sleep(&mut asking, &mut now), AGAIN - 1, "what if it has computed?");
    }

    /// How many calls it makes before one that sleeps, which is not over yet.
    fn calls_to_sleep(asking: &mut Asking, now: &mut u64) -> u32 {
        for calls in 0..1_000_000 {
            *now += 500;
            if asking.begin(*now, || *now / 5) {
                return calls;
            }
            *now += 1000;
            asking.end(*now, true);
        }
        panic!("it spins for ever");
    }

    #[test]
    fn what_is_computed_between_calls_or_by_others_in_one_is_not_polled() {
        let mut asking = Asking::default();
        let mut now = 1 << 40;
        let computes = [10_000_000; 10];
        assert_eq!(polled(&mut asking, &mut now, &computes), 10 * 1000);
        asking.begin(now, || now);
        let beside = Asked { polled: 0, waited: 10_000_000 };
        assert_eq!(asking.end(now + 10_000_000, true), beside, "others have run");
        asking.begin(now + 10_000_500, || now);
        assert_eq!(asking.end(now + 10_001_000, false), Asked::default(), "a message has come");
        asking.found();
        now += 10_002_000;
        assert_eq!(polled(&mut asking, &mut now, &[100]), 1000, "what came before was no asking");
    }

    /// Calls of 1000 ticks, each after `pause`, in which the rank uses so many ns. Whether one of
    /// them sleeps.
    fn sleeps_after(calls: u32, pause: u64, uses: u64) -> bool {
        let mut asking = Asking::default();
        let mut now = 1 << 40;
        let mut used = 0;
        let mut sleeps = false;
        for _ in 0..calls {
            (now, used) = (now + pause, used + uses);
            sleeps |= asking.begin(now, || used);
            now += 1000;
            asking.end(now, true);
        }
        sleeps
    }

    #[test]
    fn who_computes_a_little_between_calls_does_not_sleep() {
        assert!(sleeps_after(10_000, 2_000, 1_000), "it asks for ever");
        assert!(!sleeps_after(10 * SPINS + 1, 15_000, 5_000), "it slept while it had to compute");
    }

    /// How many of so many rounds sleep in which a program asks `calls` times, which takes it 300
    /// ns, and then sends, or gets a message.
    fn rounds_that_sleep(rounds: u32, calls: u32, acts: bool) -> u32 {
        let mut asking = Asking::default();
        let mut now = 1 << 40;
        let mut sleep = 0;
        for _ in 0..rounds {
            let mut sleeps = false;
            for _ in 0..calls {
                now += 500;
                sleeps |= asking.begin(now, || now / 5);
                now += 1000;
                asking.end(now, true);
            }
            sleep += u32::from(sleeps);
            if acts {
                asking.acted()
            } else {
                asking.found()
            }
        }
        sleep
    }

    #[test]
    fn who_sends_after_it_has_slept_in_vain_is_not_put_to_sleep_again() {
        assert_eq!(rounds_that_sleep(100, 2000, true), 1);
        assert!(rounds_that_sleep(100, 50_000, true) <= 3);
        assert_eq!(rounds_that_sleep(100, 2000, false), 100, "who waits for others sleeps");
        let mut asking = Asking { doubled: 3, ..Asking::default() };
        let mut now = 1 << 40;
        for _ in 0..3 {
            polled(&mut asking, &mut now, &[500; SPINS as usize + 1]);
            asking.found();
        }
        assert_eq!(asking.doubled, 0, "it never sleeps again");
    }

    #[test]
    fn who_lets_others_go_first_sleeps_and_who_computes_does_not() {
        assert!(sleeps_after(100, 1_000_000, 2_000), "it asks for ever beside others");
        assert!(!sleeps_after(FEW_SPINS, 1_000_000, 2_000), "it sleeps at once");
        assert!(!sleeps_after(10_000, 1_000_000, 300_000), "it slept while it had to compute");
        assert!(!sleeps_after(10_000, 50_000, 20_000), "it slept while it had to compute");
    }
}
