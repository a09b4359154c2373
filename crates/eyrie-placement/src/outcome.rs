//! What a method reaches, or why it does not. Records only; they are made by [`crate::walk`].

use eyrie_topology::{NodeId, RouteError, TopologyError};

use crate::evaluate::{Counted, Score};
use crate::method::Method;
use crate::squeeze::Squeezed;

/// Why no plan was made.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    #[error(transparent)]
    Input(#[from] TopologyError),
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error("{0}")]
    Stuck(String),
}

/// Where a method cannot go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stuck {
    /// Batches of failures that it has handled before.
    pub after: usize,
    pub why: String,
}

/// What a method reaches.
#[derive(Debug, Clone)]
pub struct Placed {
    /// Node of each rank; for squeezing lost ranks keep their failed node and send nothing.
    pub placement: Vec<NodeId>,
    pub score: Score,
    pub loads: Counted,
    /// Seconds of communication in an iteration.
    pub step_s: f64,
    /// `step_s` over the same before any failure.
    pub ratio: f64,
    /// Ranks moved in all failures together, the failed ones among them.
    pub moved: usize,
    /// What was done, in words.
    pub steps: Vec<String>,
    /// Iterations after which the moves beyond the cheapest method's are paid for: `None` if never.
    pub break_even: Option<u64>,
    pub squeezed: Option<Squeezed>,
}

/// One method's result.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub method: Method,
    pub result: Result<Placed, Stuck>,
}
