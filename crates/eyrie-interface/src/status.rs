//! The state of a job as it tells it.

use crate::move_phase::MovePhase;
use crate::seconds;
use eyrie_wire::{ImageId, NodeId, Rank, RankInstance, RouterId, StoreId};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What a job has been through.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    #[serde(with = "seconds")]
    pub elapsed: Duration,
    pub ranks: u32,
    pub checkpoints: u64,
    pub checkpoints_failed: u64,
    pub checkpoint_bytes: u64,
    pub rank_failures: u64,
    pub nodes_lost: u64,
    /// Routers and stores on nodes.
    pub roles_lost: u64,
    /// Controllers that have died, so that another one went on.
    pub resumes: u64,
    pub spares_used: u64,
    pub recoveries: u64,
    /// The longest recovery.
    #[serde(with = "seconds")]
    pub longest_recovery: Duration,
}

/// What is kept twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kept {
    Images,
    Logs,
    Journal,
}

/// Something that is kept only once.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CopiesMissing {
    pub what: Kept,
    pub cause: String,
}

/// A rank.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RankStatus {
    #[serde(flatten)]
    pub instance: RankInstance,
    pub node: NodeId,
    pub state: String,
    /// Its newest image that counts.
    pub image: Option<ImageStatus>,
    /// It has had no newer one for longer than three intervals.
    pub overdue: Option<OverdueStatus>,
}

/// For how many seconds a rank has had no new image, and why.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct OverdueStatus {
    pub seconds: f64,
    pub cause: String,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ImageStatus {
    pub number: ImageId,
    /// How many stores have it.
    pub copies: usize,
    /// Which they are. A store that is a role on a node is `store N` there.
    pub stores: Vec<StoreId>,
    /// Its length.
    pub bytes: u64,
    /// Bytes of mapped files whose content it has.
    pub file_bytes: u64,
}

/// What a router holds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LogStatus {
    pub router: RouterId,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RoleStatus {
    pub role: String,
    pub node: NodeId,
}

/// A rank on its way to another node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MoveStatus {
    pub rank: Rank,
    /// Where it is going, as far as that is known.
    pub to: Option<NodeId>,
    /// How often its memory was put in place there.
    pub rounds: u32,
    /// What the last round brought, and the seconds that it took: so long it would stand still if
    /// that was the last.
    pub bytes: u64,
    pub took: f64,
    /// The share of time for which it is made to stand still, in percent.
    pub slowed: u8,
}

/// Another domain of the job, as this one sees it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DomainStatus {
    pub name: String,
    /// How many ranks it has.
    pub ranks: u32,
    /// Where its gateway is reached.
    pub gateway: String,
    /// Whether there is a line to it, and for how many seconds that has been so; `None`: there was
    /// none yet.
    pub line: Option<LineStatus>,
    /// What goes over the line, as far as the gateway has said it.
    pub traffic: Option<LineTraffic>,
    /// Bytes of messages to its ranks that wait at this domain's gateway until they are safe there.
    pub waiting_bytes: u64,
    /// Letters of the controller that it has not confirmed.
    pub letters: usize,
    /// The exit code of its ranks together, once all have ended.
    pub finished: Option<i32>,
    /// It has ended, and the job goes on without it.
    pub gone: bool,
    /// It is to join the job, and is no part of it yet.
    pub joins: bool,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LineStatus {
    pub up: bool,
    pub seconds: f64,
}

/// What goes over the line to another domain.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct LineTraffic {
    /// The shortest time to and fro of the last minutes, seconds.
    pub round_trip_s: Option<f64>,
    /// Bytes that came from there since the gateway began; in the last whole second; and in the
    /// second in which most came.
    pub received_bytes: u64,
    pub last_second_bytes: u64,
    pub most_in_a_second_bytes: u64,
}

/// All ranks of a domain on their way to another one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DomainMoveStatus {
    pub from: String,
    pub to: String,
    /// What is known where they leave.
    pub leaving: Option<LeavingStatus>,
}

/// How far ranks are that leave this domain.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeavingStatus {
    /// The last phase that was reached.
    pub phase: MovePhase,
    /// The round in which images go there; 0: none does.
    pub round: u32,
    /// Ranks whose images of this round, or last images, are not there yet.
    pub left: u32,
    /// What those images take at most, in bytes.
    pub left_bytes: u64,
}

/// The answer to [`Request::Status`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Status {
    pub job: String,
    pub program: String,
    pub nodes_up: Vec<bool>,
    /// Nodes that are drained, or being drained.
    pub drained: Vec<NodeId>,
    /// Names of the hosts that the nodes are; empty on one machine.
    pub hosts: Vec<String>,
    /// The name of this domain, and the other ones, where the job has several.
    pub domain: Option<String>,
    pub domains: Vec<DomainStatus>,
    /// All ranks of a domain that go to another one, as far as this domain knows.
    pub domain_moves: Vec<DomainMoveStatus>,
    /// The file in which this domain shows what all ranks print, when that of `eyrie run` has left.
    pub output: Option<String>,
    /// Those of this domain.
    pub ranks: Vec<RankStatus>,
    pub moves: Vec<MoveStatus>,
    /// Roles that run on nodes.
    pub roles: Vec<RoleStatus>,
    /// Nodes whose hosts have a whole copy of the journal: `eyrie resume` works there.
    pub journal: Vec<NodeId>,
    /// For how many seconds the controller has stood aside, because no node on another host
    /// answers.
    pub cut_off: Option<f64>,
    /// Ranks that cannot be recovered at present.
    pub unprotected: Vec<Rank>,
    /// What was promised to be kept twice, and is not at present.
    pub copies_missing: Vec<CopiesMissing>,
    pub logs: Vec<LogStatus>,
    pub log_memory_bytes: u64,
    pub log_disk_bytes: u64,
    pub messages: u64,
    pub store_bytes: u64,
    /// Seconds from one image of a rank to its next, as it is at present; `None`: none is taken by
    /// the clock.
    pub checkpoint_interval: Option<f64>,
    /// Seconds that an image takes until it is stored, in the mean of the last ones; `None`: there
    /// was none yet.
    pub checkpoint_cost: Option<f64>,
    pub summary: Summary,
}
