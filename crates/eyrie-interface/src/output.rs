//! What the ranks of a job have printed last, as the job tells it.

use eyrie_wire::control::StandardStream;
use serde::{Deserialize, Serialize};

/// A line of the answer to [`crate::Request::Output`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Printed {
    /// Something before it was printed that is not told: it was too much.
    pub gap: bool,
    /// In the order in which it was printed. A piece may end in the middle of a line.
    pub pieces: Vec<(StandardStream, String)>,
}
