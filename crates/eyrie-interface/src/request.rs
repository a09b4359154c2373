//! What users ask of a running job: one JSON request, one JSON answer ([`crate::answer`]).

use crate::manner::Manner;
use crate::proposal::Goal;
use eyrie_wire::{Node, Rank};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How long a job may take for an answer: at once, but for images, which take as long as storing
/// them does.
const PATIENCE: Duration = Duration::from_secs(10);
const IMAGE_PATIENCE: Duration = Duration::from_secs(3600);
const JOIN_PATIENCE: Duration = Duration::from_secs(60);

/// A request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    Status,
    Inject {
        spec: String,
    },
    Checkpoint {
        rank: Option<Rank>,
    },
    /// Save the job and end it.
    Stop,
    /// `to`: where; else where the placement says.
    Migrate {
        ranks: Vec<Rank>,
        to: Option<Node>,
        manner: Manner,
    },
    Drain {
        node: Node,
    },
    Undrain {
        node: Node,
    },
    /// Which ranks should move, by what is measured over this time.
    Measure {
        over: Duration,
        goal: Goal,
    },
    /// These ranks to these nodes, all at once; and these nodes are drained.
    Rearrange {
        moves: Vec<(Rank, Node)>,
        drains: Vec<Node>,
        manner: Manner,
    },
    Trace {
        rank: Rank,
    },
    /// `allocation`: another job of Slurm that the host belongs to.
    Join {
        host: String,
        allocation: Option<u64>,
    },
}

impl Request {
    /// How long to wait for the answer.
    pub fn patience(&self) -> Duration {
        match self {
            Request::Checkpoint { .. }
            | Request::Stop
            | Request::Migrate { .. }
            | Request::Drain { .. }
            | Request::Rearrange { .. } => IMAGE_PATIENCE,
            // And its agents may take as long again.
            Request::Measure { over, .. } => 2 * PATIENCE + *over,
            Request::Join { .. } => JOIN_PATIENCE,
            Request::Status
            | Request::Inject { .. }
            | Request::Trace { .. }
            | Request::Undrain { .. } => PATIENCE,
        }
    }
}
