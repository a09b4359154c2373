//! Choices of `eyrie run`. Plain data. The documentation of each choice is what `--help` says of
//! it.

use serde::{Deserialize, Serialize};

/// The order of the images of a job: Eagle's batch request, sequential request and self timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// All at once
    Batch,
    /// One after another, spread over the interval
    Sequential,
    /// Each by its own timer
    SelfTimed,
}

/// Where routers and the store of a job run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum RolesAt {
    /// In this process
    Here,
    /// On the nodes, each where the ranks that it serves are not: any node may be lost
    Nodes,
}
