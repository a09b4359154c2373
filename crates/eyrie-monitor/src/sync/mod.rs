//! When samples are taken: on all nodes at the same moment. A pace waits for the next moment and
//! returns it. It must never drift, wait without a bound, or wake up between two moments.

mod conductor;
mod drift;
mod follow;
mod moment;
mod wire;

pub use conductor::Conductor;
pub use moment::{Mode, Moment};
pub use wire::Key;

use crate::clock::{next_boundary, Clock};
use std::net::SocketAddr;

/// Waits for moments.
pub enum Pace {
    Clock { clock: Clock, last: Option<u64> },
    Own { start: u64, last: u64 },
    Follow(Box<follow::Follower>),
}

impl Pace {
    /// # Errors
    /// When the conductor at `with` does not answer, or is missing.
    pub fn new(
        mode: Mode,
        interval_ns: u64,
        with: Option<SocketAddr>,
        key: &Key,
    ) -> Result<Pace, String> {
        let conductor = || {
            with.ok_or(
                "--sync once and always need --with HOST:PORT, where `eyrie monitor conduct` runs",
            )
        };
        Ok(match mode {
            Mode::Clock => Pace::Clock { clock: Clock::wall(), last: None },
            Mode::Off => {
                let now = Clock::Monotonic.now_ns();
                Pace::Own { start: now, last: now }
            }
            Mode::Once | Mode::Always => Pace::Follow(Box::new(follow::Follower::join(
                mode,
                interval_ns,
                conductor()?,
                key.clone(),
            )?)),
        })
    }

    /// Waits for the next moment, at most about `stretch` intervals.
    pub fn wait(&mut self, interval_ns: u64, stretch: u32) -> Moment {
        let gap = interval_ns * u64::from(stretch);
        match self {
            Pace::Clock { clock, last } => {
                let intended = next_boundary(clock.now_ns(), gap);
                clock.sleep_until(intended);
                let skew_ns = clock.now_ns() as i64 - intended as i64;
                let steps = last.map_or(1, |last| intended.saturating_sub(last) / interval_ns);
                *last = Some(intended);
                Moment {
                    intended_ns: intended,
                    skew_ns,
                    step: steps.clamp(1, u32::MAX.into()) as u32,
                    alone: false,
                }
            }
            Pace::Own { start, last } => {
                let clock = Clock::Monotonic;
                let intended = *start + next_boundary(clock.now_ns() - *start, gap);
                clock.sleep_until(intended);
                let now = clock.now_ns();
                let step = ((intended - *last) / interval_ns) as u32;
                *last = intended;
                let skew_ns = (now - intended) as i64;
                let intended_ns = Clock::Realtime.now_ns() - (now - intended);
                Moment { intended_ns, skew_ns, step, alone: false }
            }
            Pace::Follow(follower) => follower.wait(interval_ns, stretch),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn moments_of_the_clock_are_multiples_of_the_interval() {
        let mut pace = Pace::new(Mode::Clock, 3 * MS, None, &Key::default()).unwrap();
        let mut before = 0;
        for _ in 0..5 {
            let moment = pace.wait(3 * MS, 1);
            assert_eq!(moment.intended_ns % (3 * MS), 0);
            assert!(moment.intended_ns > before && moment.skew_ns >= 0);
            before = moment.intended_ns;
        }
        let moment = pace.wait(3 * MS, 4);
        assert_eq!(moment.intended_ns % (12 * MS), 0);
    }

    #[test]
    fn missed_moments_are_counted() {
        let mut pace = Pace::new(Mode::Off, MS, None, &Key::default()).unwrap();
        let first = pace.wait(MS, 1);
        Clock::Realtime.sleep_until(first.intended_ns + 10 * MS);
        assert!(pace.wait(MS, 1).step >= 10);
    }

    #[test]
    fn a_follower_needs_the_address_of_its_conductor() {
        assert!(Pace::new(Mode::Once, MS, None, &Key::default()).err().unwrap().contains("--with"));
        assert_eq!("always".parse(), Ok(Mode::Always));
        assert!("sometimes".parse::<Mode>().unwrap_err().contains("choose"));
    }
}
