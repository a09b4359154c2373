//! What the controller knows of one rank.

use super::crash::{Again, Crashes};
use super::io::{Image, Mark};
use crate::record::Phases;
use eyrie_wire::{ImageId, Incarnation, Node, Rank, RankInstance};
use std::time::Duration;

/// Where a rank stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The nodes are not up yet.
    Waiting,
    /// Its agent was told to start it.
    Starting,
    Running,
    /// It died; the routers are being told.
    Lost,
    /// Its agent was told to bring it back.
    Restoring,
    /// It runs, and re-executes what its last incarnation had done.
    Replaying,
    /// It has ended well.
    Finished,
}

/// How a death is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Death {
    Signal(i32),
    /// By no fault of the rank: its node, its restore.
    Outside,
}

/// A checkpoint under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capture {
    pub image: ImageId,
    pub asked: Duration,
    pub until: Duration,
    pub pause: Option<Duration>,
    pub begun: bool,
    /// The store has it; the agent has not said yet that its files can be found.
    pub stored: Option<Image>,
}

/// A recovery under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recovery {
    pub death: Death,
    pub image: Option<ImageId>,
    pub phases: Phases,
    /// End of the last phase that is done.
    pub mark: Duration,
    /// Restores of the image that failed, in a row.
    pub failed_attempts: u32,
}

#[derive(Debug)]
pub struct RankState {
    pub rank: Rank,
    pub incarnation: Incarnation,
    pub node: Node,
    pub state: State,
    /// Its MPI library has come through the provider, in this incarnation.
    pub loaded: bool,
    /// In this incarnation.
    pub finalized: bool,
    /// In any incarnation.
    pub spoke_pmi: bool,
    pub code: i32,
    /// At most two, older first.
    pub images: Vec<Image>,
    pub images_taken: u64,
    pub next_image: ImageId,
    /// The log no longer reaches back to the program's start.
    pub discarded: bool,
    /// The log has a hole until an image is asked for after this moment.
    pub unprotected: Option<Duration>,
    pub capture: Option<Capture>,
    /// Images in a row that could not count because a file of theirs was gone.
    pub unusable: u32,
    pub recovery: Option<Recovery>,
    /// It has caught up (with so many messages) before its agent said that it runs.
    pub replayed_early: Option<u64>,
    pub crashes: Crashes,
    /// The image that the present incarnation was started from.
    pub started_from: Option<ImageId>,
    pub output: u64,
    /// When an injected failure struck this incarnation.
    pub struck: Option<Duration>,
    /// What must happen until when, in Starting and Restoring.
    pub deadline: Option<Duration>,
}

impl RankState {
    pub fn new(rank: Rank, node: Node) -> RankState {
        RankState {
            rank,
            incarnation: 1,
            node,
            state: State::Waiting,
            loaded: false,
            finalized: false,
            spoke_pmi: false,
            code: 0,
            images: Vec::new(),
            images_taken: 0,
            next_image: 1,
            discarded: false,
            unprotected: None,
            capture: None,
            unusable: 0,
            recovery: None,
            replayed_early: None,
            crashes: Crashes::default(),
            started_from: None,
            output: 0,
            struck: None,
            deadline: None,
        }
    }

    pub fn instance(&self) -> RankInstance {
        RankInstance { rank: self.rank, incarnation: self.incarnation }
    }

    /// Whether a process of the present incarnation may be there.
    pub fn is_on_a_node(&self) -> bool {
        matches!(self.state, State::Starting | State::Running | State::Restoring | State::Replaying)
    }

    /// Whether a checkpoint may be asked for. A rank that re-executes is captured as well: one that computes
    /// for longer than the time between two failures would never get on otherwise.
    pub fn can_be_captured(&self) -> bool {
        let runs = matches!(self.state, State::Running | State::Replaying);
        runs && self.loaded && !self.finalized && self.capture.is_none()
    }

    /// The image to come back from; an error when neither an image nor the whole log is left.
    pub fn way_back(&self) -> Result<Option<Image>, String> {
        if self.unprotected.is_some() {
            return Err("its log could not be kept and no checkpoint has followed".into());
        }
        match self.images.last() {
            Some(image) => Ok(Some(*image)),
            None if self.discarded => {
                Err("no whole image is left, and its log no longer reaches back to the start"
                    .into())
            }
            None => Ok(None),
        }
    }

    /// Counts a death at what is known of it; returns what is known of all without progress when
    /// they are too many.
    pub fn count_death(&mut self, mark: Mark) -> Option<(i32, Again)> {
        let death = self.recovery.as_ref()?.death;
        let signal = match death {
            Death::Signal(signal) => Some(signal),
            Death::Outside => None,
        };
        let again = self.crashes.note(signal, mark, self.images_taken, self.started_from)?;
        signal.map(|s| (s, again))
    }
}
