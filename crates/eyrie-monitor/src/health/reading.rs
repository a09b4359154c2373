//! Readings about the health of a node, and the states that follow from them.

use serde::Serialize;

/// The state of a part of the node, or of the node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HealthState {
    #[default]
    Ok,
    /// It may fail: prepare to leave.
    Suspect,
    /// It is failing: leave now.
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

/// One reading of one thing.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// The device, sensor, interface ...
    pub what: String,
    pub value: Value,
    /// The reading in words, with its unit.
    pub said: String,
    pub read_from: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A total that grows.
    Count(u64),
    Level(f64),
    /// It should stay as high as it was: its level is the part that it has lost of the highest
    /// value.
    Height(f64),
    /// It should not change: its level is the change since the reading before.
    Still(f64),
}
