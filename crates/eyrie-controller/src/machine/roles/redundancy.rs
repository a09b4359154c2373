//! What is kept twice. Plain data.

use eyrie_interface::status::Kept;
use eyrie_wire::NodeId;
use serde::{Deserialize, Serialize};

/// Why a further copy cannot be had, and the remedy.
pub const NO_OTHER_HOST: &str =
    "no other host is up, has room and is not drained; `eyrie join` adds one";

/// The copies of the journal on other hosts than the controller's.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct JournalCopies {
    pub promised: usize,
    /// The nodes that have a whole one.
    pub nodes: Vec<NodeId>,
    /// Those that are being made.
    pub coming: usize,
}

/// Something that is kept only once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missing {
    pub what: Kept,
    pub cause: String,
    /// It comes back by itself, as things are.
    pub(super) comes: bool,
}
