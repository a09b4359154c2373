//! What is read of a node for its health, and how it is judged to be.

use serde::Serialize;

/// How a part of the node, or the node, is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HealthState {
    #[default]
    Ok,
    /// It may fail: prepare.
    Suspect,
    /// It is failing: leave.
    Failing,
}

impl std::str::FromStr for HealthState {
    type Err = String;
    fn from_str(text: &str) -> Result<HealthState, String> {
        match text {
            "ok" => Ok(HealthState::Ok),
            "suspect" => Ok(HealthState::Suspect),
            "failing" => Ok(HealthState::Failing),
            other => Err(format!("unknown state {other:?}: choose ok, suspect or failing")),
        }
    }
}

/// What one thing showed.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// The device, sensor, interface ...
    pub what: String,
    pub value: Value,
    /// In words, with the unit.
    pub said: String,
    pub read_from: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A total that grows.
    Count(u64),
    Level(f64),
}
