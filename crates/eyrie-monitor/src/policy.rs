//! Which processes may wait, as the user says it.

use serde::Serialize;

/// What decides whether a process is read (where reading it costs something) and written.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "policy")]
pub enum Policy {
    /// Every process at every sample.
    Off,
    /// Processes below this share of a core wait, unless a new process has appeared (Kamoshida and
    /// Taura's OPT1, with 10 %).
    Threshold { share: f64 },
    /// A process waits twice as long each time that its CPU time was within `share` of a core of a
    /// straight line, and is read at every sample again when it was not.
    Error { share: f64 },
}
