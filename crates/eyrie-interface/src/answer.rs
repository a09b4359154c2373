//! What a job answers. A [`refusal`] is `{"error": TEXT}` instead.

use crate::proposal::{Arrangement, Proposal};
use eyrie_wire::control::TraceRecord;
use eyrie_wire::{ImageId, NodeId, Rank, RankInstance};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// The answer that what was asked for is not done, and why.
pub fn refusal(why: &str) -> String {
    serde_json::json!({ "error": why }).to_string()
}

/// It is going to be done, or was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Accepted {
    pub ok: bool,
}

/// To [`crate::Request::Join`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Joined {
    pub node: NodeId,
}

/// To [`crate::Request::WayTo`]: how a command reaches the site of a domain.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "way", rename_all = "snake_case")]
pub enum WayTo {
    /// It is this one.
    Here,
    /// Over ssh.
    Ssh {
        /// The command that takes ssh's arguments.
        program: PathBuf,
        destination: String,
        /// The eyrie command there.
        eyrie: PathBuf,
    },
}

/// To [`crate::Request::Trace`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Traced {
    pub instance: RankInstance,
    pub trace: Vec<TraceRecord>,
}

/// To [`crate::Request::Measure`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Proposed {
    pub proposal: Proposal,
}

/// To [`crate::Request::Propose`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Arranged {
    pub arrangement: Arrangement,
}

/// To [`crate::Request::Checkpoint`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Checkpoints {
    pub checkpoints: Vec<Outcome>,
}

/// What became of one rank's checkpoint.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Outcome {
    Stored { rank: Rank, image: ImageId, bytes: u64, pause_ms: f64, total_ms: f64 },
    Failed { rank: Rank, failed: String },
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Stored { rank, image, bytes, pause_ms, total_ms } => write!(
                f,
                "rank {rank}: image {image}, {}, stood still {}, stored after {}",
                eyrie_units::bytes(*bytes),
                eyrie_units::nanoseconds(pause_ms * 1e6),
                eyrie_units::nanoseconds(total_ms * 1e6)
            ),
            Outcome::Failed { rank, failed } => write!(f, "rank {rank}: no checkpoint: {failed}"),
        }
    }
}
