//! How many steps programs compute: as many as take some seconds on this machine, measured once for
//! each kind and size of memory. Never by the speed of another machine: a run that is over before
//! its ranks have moved shows nothing.

use std::collections::HashMap;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use crate::machine::cores;
use crate::ppmr::kinds::{Kind, Solver};
use crate::Effort;

/// Seconds of a run and of a quick one, and the least and most steps.
const RUN_S: f64 = 6.0;
const QUICK_RUN_S: f64 = 0.5;
const STEPS_LEAST: u32 = 8;
const STEPS_MOST: u32 = 100_000;

/// How many times longer a run is whose ranks move live. Each of its moves takes some seconds in
/// which they compute, and should be over before the next one, or the end.
const LIVE_TIMES: u32 = 4;

/// Steps that are timed, after one that is not.
const TIMED: u32 = 2;

/// The time of steps.
pub struct Pace {
    ranks: u32,
    effort: Effort,
    /// Seconds of all ranks.
    step_s: HashMap<(Kind, u64), f64>,
}

impl Pace {
    pub fn new(ranks: u32, effort: Effort) -> Pace {
        Pace { ranks, effort, step_s: HashMap::new() }
    }

    /// Steps of a run of ranks of `mib` MiB.
    pub fn steps(&mut self, kind: Kind, mib: u64) -> u32 {
        let ranks = self.ranks;
        let step_s = *self.step_s.entry((kind, mib)).or_insert_with(|| measure(kind, mib, ranks));
        steps_within(if self.effort.quick { QUICK_RUN_S } else { RUN_S }, step_s)
    }

    /// The same where they move live.
    pub fn live_steps(&mut self, kind: Kind, mib: u64) -> u32 {
        self.steps(kind, mib) * LIVE_TIMES
    }
}

fn steps_within(run_s: f64, step_s: f64) -> u32 {
    // A step that takes no time gives infinitely many steps, and so the bound.
    ((run_s / step_s) as u32).clamp(STEPS_LEAST, STEPS_MOST)
}

/// Seconds of a step of all ranks, when each processor computes its share of them.
fn measure(kind: Kind, mib: u64, ranks: u32) -> f64 {
    let at_once = (cores() as u32).min(ranks);
    let together = Barrier::new(at_once as usize);
    let alone = |solver: &mut Solver| solver.step(|_| Ok(())).expect("no neighbour is asked");
    let timed = |seed: u32| {
        let mut solver = Solver::new(kind, mib, seed.into());
        alone(&mut solver);
        together.wait();
        let begun = Instant::now();
        for _ in 0..TIMED {
            alone(&mut solver);
        }
        begun.elapsed().as_secs_f64() / f64::from(TIMED)
    };
    let slowest = thread::scope(|scope| {
        let solvers: Vec<_> =
            (0..at_once).map(|seed| scope.spawn(move || timed(seed + 1))).collect();
        let seconds = solvers.into_iter().map(|solver| solver.join().expect("it cannot panic"));
        seconds.fold(0.0, f64::max)
    });
    slowest * f64::from(ranks.div_ceil(at_once))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_as_many_steps_as_fit_its_time() {
        assert_eq!(steps_within(6.0, 0.05), 120);
        assert_eq!((steps_within(6.0, 100.0), steps_within(6.0, 0.0)), (STEPS_LEAST, STEPS_MOST));
    }

    #[test]
    fn a_step_is_timed_once() {
        let mut pace = Pace::new(3, Effort { rounds: 1, quick: false });
        pace.step_s.insert((Kind::Bt, 16), 0.01);
        assert_eq!((pace.steps(Kind::Bt, 16), pace.live_steps(Kind::Bt, 16)), (600, 2400));
        assert!(pace.steps(Kind::Bt, 1) >= STEPS_LEAST);
        assert!(pace.step_s[&(Kind::Bt, 1)] > 0.0);
    }
}
