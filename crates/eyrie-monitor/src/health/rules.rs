//! The rules file. Every threshold must name its source; unknown words are errors.

use super::probe::{Probe, World};
use super::reading::{HealthState, Reading};
use super::time::Time;
use serde::Deserialize;
use std::path::Path;
use std::time::Duration;

/// The rules that apply when no file is named.
pub const DEFAULT: &str = include_str!("rules.toml");

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    pub rule: Vec<Rule>,
}

/// One rule: what is read, how often, and which values are too high.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Rule {
    pub name: String,
    pub read: Probe,
    /// Where the thresholds come from.
    pub source: String,
    pub suspect: Option<f64>,
    pub failing: Option<f64>,
    /// For counters: the time in which a whole threshold leaks away.
    #[serde(default = "day")]
    pub within: Time,
    #[serde(default = "ten_seconds")]
    pub every: Time,
    /// Whether it is applied to the nodes of a running job, too.
    #[serde(default = "yes")]
    pub in_jobs: bool,
    /// Readings in a row that must reach a threshold.
    #[serde(default = "one")]
    pub raise_after: u32,
    /// The part of a threshold at or below which its state ends.
    #[serde(default = "nine_tenths")]
    pub clear_below: f64,
    /// How long the level must stay there.
    #[serde(default = "minute")]
    pub clear_after: Time,
}

fn day() -> Time {
    Time(Duration::from_secs(86_400))
}
fn minute() -> Time {
    Time(Duration::from_secs(60))
}
fn ten_seconds() -> Time {
    Time(Duration::from_secs(10))
}
fn one() -> u32 {
    1
}
fn yes() -> bool {
    true
}
fn nine_tenths() -> f64 {
    0.9
}

impl Rule {
    /// The state that a level reaches.
    pub fn reached(&self, level: f64) -> HealthState {
        let at = |threshold: Option<f64>| threshold.is_some_and(|t| level >= t);
        match (at(self.failing), at(self.suspect)) {
            (true, _) => HealthState::Failing,
            (_, true) => HealthState::Suspect,
            _ => HealthState::Ok,
        }
    }

    /// The level at or below which a state ends.
    pub fn clears_at(&self, state: HealthState) -> f64 {
        let threshold = match state {
            HealthState::Failing => self.failing.or(self.suspect),
            _ => self.suspect.or(self.failing),
        };
        let threshold = threshold.unwrap_or(0.0);
        // With a threshold below zero (degrees below critical), a tenth less is further below.
        threshold - threshold.abs() * (1.0 - self.clear_below)
    }

    /// Reads what the rule watches.
    pub fn read(&self, world: &World) -> Vec<Reading> {
        self.read.read(world)
    }
}

impl Rules {
    /// # Errors
    /// The reason with the line, for the user.
    pub fn parse(text: &str) -> Result<Rules, String> {
        let rules: Rules =
            toml::from_str(text).map_err(|e| e.to_string().trim_end().to_string())?;
        for (at, rule) in rules.rule.iter().enumerate() {
            let wrong = |why: &str| Err(format!("rule {:?}: {why}", rule.name));
            if rule.source.trim().is_empty() {
                return wrong("source is empty: say where the threshold comes from");
            }
            if rule.suspect.is_none() && rule.failing.is_none() {
                return wrong("neither suspect nor failing is given");
            }
            if rules.rule[..at].iter().any(|other| other.name == rule.name) {
                return wrong("there is another rule of this name");
            }
            if let (Some(suspect), Some(failing)) = (rule.suspect, rule.failing) {
                if suspect > failing {
                    return wrong("suspect is above failing");
                }
            }
        }
        Ok(rules)
    }

    /// # Errors
    /// When the file cannot be read, or is not valid.
    pub fn load(path: &Path) -> Result<Rules, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        Rules::parse(&text).map_err(|e| format!("{}: {e}", path.display()))
    }
}

impl Rules {
    /// Those that are applied to the nodes of a running job.
    #[must_use]
    pub fn of_jobs(mut self) -> Rules {
        self.rule.retain(|rule| rule.in_jobs);
        self
    }
}

impl Default for Rules {
    fn default() -> Rules {
        Rules::parse(DEFAULT).expect("tested")
    }
}
