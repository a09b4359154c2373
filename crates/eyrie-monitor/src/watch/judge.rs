//! Judges the node's health, right after each sample.

use crate::clock::Clock;
use crate::health::judging::judge;
use crate::health::{Event, Health, HealthState, Rules, World};
use crate::shared::{lock, Shared};
use std::path::Path;

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
        *lock(&shared.health) = self.health.states();
        judge(&mut self.health, &self.world, &shared.ring, |health, events| {
            *lock(&shared.health) = health.states();
            events.iter().for_each(&mut self.tell);
        });
    }
}
