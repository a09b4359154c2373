//! Judges the node's health, right after each sample.

use crate::clock::Clock;
use crate::health::{Event, Health, HealthState, Rules, World};
use crate::shared::{lock, Shared};
use std::path::Path;
use std::time::{Duration, Instant};

/// Longer than any interval. The end of the monitor ends the wait early.
const LONG: Duration = Duration::from_secs(365 * 86_400);

/// Called with each change of health.
pub type Tell = Box<dyn FnMut(&Event) + Send>;

/// How a node's health is judged.
pub struct Judgement {
    pub rules: Rules,
    /// Rules raised by hand.
    pub injected: Vec<(String, HealthState)>,
    pub tell: Tell,
}

pub(super) struct Judge {
    health: Health,
    world: World,
    tell: Tell,
}

impl Judge {
    pub fn new(judgement: Judgement, node: &str, root: &Path) -> Result<Judge, String> {
        let Judgement { rules, injected, tell } = judgement;
        let mut judge = Judge { health: Health::new(rules, node), world: World::new(root), tell };
        for (rule, state) in &injected {
            let event = judge.health.inject(rule, *state, Clock::Realtime.now_ns())?;
            (judge.tell)(&event);
        }
        Ok(judge)
    }

    /// Judges until the monitor ends.
    pub fn run(&mut self, shared: &Shared) {
        let begin = Instant::now();
        *lock(&shared.health) = self.health.states();
        let mut seen = None;
        let mut next = Duration::ZERO;
        loop {
            // Rules are rarely due; in between the thread does not wake up.
            if let Some(wait) = next.checked_sub(begin.elapsed()) {
                std::thread::sleep(wait);
            }
            let Some(frame) = shared.ring.wait(seen, LONG) else { return };
            seen = Some(frame.head.number);
            let events = self.health.check(&self.world, begin.elapsed(), Clock::Realtime.now_ns());
            if !events.is_empty() {
                *lock(&shared.health) = self.health.states();
                events.iter().for_each(&mut self.tell);
            }
            next = self.health.next_due();
        }
    }
}
