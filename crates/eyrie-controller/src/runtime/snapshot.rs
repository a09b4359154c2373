//! The state of a job as it stands in its journal: another controller goes on from it instead of
//! hearing again all that led there. What ends with the controller is not in it: connections,
//! processes that it started, users who wait.

use super::agents::SavedAgents;
use super::backlog::SavedOutput;
use super::event_file::SavedEvents;
use super::link::SavedSession;
use super::refusals::Refusals;
use super::stdin::SavedInput;
use crate::machine::answer::RequestId;
use eyrie_wire::control::RoleKind;
use eyrie_wire::directory::Directory;
use eyrie_wire::facts::Facts;
use eyrie_wire::{NodeId, RankInstance};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// The fields are those of the running job, as `shorten.rs` takes and gives them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Snapshot {
    pub time: Duration,
    pub machine: Vec<u8>,
    pub agents: SavedAgents,
    pub roles: BTreeMap<(RoleKind, u32), SavedSession>,
    pub store_bytes: u64,
    pub directory: Directory,
    pub alike: Option<(String, Facts)>,
    pub identities: BTreeMap<NodeId, String>,
    pub stdin: SavedInput,
    pub stdin_wanted: Option<(NodeId, RankInstance, u64)>,
    pub refusals: Refusals,
    pub last_request: RequestId,
    pub events: SavedEvents,
    pub output: SavedOutput,
}

impl Snapshot {
    /// Bytes of each stream that need not be written again.
    pub fn written(&self) -> [u64; 2] {
        self.output.before
    }
}
