//! Which processes are read less often, as the user chooses.

use serde::Serialize;

/// Decides whether a process is read (where reading costs something) and written.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "policy")]
pub enum Policy {
    /// Every process at every sample.
    Off,
    /// Processes below this share of a core wait, unless a new process has appeared (OPT1 of
    /// Kamoshida and Taura, with 10 %).
    Threshold { share: f64 },
    /// A process waits twice as long whenever its CPU time was within `share` of a core of a
    /// straight line. When it was not, it is read at every sample again.
    Error { share: f64 },
}
