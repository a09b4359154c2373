//! What users are answered.

use super::proposal::Proposal;
use eyrie_wire::{ImageId, Rank};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Number of a request of a user.
pub type RequestId = u64;

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

/// The answer to a request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The failure is going to be made.
    Accepted,
    Checkpoints(Vec<Outcome>),
    /// What should move.
    Proposal(Box<Proposal>),
    /// It cannot be done: a text for the user.
    Refused(String),
}
