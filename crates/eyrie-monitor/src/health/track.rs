//! The state of one thing that a rule watches. It is raised when a threshold is reached often
//! enough, and lowered only when the level has stayed well below for a while, so that it does not
//! flap. Pure.

use super::bucket::Bucket;
use super::reading::{HealthState, Value};
use super::rules::Rule;
use std::time::Duration;

#[derive(Clone, Debug, Default)]
pub struct Track {
    state: HealthState,
    /// The counter at the last reading. What the first reading shows happened before.
    counter: Option<u64>,
    /// The highest value, and the one before, of what should stay as it is.
    highest: f64,
    before: Option<f64>,
    suspect: Bucket,
    failing: Bucket,
    /// Readings in a row at or above the threshold of this state.
    above: (HealthState, u32),
    /// Since when the level has been at or below what clears the state.
    below_since: Option<Duration>,
}

/// The result of a reading.
pub struct Judged {
    pub state: HealthState,
    /// The level, or that of the bucket.
    pub value: f64,
    pub threshold: Option<f64>,
}

impl Track {
    pub fn state(&self) -> HealthState {
        self.state
    }

    pub fn take(&mut self, rule: &Rule, value: Value, now: Duration) -> Judged {
        let (level, wanted) = match value {
            Value::Level(level) => (level, rule.reached(level)),
            Value::Height(height) => {
                self.highest = self.highest.max(height);
                let lost = if self.highest > 0.0 { 1.0 - height / self.highest } else { 0.0 };
                (lost, rule.reached(lost))
            }
            Value::Still(now) => {
                let change = self.before.replace(now).map_or(0.0, |before| (now - before).abs());
                (change, rule.reached(change))
            }
            Value::Count(total) => self.count(rule, total, now),
        };
        self.raise(rule, wanted);
        self.lower(rule, level, wanted, now);
        let threshold = match self.state.max(wanted) {
            HealthState::Failing => rule.failing,
            _ => rule.suspect.or(rule.failing),
        };
        Judged { state: self.state, value: (level * 1000.0).round() / 1000.0, threshold }
    }

    /// For a counter: the level of its bucket, and the state that it reaches.
    fn count(&mut self, rule: &Rule, total: u64, now: Duration) -> (f64, HealthState) {
        let new = match self.counter {
            // It went back: the device was reset, and has counted this many since.
            Some(before) if total < before => total,
            Some(before) => total - before,
            None => 0,
        };
        self.counter = Some(total);
        let within = rule.within.0;
        let fill = |bucket: &mut Bucket, threshold: Option<f64>| {
            threshold.map(|t| (bucket.add(new as f64, t, within, now), t))
        };
        let failing = fill(&mut self.failing, rule.failing);
        let suspect = fill(&mut self.suspect, rule.suspect);
        let reached =
            |b: Option<(f64, f64)>| b.is_some_and(|(level, threshold)| level >= threshold);
        match (reached(failing), reached(suspect)) {
            (true, _) => (failing.map_or(0.0, |b| b.0), HealthState::Failing),
            (_, true) => (suspect.map_or(0.0, |b| b.0), HealthState::Suspect),
            _ => (suspect.or(failing).map_or(0.0, |b| b.0), HealthState::Ok),
        }
    }

    fn raise(&mut self, rule: &Rule, wanted: HealthState) {
        if wanted <= self.state {
            self.above = (HealthState::Ok, 0);
            return;
        }
        self.above = match self.above {
            (state, times) if state == wanted => (state, times + 1),
            _ => (wanted, 1),
        };
        if self.above.1 >= rule.raise_after {
            self.state = wanted;
            self.above = (HealthState::Ok, 0);
            self.below_since = None;
        }
    }

    fn lower(&mut self, rule: &Rule, level: f64, wanted: HealthState, now: Duration) {
        if wanted >= self.state || level > rule.clears_at(self.state) {
            self.below_since = None;
            return;
        }
        let since = *self.below_since.get_or_insert(now);
        if now.saturating_sub(since) >= rule.clear_after.0 {
            self.state = wanted;
            self.below_since = None;
        }
    }
}
