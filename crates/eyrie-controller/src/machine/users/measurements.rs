//! Measurements that users wait for, as far as agents have answered. Decides nothing.

use super::answer::RequestId;
use eyrie_interface::proposal::Goal;
use eyrie_wire::control::NodeUsage;
use eyrie_wire::Node;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A measurement that a user waits for.
#[derive(Debug, Serialize, Deserialize)]
pub struct Pending {
    pub n: u64,
    pub request: RequestId,
    pub goal: Goal,
    pub until: Duration,
    /// Nodes that have not answered.
    pub awaited: BTreeSet<Node>,
    pub heard: BTreeMap<Node, NodeUsage>,
}

/// All measurements.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Measurements {
    pub last: u64,
    pub pending: Vec<Pending>,
}
