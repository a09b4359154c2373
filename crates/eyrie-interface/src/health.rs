//! What is known of the health of a job's nodes, as the job tells it.

use eyrie_wire::health::HealthState;
use eyrie_wire::{NodeId, Rank};
use serde::{Deserialize, Serialize};

/// The answer to [`crate::Request::Health`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Health {
    pub job: String,
    /// Seconds between two samples; `None`: nodes are not monitored.
    pub interval: Option<f64>,
    pub nodes: Vec<NodeHealth>,
}

/// A node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeHealth {
    pub node: NodeId,
    /// The name of its host, where it has one.
    pub host: Option<String>,
    pub up: bool,
    pub state: HealthState,
    /// For how many seconds it has been in this state.
    pub seconds: f64,
    /// What rules find at present.
    pub findings: Vec<FindingStatus>,
    /// What was done about it, the newest last.
    pub done: Vec<DoneStatus>,
    /// What was sampled last; `None`: nothing yet.
    pub sampled: Option<Sampled>,
}

/// Something that a rule finds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FindingStatus {
    pub rule: String,
    /// The device, interface, file system ... that it is about.
    pub what: String,
    pub state: HealthState,
    /// The evidence in words.
    pub said: String,
    /// For how many seconds it has been so.
    pub seconds: f64,
    /// For how many seconds more the rule is muted on this node: nothing is done about it.
    pub muted: Option<f64>,
}

/// Something that was done.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DoneStatus {
    /// How many seconds ago.
    pub seconds_ago: f64,
    /// In words.
    pub what: String,
}

/// The last sample of a node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sampled {
    /// How many seconds ago it came to the controller.
    pub seconds_ago: f64,
    /// Its number on this node, from 0.
    pub sample: u64,
    /// The moment at which all nodes were to sample, in nanoseconds since 1970, and how much later
    /// this one did. `in_step`: the controller's tick said when.
    pub moment_ns: u64,
    pub late_ns: u64,
    pub in_step: bool,
    /// What it was read with.
    pub reader: String,
    /// Processor time that the sample before has cost, in nanoseconds.
    pub cost_ns: u64,
    /// The share of its processors that was busy since the sample before.
    pub busy: Option<f64>,
    pub memory_bytes: u64,
    pub available_bytes: u64,
    pub ranks: Vec<RankSampled>,
}

/// The last figures of a rank.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RankSampled {
    pub rank: Rank,
    /// Processors that it was using, and those on which it asked for messages in vain.
    pub busy: Option<f64>,
    pub polling: Option<f64>,
    /// The share of its time in which it waited for messages, busy or not.
    pub waiting: Option<f64>,
    pub memory_bytes: u64,
}
