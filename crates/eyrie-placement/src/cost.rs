//! The parameters of a machine's network: bandwidth, latency, and how a node's network interface
//! starts several messages. The defaults are a present-day HPC link; K's figures are in
//! [`CostModel::k_computer`].

use serde::{Deserialize, Serialize};

/// How messages share a link. The documentation of each choice is what `--help` says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// Every message gets the same share (max-min fair), as with routers with round-robin
    /// arbitration
    Fair,
    /// Shares are inversely proportional to the length of the path, as with window-based transports
    /// (SimGrid models it)
    Path,
}

/// A machine by whose figures times are estimated. The documentation of each choice is what
/// `--help` says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Machine {
    /// 5 GB/s, 1 us a hop
    #[default]
    Hpc,
    /// The K computer: four staggered DMA engines
    K,
}

/// Parameters of the time estimate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CostModel {
    /// Bytes per second of a link with bandwidth factor 1.
    pub bandwidth: f64,
    /// Seconds for each hop.
    pub hop_latency_s: f64,
    /// Seconds that a message needs before it enters the network.
    pub overhead_s: f64,
    /// How far apart the messages of one node start, as a fraction of the message's own transfer
    /// time. 0: all together. K's four DMA engines have 0.5, so that four messages take 2.5 times
    /// as long as one.
    pub stagger: f64,
    /// Time lost on a shared link for every message beyond the second, as a fraction of the share.
    /// Calibrated on K together with `stagger`; 0 elsewhere.
    pub crowding: f64,
    pub sharing: Sharing,
}

impl Default for CostModel {
    fn default() -> Self {
        CostModel {
            bandwidth: 5e9,
            hop_latency_s: 1e-6,
            overhead_s: 0.0,
            stagger: 0.0,
            crowding: 0.0,
            sharing: Sharing::Fair,
        }
    }
}

impl From<Machine> for CostModel {
    fn from(machine: Machine) -> CostModel {
        match machine {
            Machine::Hpc => CostModel::default(),
            Machine::K => CostModel::k_computer(),
        }
    }
}

impl CostModel {
    /// The K computer: 5 GB/s links; stagger and crowding calibrated on the Spare paper's figures.
    pub fn k_computer() -> Self {
        CostModel { stagger: 0.5, crowding: 0.08, ..CostModel::default() }
    }
}
