//! A sample of the node, on its way from the sampling thread to the agent's loop. Plain data.

use eyrie_monitor::sample::{Head, Process};

/// A sample as the sampling thread has taken it.
pub struct Sample {
    pub head: Head,
    pub processes: Vec<Process>,
    /// The controller's tick said when.
    pub in_step: bool,
}
