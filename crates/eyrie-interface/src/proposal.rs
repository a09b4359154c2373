//! What a user is shown before anything moves: what was measured, what should move, what that
//! brings, and why. Plain data.

use eyrie_wire::{NodeId, Rank};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// For how long ranks are measured that are to be balanced.
pub const BALANCE_OVER: &str = "5s";
/// Within what time the moves of a balanced job must have paid.
pub const PAYBACK: &str = "1min";
/// For how long ranks are measured that are to be on fewer nodes.
pub const CONSOLIDATE_OVER: &str = "1s";

/// What is wanted of the nodes of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// The busiest node has less to do. A move must have paid within this time.
    Balance { payback: Duration },
    /// No more nodes than this have ranks.
    Consolidate { nodes: u32 },
}

/// A node as it was measured, in processors.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeShare {
    pub node: NodeId,
    pub processors: f64,
    /// Kept busy by others than ranks of the job.
    pub others: f64,
    /// Kept busy by what its ranks compute.
    pub computing: f64,
    /// How busy its processors are with ranks, of what others leave: now and after the moves.
    pub busy: f64,
    pub then: f64,
    /// The first node that has the same processors.
    pub same_as: Option<NodeId>,
}

/// A rank as it was measured.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RankShare {
    pub rank: Rank,
    pub node: NodeId,
    /// Processors that it keeps busy with computing, and with asking for messages in vain.
    pub computing: f64,
    pub polling: f64,
    pub memory: u64,
    pub to: Option<NodeId>,
    /// Seconds that the job may lose by its move.
    pub cost: f64,
    /// By how much less busy the busiest node is then. The move of a rank that changes places with
    /// another brings nothing by itself.
    pub brings: Option<f64>,
}

/// What links carry, as it was measured.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Links {
    /// Bytes that the busiest link carries in a second.
    pub busiest: f64,
    /// The share of time that carrying all of it takes.
    pub share: f64,
}

/// The answer to a user who has asked where ranks should be on the network.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Arrangement {
    /// Each rank that should move, the node that it is on, and the one that it should go to.
    pub moves: Vec<(Rank, NodeId, NodeId)>,
    /// A description of it.
    pub steps: Vec<String>,
    pub now: Links,
    pub then: Links,
    /// Seconds that the job gains in the time that is left, and may lose by the moves.
    pub gain: f64,
    pub cost: f64,
    /// Whether it gains more than it may lose.
    pub pays: bool,
}

/// The answer to a user who has asked what should move.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Proposal {
    /// Seconds that were measured.
    pub over: f64,
    pub nodes: Vec<NodeShare>,
    pub ranks: Vec<RankShare>,
    /// Nodes that have no ranks afterwards.
    pub left: Vec<NodeId>,
    /// How busy the busiest node is, now and then.
    pub busiest: f64,
    pub then: f64,
    /// Why this, or why nothing.
    pub why: String,
}
