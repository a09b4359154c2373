//! What users ask of a running job: one JSON request, one JSON answer ([`crate::answer`]); a
//! subscriber gets one line after another.

use crate::inject::Injection;
use crate::manner::{Manner, Way};
use crate::proposal::Goal;
use eyrie_wire::{NodeId, Rank};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How long a job may take for an answer: at once, but for images, which take as long as storing
/// them does.
const PATIENCE: Duration = Duration::from_secs(10);
const IMAGE_PATIENCE: Duration = Duration::from_secs(3600);
const JOIN_PATIENCE: Duration = Duration::from_secs(60);

/// Longest line of an answer in bytes.
pub const MAX_LINE: u64 = 16 << 20;
/// How often a subscriber hears that the job is still there, at least.
pub const STREAM_HEARTBEAT: Duration = Duration::from_secs(10);

/// An injection as users write it.
mod as_text {
    use crate::inject::Injection;
    use serde::{de::Error, Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(injection: &Injection, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(injection)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Injection, D::Error> {
        String::deserialize(d)?.parse().map_err(D::Error::custom)
    }
}

/// Where a subscriber begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FirstEvent {
    /// With the events to come.
    #[default]
    New,
    /// With the oldest one that is kept.
    Oldest,
    /// With the one of this number, or not at all.
    #[serde(untagged)]
    At(u64),
}

/// A request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    Status,
    Inject {
        /// As users write it.
        #[serde(rename = "spec", with = "as_text")]
        injection: Injection,
    },
    Checkpoint {
        rank: Option<Rank>,
    },
    /// Save the job and end it.
    Stop,
    /// `to`: where; else where the placement says.
    Migrate {
        ranks: Vec<Rank>,
        to: Option<NodeId>,
        manner: Manner,
    },
    Drain {
        node: NodeId,
    },
    Undrain {
        node: NodeId,
    },
    /// All ranks of this domain to another one, by its name; `None`: they are to stay, if they can.
    MigrateDomain {
        to: Option<String>,
        way: Way,
    },
    /// Which ranks should move, by what is measured over this time.
    Measure {
        over: Duration,
        goal: Goal,
    },
    /// These ranks to these nodes, all at once; and these nodes are drained.
    Rearrange {
        moves: Vec<(Rank, NodeId)>,
        drains: Vec<NodeId>,
        manner: Manner,
    },
    Trace {
        rank: Rank,
    },
    /// The lines of the event stream ([`crate::record::Line`]), one after another until the job
    /// ends. An empty line says that the job is still there, the first one that no event from now
    /// on is missed. A [refusal](crate::answer::refusal) is the last line.
    Subscribe {
        #[serde(default)]
        from: FirstEvent,
    },
    /// `allocation`: another job of Slurm that the host belongs to.
    Join {
        host: String,
        allocation: Option<u64>,
    },
}

impl Request {
    /// Reads a request.
    ///
    /// # Errors
    /// A text for the user.
    pub fn parse(text: &str) -> Result<Request, String> {
        serde_json::from_str(text).map_err(|e| format!("not understood: {e}"))
    }

    /// How long to wait for the answer.
    pub fn patience(&self) -> Duration {
        match self {
            Request::Checkpoint { .. }
            | Request::Stop
            | Request::Migrate { .. }
            | Request::Drain { .. }
            | Request::MigrateDomain { .. }
            | Request::Rearrange { .. } => IMAGE_PATIENCE,
            // And its agents may take as long again.
            Request::Measure { over, .. } => 2 * PATIENCE + *over,
            Request::Join { .. } => JOIN_PATIENCE,
            Request::Status
            | Request::Inject { .. }
            | Request::Subscribe { .. }
            | Request::Trace { .. }
            | Request::Undrain { .. } => PATIENCE,
        }
    }
}
