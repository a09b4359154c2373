//! The options of `eyrie run` that are a choice, and the defaults of all of them. Plain data. The
//! documentation of each choice is what `--help` says of it.

use eyrie_units::{duration, written};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Ranks of a job that names no hosts, and the nodes that they start on.
pub const RANKS: u32 = 1;
pub const NODES: u32 = 1;
pub const SPARES: u32 = 0;
/// Spares of a job that `eyrie sbatch` submits.
pub const BATCH_SPARES: u32 = 1;
/// Most ranks that a node starts with, where that was not said.
pub const SLOTS: u32 = 128;
pub const ROUTERS: u32 = 1;
/// With more hosts than this some of them start the agents of others.
pub const LAUNCH_FANOUT: u32 = 256;
/// The command that starts agents on other hosts.
pub const LAUNCHER_EXEC: &str = "ssh";
/// Mean time between failures of a job.
pub const MTBF: &str = "24h";
/// How long ranks wait for another controller.
pub const ORPHAN_TIMEOUT: &str = "10m";
/// How long a job is likely to run.
pub const RUN_TIME: &str = "1h";
/// How often nodes are sampled.
pub const MONITOR: &str = "1s";
/// How long ranks have to leave a host whose agent was sent SIGTERM.
pub const NOTICE_GRACE: &str = "30s";

/// After how long without an answer a node is declared dead. On one host the death of an agent is
/// seen at once.
pub fn heartbeat_timeout(on_other_hosts: bool) -> Duration {
    Duration::from_secs(if on_other_hosts { 5 } else { 10 })
}

/// How many bytes of its log each of the routers holds in memory, on a machine that lets them have
/// `memory` bytes.
pub fn log_memory(memory: u64, routers: u32) -> u64 {
    (memory / 16).clamp(256 << 20, 4 << 30) / u64::from(routers.max(1))
}

/// The order of the images of a job: Eagle's batch request, sequential request and self timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// All at once
    Batch,
    /// One after another, spread over the interval
    #[default]
    Sequential,
    /// Each by its own timer
    SelfTimed,
}

/// What ranks are started to use of their processors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum CpuLevel {
    /// SSE4.2
    #[cfg_attr(feature = "clap", value(name = "x86-64-v2"))]
    V2,
    /// AVX2 and FMA
    #[cfg_attr(feature = "clap", value(name = "x86-64-v3"))]
    V3,
    /// AVX-512 as the first servers had it
    #[cfg_attr(feature = "clap", value(name = "x86-64-v4"))]
    V4,
    /// What all hosts of the job have
    #[cfg_attr(feature = "clap", value(name = "common"))]
    Common,
}

impl CpuLevel {
    /// As it is written on the command line.
    pub fn name(self) -> &'static str {
        match self {
            CpuLevel::V2 => "x86-64-v2",
            CpuLevel::V3 => "x86-64-v3",
            CpuLevel::V4 => "x86-64-v4",
            CpuLevel::Common => "common",
        }
    }
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

impl RolesAt {
    /// Where they run in a job on so many hosts.
    pub fn usual(hosts: usize) -> RolesAt {
        if hosts > 1 {
            RolesAt::Nodes
        } else {
            RolesAt::Here
        }
    }

    /// How many routers there must be: on the nodes, the ranks of a host have theirs on another
    /// one.
    pub fn least_routers(self) -> u32 {
        match self {
            RolesAt::Here => 1,
            RolesAt::Nodes => 2,
        }
    }
}

/// How the roles of a job reach each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum ReachBy {
    /// Sockets in the job's directory
    Unix,
    /// TCP connections
    Tcp,
}

impl ReachBy {
    pub fn usual(on_other_hosts: bool) -> ReachBy {
        if on_other_hosts {
            ReachBy::Tcp
        } else {
            ReachBy::Unix
        }
    }
}

/// How agents are started on other hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum LaunchBy {
    /// One ssh for each host
    Ssh,
    /// One srun for all of them
    Slurm,
    /// You do it, by the lines that are shown
    Manual,
}

impl LaunchBy {
    /// `in_allocation`: the hosts are those of an allocation of Slurm.
    pub fn usual(in_allocation: bool) -> LaunchBy {
        if in_allocation {
            LaunchBy::Slurm
        } else {
            LaunchBy::Ssh
        }
    }
}

/// Which nodes the ranks of a job start on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum StartBy {
    /// Nodes are filled in order, the last ones are spares
    Order,
    /// Nodes, spares and, with --traffic, the node of each rank are chosen by the network
    Network,
}

/// Whether observations and effects of ranks are recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Recording {
    #[default]
    On,
    /// A rank whose messages depend on its clocks may diverge
    Off,
}

/// What a notice does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum OnNotice {
    /// Ranks, routers and stores leave the host, as for `eyrie drain`; the job is saved, if it can
    /// be, when no other host is left
    #[default]
    Drain,
    /// It is only told, as an event
    Tell,
}

/// What is done about a node that is not well; the greater ones include the smaller ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Precaution {
    /// It is only told, as an event
    #[default]
    Nothing,
    /// Its ranks are imaged at once
    Image,
    /// Its ranks leave it, as for `eyrie drain`, when another node is well and few are drained for
    /// their health; else they are imaged
    Drain,
}

/// How often nodes and their ranks are sampled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Monitor {
    Off,
    Every(Duration),
}

impl FromStr for Monitor {
    type Err = String;

    fn from_str(text: &str) -> Result<Monitor, String> {
        match text {
            "off" => Ok(Monitor::Off),
            time => match duration(time)? {
                time if time < MONITOR_SHORTEST => Err(format!(
                    "the shortest interval is {}; use off for none",
                    written(MONITOR_SHORTEST)
                )),
                time => Ok(Monitor::Every(time)),
            },
        }
    }
}

/// The shortest interval of samples.
const MONITOR_SHORTEST: Duration = Duration::from_millis(10);

/// How often each rank is checkpointed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CheckpointEvery {
    Off,
    /// By what images cost and by the mean time between failures.
    #[default]
    Auto,
    Time(Duration),
}

impl FromStr for CheckpointEvery {
    type Err = String;

    fn from_str(text: &str) -> Result<CheckpointEvery, String> {
        match text {
            "off" => Ok(CheckpointEvery::Off),
            "auto" => Ok(CheckpointEvery::Auto),
            time => match duration(time)? {
                Duration::ZERO => Err("an interval must be longer than 0; use off for none".into()),
                time => Ok(CheckpointEvery::Time(time)),
            },
        }
    }
}

impl fmt::Display for CheckpointEvery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckpointEvery::Off => f.write_str("off"),
            CheckpointEvery::Auto => f.write_str("auto"),
            CheckpointEvery::Time(time) => f.write_str(&written(*time)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proposal::{BALANCE_OVER, CONSOLIDATE_OVER, PAYBACK};

    #[test]
    fn defaults_that_are_written_can_be_read() {
        let measured = [BALANCE_OVER, CONSOLIDATE_OVER, PAYBACK];
        for text in [MTBF, ORPHAN_TIMEOUT, RUN_TIME, NOTICE_GRACE].into_iter().chain(measured) {
            assert!(duration(text).is_ok(), "{text}");
        }
        for text in ["off", "auto", "30s"] {
            let every: CheckpointEvery = text.parse().unwrap();
            assert_eq!(every.to_string(), text);
        }
        assert!(MONITOR.parse::<Monitor>().is_ok_and(|every| every != Monitor::Off));
        assert!("1ms".parse::<Monitor>().unwrap_err().contains("use off for none"));
        assert!("0s".parse::<CheckpointEvery>().unwrap_err().contains("use off for none"));
    }
}
