//! The outcome of a method, or why it has none. Records only; [`crate::walk`] makes them.

use eyrie_topology::{NetworkNode, RouteError, TopologyError};

use crate::evaluate::{Counted, Score};
use crate::method::Method;
use crate::squeeze::Squeezed;

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    #[error(transparent)]
    Input(#[from] TopologyError),
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error("{0}")]
    Stuck(String),
}

/// Where a method is stuck.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stuck {
    /// Batches of failures that it has handled before this one.
    pub after: usize,
    pub why: String,
}

/// The outcome of a method.
#[derive(Debug, Clone)]
pub struct Placed {
    /// Node of each rank. With squeezing, lost ranks keep their failed node and send nothing.
    pub placement: Vec<NetworkNode>,
    pub score: Score,
    pub loads: Counted,
    /// Seconds of communication in an iteration.
    pub step_s: f64,
    /// `step_s` divided by the same before any failure.
    pub ratio: f64,
    /// Ranks moved in all failures together, displaced ones included.
    pub moved: usize,
    /// A description of what was done.
    pub steps: Vec<String>,
    /// Iterations after which the moves beyond those of the cheapest method have paid off; `None`
    /// if never.
    pub break_even: Option<u64>,
    pub squeezed: Option<Squeezed>,
}

/// One method's result.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub method: Method,
    pub result: Result<Placed, Stuck>,
}
