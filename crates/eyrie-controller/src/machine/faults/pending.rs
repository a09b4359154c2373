//! Injected failures that wait for their moment.

use crate::inject::{Fault, Injection, When};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Time between two random kills: evenly between these, in milliseconds.
const RANDOM_GAP_MS: std::ops::Range<u64> = 100..1000;

/// Injections that wait for their moment.
#[derive(Debug, Serialize, Deserialize)]
pub struct Faults {
    /// Given on the command line: their times count from the start of the ranks.
    given: Vec<Injection>,
    timed: Vec<(Duration, What)>,
    /// For the middle of a checkpoint or a recovery.
    moments: Vec<(Fault, When)>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum What {
    Fault(Fault),
    /// One of `left` random kills.
    Random {
        left: u32,
        seed: u64,
    },
}

/// What is random about one of `left` kills: nothing of it has to be kept from one to the next.
fn random(left: u32, seed: u64) -> SmallRng {
    SmallRng::seed_from_u64(seed.wrapping_add(u64::from(left) << 32))
}

/// Which of so many ranks dies by one of `left` random kills.
pub fn victim(left: u32, seed: u64, ranks: usize) -> usize {
    let mut random = random(left, seed);
    random.gen_range(RANDOM_GAP_MS);
    random.gen_range(0..ranks)
}

impl Faults {
    pub fn new(given: &[Injection]) -> Faults {
        Faults { given: given.to_vec(), timed: Vec::new(), moments: Vec::new() }
    }

    pub fn begin(&mut self, now: Duration) {
        for injection in std::mem::take(&mut self.given) {
            self.add(&injection, now);
        }
    }

    pub fn add(&mut self, injection: &Injection, now: Duration) {
        match *injection {
            Injection::At { fault, when: When::After(delay) } => {
                self.timed.push((now + delay, What::Fault(fault)))
            }
            Injection::At { fault, when } => self.moments.push((fault, when)),
            Injection::RandomRanks { count, seed } => {
                self.add_random(count, seed, now);
            }
        }
    }

    /// Takes those that were not injected, as users write them.
    pub fn take_left(&mut self) -> Vec<String> {
        let mut left: Vec<String> = self.given.drain(..).map(|i| i.to_string()).collect();
        left.extend(self.timed.drain(..).map(|(_, what)| match what {
            What::Fault(fault) => fault.to_string(),
            What::Random { left, .. } => format!("random-ranks ({left} left)"),
        }));
        let moment = |(fault, when): (Fault, When)| format!("{fault}@{when}");
        left.extend(self.moments.drain(..).map(moment));
        left
    }

    pub fn add_random(&mut self, left: u32, seed: u64, now: Duration) {
        if left > 0 {
            let at = now + Duration::from_millis(random(left, seed).gen_range(RANDOM_GAP_MS));
            self.timed.push((at, What::Random { left, seed }));
        }
    }

    /// Takes those whose moment it is.
    pub fn take_of_moment(&mut self, is_now: impl Fn(Fault, When) -> bool) -> Vec<Fault> {
        let moments = std::mem::take(&mut self.moments);
        let (now, later) = moments.into_iter().partition(|(fault, when)| is_now(*fault, *when));
        self.moments = later;
        let now: Vec<(Fault, When)> = now;
        now.into_iter().map(|(fault, _)| fault).collect()
    }

    pub fn next(&self) -> Option<Duration> {
        self.timed.iter().map(|(at, _)| *at).min()
    }

    pub fn take_due(&mut self, now: Duration) -> Vec<What> {
        let (due, later) = std::mem::take(&mut self.timed).into_iter().partition(|t| t.0 <= now);
        self.timed = later;
        let mut due: Vec<(Duration, What)> = due;
        due.sort_by_key(|t| t.0);
        due.into_iter().map(|t| t.1).collect()
    }
}
