//! What users ask of a running job: one JSON request, one JSON answer ([`crate::answer`]); a
//! subscriber gets one line after another.

use crate::inject::Injection;
use crate::manner::{Manner, Way};
use crate::options::LaunchBy;
use crate::proposal::Goal;
use eyrie_wire::domains::LineKey;
use eyrie_wire::{NodeId, Rank};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How long a job may take for an answer: at once, but for images, which take as long as storing
/// them does.
const PATIENCE: Duration = Duration::from_secs(10);
const IMAGE_PATIENCE: Duration = Duration::from_secs(3600);
const JOIN_PATIENCE: Duration = Duration::from_secs(60);

/// Longest line of an answer in bytes: that of a thousand ranks which have all sent to each other
/// has 30 MB.
pub const MAX_LINE: u64 = 64 << 20;
/// How often a subscriber hears that the job is still there, at least.
pub const STREAM_HEARTBEAT: Duration = Duration::from_secs(10);

/// An injection as users write it.
mod as_text {
    use crate::inject::Injection;
    use serde::{de::Error, Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(injection: &Injection, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(injection)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Injection, D::Error> {
        String::deserialize(d)?.parse().map_err(D::Error::custom)
    }
}

/// Where a subscriber begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FirstEvent {
    /// With the events to come.
    #[default]
    New,
    /// With the oldest one that is kept.
    Oldest,
    /// With the one of this number, or not at all.
    #[serde(untagged)]
    At(u64),
}

/// A domain that is to join a job, and how its controller is started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewDomain {
    pub name: String,
    /// Its hosts with their slots, where they were said; `None`: those of the allocation of Slurm
    /// that its controller runs in.
    pub hosts: Option<Vec<(String, Option<u32>)>>,
    /// Those at the end of the list that ranks come to last, where that was said.
    pub spares: Option<u32>,
    pub launcher: Option<LaunchBy>,
    pub gateway: NewGateway,
    /// An ssh destination; `None`: the user starts it, by the line that is shown.
    pub via: Option<String>,
}

/// Where the gateway of such a domain is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewGateway {
    /// The host that it runs on, as the domain's launcher is told it.
    pub host: String,
    /// `HOST:PORT` by which other domains reach it.
    pub address: String,
    /// The port at which it listens.
    pub port: u16,
}

/// A request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    Status,
    /// What ranks have sent each other since the job began.
    Traffic,
    /// What nodes have sent each other, in bounded form.
    NodeTraffic,
    /// How healthy the nodes are, and what was sampled there.
    Health,
    /// The network of the job.
    Network,
    /// The routes in it between these nodes, at most [`crate::network::Routes::MOST`].
    Routes {
        pairs: Vec<(NodeId, NodeId)>,
    },
    /// What ranks print, from the last lines on, as lines of [`crate::output::Printed`], one after
    /// another until the job ends. An empty line says that the job is still there.
    Output,
    Inject {
        /// As users write it.
        #[serde(rename = "spec", with = "as_text")]
        injection: Injection,
    },
    Checkpoint {
        rank: Option<Rank>,
    },
    /// Save the job and end it.
    Stop,
    /// `to`: where; else where the placement says.
    Migrate {
        ranks: Vec<Rank>,
        to: Option<NodeId>,
        #[serde(default)]
        manner: Manner,
    },
    Drain {
        node: NodeId,
    },
    Undrain {
        node: NodeId,
    },
    /// All ranks of this domain to another one, by its name; `None`: they are to stay, if they can.
    /// `leave`: this domain is to end then, also where it shows the job.
    MigrateDomain {
        to: Option<String>,
        way: Way,
        #[serde(default)]
        leave: bool,
    },
    /// How a command reaches the site of a domain, by its name.
    WayTo {
        domain: String,
    },
    /// Which ranks should move, by what is measured over this time.
    Measure {
        over: Duration,
        goal: Goal,
    },
    /// Where ranks should be on the network, with so much time left to run.
    Propose {
        left: Duration,
    },
    /// These ranks to these nodes, in an order in which each has room; and these nodes are drained.
    /// `whole`: all of them or none.
    Rearrange {
        moves: Vec<(Rank, NodeId)>,
        drains: Vec<NodeId>,
        #[serde(default)]
        whole: bool,
        #[serde(default)]
        manner: Manner,
    },
    Trace {
        rank: Rank,
    },
    /// The lines of the event stream ([`crate::record::Line`]), one after another until the job
    /// ends. An empty line says that the job is still there, the first one that no event from now
    /// on is missed. A [refusal](crate::answer::refusal) is the last line.
    Subscribe {
        #[serde(default)]
        from: FirstEvent,
    },
    /// `allocation`: another job of Slurm that the host belongs to.
    Join {
        host: String,
        allocation: Option<u64>,
    },
    /// A domain more. `keys`: one that it is to have in common with each domain; the controller
    /// that is asked makes them.
    JoinDomain {
        domain: Box<NewDomain>,
        #[serde(default)]
        keys: Vec<LineKey>,
    },
}

impl Request {
    /// Reads a request.
    ///
    /// # Errors
    /// A text for the user.
    pub fn parse(text: &str) -> Result<Request, String> {
        serde_json::from_str(text).map_err(|e| format!("not understood: {e}"))
    }

    /// How long to wait for the answer.
    pub fn patience(&self) -> Duration {
        match self {
            Request::Checkpoint { .. }
            | Request::JoinDomain { .. }
            | Request::Stop
            | Request::Migrate { .. }
            | Request::Drain { .. }
            | Request::MigrateDomain { .. }
            | Request::Rearrange { .. } => IMAGE_PATIENCE,
            // And its agents may take as long again. The job refuses what is too long.
            Request::Measure { over, .. } => over.saturating_add(2 * PATIENCE),
            Request::Join { .. } => JOIN_PATIENCE,
            Request::Status
            | Request::Traffic
            | Request::NodeTraffic
            | Request::Health
            | Request::Network
            | Request::Routes { .. }
            | Request::Output
            | Request::Inject { .. }
            | Request::Propose { .. }
            | Request::Subscribe { .. }
            | Request::Trace { .. }
            | Request::WayTo { .. }
            | Request::Undrain { .. } => PATIENCE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_to_a_measurement_is_waited_for_however_long_it_is_asked_for() {
        for over in [Duration::ZERO, Duration::from_secs(600), Duration::MAX] {
            let request = Request::Measure { over, goal: Goal::Consolidate { nodes: 1 } };
            assert!(request.patience() >= over.max(PATIENCE), "{over:?}");
        }
    }
}
