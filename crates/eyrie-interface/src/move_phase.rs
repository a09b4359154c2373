//! The phases in which all ranks of a domain go to another one.

use serde::{Deserialize, Serialize};

/// How far the move of a domain's ranks to another one has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MovePhase {
    /// It was asked for.
    Requested,
    /// No message of another domain is on its way into the domain that is left any more.
    Flushed,
    /// All ranks stand still, and the other domain has their images.
    Imaged,
    /// They are ranks of the other domain.
    Moved,
    /// They run there.
    Resumed,
    /// They stay.
    Cancelled,
}
