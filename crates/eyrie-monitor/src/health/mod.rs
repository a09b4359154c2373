//! Whether a node is about to fail: rules from one file, applied to what the node counts and
//! measures. States are ok, suspect and failing; each change is an event with its evidence. Must
//! never block for longer than a check's time limit, nor judge without a reading.

mod bucket;
mod external;
pub mod judging;
pub mod probe;
mod reading;
pub mod rules;
mod smart;
mod time;
mod track;

pub use probe::World;
pub use reading::{HealthState, Reading, Value};
pub use rules::{Rule, Rules};

use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use track::Track;

/// A change of state.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Event {
    pub event: &'static str,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    pub node: String,
    pub rule: String,
    /// The device, interface, file system ... that the event is about.
    pub what: String,
    pub from: HealthState,
    pub to: HealthState,
    /// The state of the whole node afterwards: the worst of all.
    pub node_state: HealthState,
    pub evidence: Evidence,
}

/// The evidence for a change of state.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evidence {
    /// In words.
    pub said: String,
    /// What was read, or the level of the bucket.
    pub value: Option<f64>,
    pub threshold: Option<f64>,
    /// The file or program that it was read from.
    pub read_from: String,
    /// Where the threshold comes from.
    pub source: String,
    pub injected: bool,
}

/// All rules, with the state of what they watch.
pub struct Health {
    rules: Vec<Rule>,
    node: String,
    tracks: BTreeMap<(usize, String), Track>,
    injected: BTreeMap<String, HealthState>,
    due: Vec<Duration>,
}

impl Health {
    pub fn new(rules: Rules, node: &str) -> Health {
        let due = vec![Duration::ZERO; rules.rule.len()];
        Health {
            rules: rules.rule,
            node: node.into(),
            tracks: BTreeMap::new(),
            injected: BTreeMap::new(),
            due,
        }
    }

    /// Reads and judges what is due. `now` is a time of a clock that does not jump.
    pub fn check(&mut self, world: &World, now: Duration, time_ns: u64) -> Vec<Event> {
        let mut events = Vec::new();
        for at in 0..self.rules.len() {
            if now < self.due[at] {
                continue;
            }
            self.due[at] = now + self.rules[at].every.0;
            let readings = self.rules[at].read(world);
            events.extend(self.judge(at, &readings, now, time_ns));
        }
        events
    }

    /// When the next rule is due, by the same clock.
    pub fn next_due(&self) -> Duration {
        self.due.iter().min().copied().unwrap_or(Duration::MAX)
    }

    /// Judges readings of a rule. Does no I/O.
    pub fn judge(
        &mut self,
        at: usize,
        readings: &[Reading],
        now: Duration,
        time_ns: u64,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        for reading in readings {
            let track = self.tracks.entry((at, reading.what.clone())).or_default();
            let from = track.state();
            let judged = track.take(&self.rules[at], reading.value, now);
            if from == judged.state {
                continue;
            }
            let rule = &self.rules[at];
            let said = match reading.value {
                Value::Count(_) => {
                    format!("{} within {}: {}", judged.value, rule.within, reading.said)
                }
                Value::Level(_) | Value::Height(_) | Value::Still(_) => reading.said.clone(),
            };
            let evidence = Evidence {
                said,
                value: Some(judged.value),
                threshold: judged.threshold,
                read_from: reading.read_from.clone(),
                source: rule.source.clone(),
                injected: false,
            };
            let name = rule.name.clone();
            let what = reading.what.clone();
            let to = judged.state;
            events.push(self.event(time_ns, name, what, from, to, evidence));
        }
        events
    }

    /// Raises (or with [`HealthState::Ok`] clears) a rule by hand.
    ///
    /// # Errors
    /// When there is no such rule; names those that exist.
    pub fn inject(&mut self, rule: &str, to: HealthState, time_ns: u64) -> Result<Event, String> {
        let Some(found) = self.rules.iter().find(|r| r.name == rule) else {
            let names: Vec<&str> = self.rules.iter().map(|r| r.name.as_str()).collect();
            return Err(format!("there is no rule {rule:?}: choose one of {}", names.join(", ")));
        };
        let source = found.source.clone();
        let from = self.injected.insert(rule.into(), to).unwrap_or_default();
        let evidence = Evidence {
            said: "raised by hand".into(),
            value: None,
            threshold: None,
            read_from: "--inject".into(),
            source,
            injected: true,
        };
        Ok(self.event(time_ns, rule.into(), "injected".into(), from, to, evidence))
    }

    fn event(
        &self,
        time_ns: u64,
        rule: String,
        what: String,
        from: HealthState,
        to: HealthState,
        evidence: Evidence,
    ) -> Event {
        let node = self.node.clone();
        Event {
            event: "health",
            time_ns,
            node,
            rule,
            what,
            from,
            to,
            node_state: self.state(),
            evidence,
        }
    }

    /// The state of the node: the worst of all.
    pub fn state(&self) -> HealthState {
        let tracked = self.tracks.values().map(Track::state);
        tracked.chain(self.injected.values().copied()).max().unwrap_or_default()
    }

    /// The state of each rule: the worst of what it watches.
    pub fn states(&self) -> Vec<(String, HealthState)> {
        let of = |(at, rule): (usize, &Rule)| {
            let tracked =
                self.tracks.iter().filter(|((of, _), _)| *of == at).map(|(_, t)| t.state());
            let worst =
                tracked.chain(self.injected.get(&rule.name).copied()).max().unwrap_or_default();
            (rule.name.clone(), worst)
        };
        self.rules.iter().enumerate().map(of).collect()
    }
}

#[cfg(test)]
mod tests;
