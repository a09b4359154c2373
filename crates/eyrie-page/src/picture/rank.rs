//! A rank in the picture: where it is, what it does, what is kept of it.

use super::health::RankSample;
use eyrie_interface::status::RankStatus;
use eyrie_wire::{ImageId, Incarnation, NodeId, Rank, StoreId};
use serde::{Deserialize, Serialize};

/// What a rank does, by the states that a job has for it (docs/internals/control.md).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankState {
    #[default]
    Waiting,
    Starting,
    Running,
    Lost,
    Restoring,
    Replaying,
    Finished,
    Elsewhere,
}

/// What a rank does, in more detail where it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    #[default]
    Pending,
    Starts,
    Computes,
    /// It runs, and waits for messages most of its time.
    Waits,
    /// An image of it is being taken.
    Imaged,
    Moves,
    Lost,
    Restored,
    Replays,
    Finished,
    Elsewhere,
}

/// The newest image of a rank that counts.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ImagePicture {
    pub number: ImageId,
    /// In how many stores it is, where that is known, and in which.
    pub copies: Option<usize>,
    pub stores: Vec<StoreId>,
    /// Its length.
    pub bytes: Option<u64>,
    /// When it began to count, in seconds of the job's time, where that is known.
    pub at: Option<f64>,
}

/// From which share of its time on a rank waits, in percent; and below which it computes again.
const MOST_COMPUTING: u8 = 60;
const LEAST_WAITING: u8 = 40;

/// A rank.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct RankPicture {
    pub rank: Rank,
    pub node: Option<NodeId>,
    pub incarnation: Incarnation,
    #[serde(skip)]
    pub state: RankState,
    /// An image of it is being taken.
    #[serde(skip)]
    pub imaging: bool,
    /// It is on its way to another node.
    #[serde(skip)]
    pub moving: bool,
    /// When the last event was about it, in seconds of the job's time.
    #[serde(skip)]
    pub heard: f64,
    pub doing: Activity,
    pub image: Option<ImagePicture>,
    /// Why it has had no image for too long.
    pub overdue: Option<String>,
    /// It cannot be recovered at present.
    pub unprotected: bool,
    /// How often it has failed.
    pub failures: u32,
    /// Its exit code.
    pub code: Option<i32>,
    /// What was sampled of it last.
    pub sample: Option<RankSample>,
}

impl RankPicture {
    pub fn new(rank: Rank) -> RankPicture {
        RankPicture {
            rank,
            node: None,
            incarnation: Incarnation(1),
            state: RankState::default(),
            imaging: false,
            moving: false,
            heard: 0.0,
            doing: Activity::default(),
            image: None,
            overdue: None,
            unprotected: false,
            failures: 0,
            code: None,
            sample: None,
        }
    }

    /// What follows from the rest is right again after this.
    pub fn settle(&mut self) {
        self.doing = match self.state {
            RankState::Waiting => Activity::Pending,
            RankState::Starting => Activity::Starts,
            RankState::Finished => Activity::Finished,
            RankState::Elsewhere => Activity::Elsewhere,
            RankState::Lost => Activity::Lost,
            _ if self.moving => Activity::Moves,
            RankState::Running if self.imaging => Activity::Imaged,
            RankState::Running if self.waits() => Activity::Waits,
            RankState::Running => Activity::Computes,
            RankState::Restoring => Activity::Restored,
            RankState::Replaying => Activity::Replays,
        };
    }

    /// Whether it waits for messages most of its time. One about which it was said before stays so
    /// until that is clearly over.
    fn waits(&self) -> bool {
        let waiting = self.sample.and_then(|sample| sample.waiting).unwrap_or(0);
        waiting >= if self.doing == Activity::Waits { LEAST_WAITING } else { MOST_COMPUTING }
    }

    /// Its incarnation has ended.
    pub fn lose(&mut self) {
        self.state = RankState::Lost;
        self.sample = None;
        self.imaging = false;
    }

    /// The image counts.
    pub fn keep(&mut self, number: ImageId, bytes: u64, at: f64) {
        self.imaging = false;
        self.overdue = None;
        // Where it is is known by the next status: as a rule where the one before it was.
        let stores = self.image.take().map_or_else(Vec::new, |image| image.stores);
        let bytes = Some(bytes);
        self.image = Some(ImagePicture { number, copies: None, stores, bytes, at: Some(at) });
    }

    /// It is as its job says at this time, or as an event has said later.
    pub fn status(&mut self, status: &RankStatus, at: f64, unprotected: bool) {
        if self.heard > at {
            return;
        }
        self.unprotected = unprotected;
        self.node = Some(status.node);
        self.incarnation = status.instance.incarnation;
        // A newer job may have a state that is not known here.
        let state = serde_json::Value::String(status.state.clone());
        if let Ok(state) = serde_json::from_value(state) {
            self.state = state;
        }
        self.overdue = status.overdue.as_ref().map(|overdue| overdue.cause.clone());
        let known = self.image.take();
        self.image = status.image.as_ref().map(|image| ImagePicture {
            number: image.number,
            copies: Some(image.copies),
            stores: image.stores.clone(),
            bytes: Some(image.bytes),
            at: known.filter(|known| known.number == image.number).and_then(|known| known.at),
        });
    }
}
