//! How often each process is read: less often than at every sample while it behaves as forecast.
//! Pure; must never allocate.

use crate::policy::Policy;
use crate::reader::tick::Tick;
use crate::sample::Process;

/// The most samples from one reading of a process to the next.
pub const LONGEST: u16 = 16;

/// The history of one process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    cpu_ns: u64,
    at_ns: u64,
    /// Share of a core when last read.
    share: f32,
    /// Samples from one reading to the next.
    stride: u16,
    age: u16,
    known: bool,
}

impl Rate {
    /// Whether the process is to be read now. Counts the sample.
    pub fn wants(&mut self, policy: Policy, newcomers: bool) -> bool {
        self.age = self.age.saturating_add(1);
        let due = match policy {
            Policy::Off => true,
            Policy::Threshold { share } => {
                newcomers || f64::from(self.share) >= share || self.age >= LONGEST
            }
            Policy::Error { .. } => self.age >= self.stride,
        };
        !self.known || due
    }

    /// Samples since the process was read.
    pub fn age(&self) -> u16 {
        self.age
    }

    /// Notes a reading: `cpu_ns` of CPU time in all at `now_ns`. Returns the error of the forecast,
    /// in cores, if there was a forecast.
    pub fn observe(&mut self, cpu_ns: u64, now_ns: u64, policy: Policy) -> Option<f64> {
        let elapsed = now_ns.saturating_sub(self.at_ns);
        let before = *self;
        self.at_ns = now_ns;
        self.cpu_ns = cpu_ns;
        self.age = 0;
        self.known = true;
        self.stride = self.stride.max(1);
        if !before.known || elapsed == 0 {
            return None;
        }
        self.share = (cpu_ns.saturating_sub(before.cpu_ns) as f64 / elapsed as f64) as f32;
        let error = f64::from((self.share - before.share).abs());
        if let Policy::Error { share } = policy {
            self.stride = match error {
                e if e > share => 1,
                e if e <= share / 2.0 => (self.stride * 2).min(LONGEST),
                _ => self.stride,
            };
        }
        Some(error)
    }
}

/// The rates of the processes that a reader lists in nearly the same order each time.
pub struct Rates(Vec<(u32, u64, Rate)>);

impl Rates {
    pub fn new(capacity: usize) -> Rates {
        Rates(vec![(0, 0, Rate::default()); capacity])
    }

    /// Decides whether a process, which has been read anyway at place `at`, is due.
    pub fn judge(&mut self, at: usize, process: &mut Process, tick: &Tick) {
        if tick.policy == Policy::Off {
            return;
        }
        let Some((pid, start, rate)) = self.0.get_mut(at) else { return };
        if (*pid, *start) != (process.pid, process.start_ns) {
            // Another process is at this place now.
            (*pid, *start, *rate) = (process.pid, process.start_ns, Rate::default());
        }
        process.due = rate.wants(tick.policy, false);
        if process.due {
            rate.observe(process.cpu_ns, tick.now_ns, tick.policy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    /// Reads a process that uses `shares` of a core, second after second. Returns the seconds at
    /// which it was read.
    fn read_at(shares: &[f64], policy: Policy) -> Vec<usize> {
        let mut rate = Rate::default();
        let mut cpu = 0.0;
        let mut read = Vec::new();
        for (second, share) in shares.iter().enumerate() {
            cpu += share * SECOND as f64;
            if rate.wants(policy, false) {
                rate.observe(cpu as u64, (second as u64 + 1) * SECOND, policy);
                read.push(second);
            }
        }
        read
    }

    #[test]
    fn without_a_policy_everything_is_read() {
        assert_eq!(read_at(&[0.0; 5], Policy::Off), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn idle_processes_wait_and_busy_ones_do_not() {
        let threshold = Policy::Threshold { share: 0.1 };
        assert_eq!(read_at(&[0.0; 40], threshold), [0, 16, 32]);
        assert_eq!(read_at(&[0.2; 40], threshold).len(), 40 - 15);
        let mut rate = Rate::default();
        assert!(rate.wants(threshold, false));
        rate.observe(0, SECOND, threshold);
        assert!(
            !rate.wants(threshold, false) && rate.wants(threshold, true),
            "with a newcomer all are read"
        );
    }

    #[test]
    fn steady_work_is_read_ever_less_and_a_change_at_once() {
        let error = Policy::Error { share: 0.02 };
        let steady = read_at(&[0.5; 64], error);
        assert!(steady.len() < 12, "{steady:?}");
        assert!(steady.windows(2).all(|w| w[1] - w[0] <= LONGEST as usize));
        let mut shares = vec![0.0; 32];
        shares.extend((0..32).map(|i| if i % 2 == 0 { 0.9 } else { 0.1 }));
        let busy = read_at(&shares, error).iter().filter(|s| **s >= 32 + LONGEST as usize).count();
        assert!(busy >= 14, "a restless process is read at every sample: {busy}");
    }

    proptest! {
        #[test]
        fn no_process_waits_longer_than_the_longest(
            shares in prop::collection::vec(0.0..1.0f64, 64), bound in 0.001..0.5f64,
        ) {
            let threshold = Policy::Threshold { share: bound };
            for policy in [Policy::Error { share: bound }, threshold] {
                let read = read_at(&shares, policy);
                prop_assert_eq!(read[0], 0);
                prop_assert!(read.windows(2).all(|w| w[1] - w[0] <= LONGEST as usize));
            }
        }

        #[test]
        fn within_the_bound_while_shares_stay(share in 0.0..1.0f64) {
            // Read seldom, a straight line forecasts all values in between exactly.
            let policy = Policy::Error { share: 0.01 };
            let mut rate = Rate::default();
            for second in 1..64u64 {
                let cpu = (share * (second * SECOND) as f64) as u64;
                if rate.wants(policy, false) {
                    let error = rate.observe(cpu, second * SECOND, policy);
                    if second > 2 { prop_assert!(error.unwrap() < 0.001); }
                }
            }
        }
    }
}
