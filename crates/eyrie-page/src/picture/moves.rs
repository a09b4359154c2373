//! A rank's move to another node in the picture, round by round and as it happens.

use eyrie_interface::status::MoveStatus;
use eyrie_wire::{NodeId, Rank};
use serde::Serialize;

/// A round: what it brought and how long it took.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Round {
    pub bytes: u64,
    /// Seconds.
    pub took: f64,
}

/// A move. Times are in seconds of the job's time.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct MovePicture {
    /// Counts the moves of the job.
    pub number: u32,
    pub rank: Rank,
    pub from: Option<NodeId>,
    pub to: Option<NodeId>,
    pub rounds: Vec<Round>,
    /// The share of time for which the rank is made to stand still, in percent.
    pub slowed: u8,
    pub began: f64,
    pub ended: Option<f64>,
    /// How long the rank stood still, in seconds; `None` when it is over: the rank stays.
    pub pause: Option<f64>,
}

/// Rounds that are kept of a move.
const ROUNDS: usize = 64;

impl MovePicture {
    pub fn new(number: u32, rank: Rank, from: Option<NodeId>, began: f64) -> MovePicture {
        MovePicture {
            number,
            rank,
            from,
            to: None,
            rounds: Vec::new(),
            slowed: 0,
            began,
            ended: None,
            pause: None,
        }
    }

    pub fn is_over(&self) -> bool {
        self.ended.is_some()
    }

    pub fn round(&mut self, to: NodeId, bytes: u64, took: f64) {
        self.to = Some(to);
        if self.rounds.len() == ROUNDS {
            self.rounds.remove(0);
        }
        self.rounds.push(Round { bytes, took });
    }

    pub fn end(&mut self, at: f64, pause: Option<f64>) {
        self.ended = Some(at);
        self.pause = pause;
    }

    /// It is as its job says.
    pub fn status(&mut self, status: &MoveStatus) {
        self.to = status.to.or(self.to);
        self.slowed = status.slowed;
    }
}
