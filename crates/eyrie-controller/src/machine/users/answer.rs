//! What users are answered.

use eyrie_interface::answer::Outcome;
use eyrie_interface::proposal::{Arrangement, Proposal};
use serde::{Deserialize, Serialize};

/// Number of a request of a user.
pub type RequestId = u64;

/// The answer to a request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The failure is going to be made.
    Accepted,
    Checkpoints(Vec<Outcome>),
    /// What should move.
    Proposal(Box<Proposal>),
    /// Where ranks should be.
    Arrangement(Box<Arrangement>),
    /// It cannot be done: a text for the user.
    Refused(String),
}
