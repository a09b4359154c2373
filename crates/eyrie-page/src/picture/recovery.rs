//! A recovery of a rank in the picture, by phase and as it happens.

use eyrie_interface::record::{Cause, Phases};
use eyrie_wire::{ImageId, NodeId, Rank};
use serde::Serialize;
use std::time::Duration;

/// How far a recovery has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RecoveryPhase {
    /// The rank has failed; a node is being chosen.
    Placing,
    /// Its image is fetched and mapped.
    Restoring,
    /// It is executed again.
    Replaying,
    /// It has caught up.
    Recovered,
    /// It failed again, or the job ended before.
    Interrupted,
}

/// A recovery. Times are in seconds of the job's time.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct RecoveryPicture {
    /// Counts the recoveries of the job.
    pub number: u32,
    pub rank: Rank,
    pub from: Option<NodeId>,
    pub node: Option<NodeId>,
    pub cause: Cause,
    pub phase: RecoveryPhase,
    pub image: Option<ImageId>,
    pub failed: f64,
    pub placed: Option<f64>,
    pub restored: Option<f64>,
    /// When it was over, whether it came to its end or not.
    pub ended: Option<f64>,
    /// What the job measured, in seconds.
    pub phases: Option<Phases>,
    pub total: Option<f64>,
    /// Messages that were delivered again.
    pub messages: Option<u64>,
}

impl RecoveryPicture {
    pub fn new(
        number: u32,
        rank: Rank,
        from: Option<NodeId>,
        cause: Cause,
        failed: f64,
    ) -> RecoveryPicture {
        RecoveryPicture {
            number,
            rank,
            from,
            node: None,
            cause,
            phase: RecoveryPhase::Placing,
            image: None,
            failed,
            placed: None,
            restored: None,
            ended: None,
            phases: None,
            total: None,
            messages: None,
        }
    }

    pub fn is_over(&self) -> bool {
        self.ended.is_some()
    }

    pub fn place(&mut self, at: f64, node: NodeId, image: Option<ImageId>) {
        self.phase = RecoveryPhase::Restoring;
        self.placed = Some(at);
        self.node = Some(node);
        self.image = image;
    }

    pub fn restore(&mut self, at: f64) {
        self.phase = RecoveryPhase::Replaying;
        self.restored = Some(at);
    }

    pub fn recover(&mut self, at: f64, messages: u64, phases: Phases, total: Duration) {
        self.phase = RecoveryPhase::Recovered;
        self.ended = Some(at);
        self.messages = Some(messages);
        self.phases = Some(phases);
        self.total = Some(total.as_secs_f64());
    }

    pub fn interrupt(&mut self, at: f64) {
        self.phase = RecoveryPhase::Interrupted;
        self.ended = Some(at);
    }
}
