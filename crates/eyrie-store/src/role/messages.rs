//! What the controller and a store say to each other.

use eyrie_transport::{Addr, Bind};
use eyrie_wire::{ImageId, Rank, RankInstance};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What the controller asks of the store.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StoreCommand {
    /// From now on images of older incarnations are refused.
    Present(RankInstance),
    /// [`StoreEvent::Stored`] of this image has been heard.
    Heard { instance: RankInstance, image: ImageId },
    /// Copy an image from the store that listens there; [`StoreEvent::Stored`] or
    /// [`StoreEvent::Failed`] is the answer. One that is there already is stored at once.
    Copy { instance: RankInstance, image: ImageId, from: Addr },
    /// An image is needed no more. Nothing is wrong when the store does not have it.
    Discard { rank: Rank, image: ImageId },
    /// What does the store hold? Answered by [`StoreEvent::Inventory`].
    Inventory,
}

/// What the controller hears from the store.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StoreEvent {
    /// Agents can connect here from now on: the first event of all.
    Listening(Addr),
    /// An image comes in from an agent.
    Begun { instance: RankInstance, image: ImageId },
    /// An image is whole. Where it came from an agent, that hears of it after the store has got
    /// [`StoreCommand::Heard`]; where it was copied from another store, nobody waits.
    /// `live_bytes` are what all images in the store take now.
    Stored { instance: RankInstance, stored: Stored, live_bytes: u64 },
    /// An image did not come in: its agent cannot be told, or it could not be copied.
    Failed { instance: RankInstance, image: ImageId, reason: String },
    /// An image did not come in because the disk is full: others will not, either.
    Full { reason: String },
    /// All images that are whole, by rank and then oldest first.
    Inventory { images: Vec<(RankInstance, Stored)> },
    /// Something that users should know.
    Note(String),
}

/// An image that is whole and stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stored {
    pub image: ImageId,
    pub clock: u64,
    /// Receive sequence number of the last message in it.
    pub rsn: u64,
    /// Bytes that the rank had observed besides messages.
    pub observed: u64,
    /// Bytes of standard input that the rank had read.
    pub stdin: u64,
    /// Size of the stream in bytes.
    pub bytes: u64,
}

/// What a store is started with; as a process it is told this first.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Config {
    /// The job, by a name that no other job has.
    pub job: String,
    /// Where images lie: a directory that is made, or that holds images of this job already.
    pub dir: PathBuf,
    /// Images must outlive the host, not only all processes: they are brought to stable storage
    /// before they count.
    pub sync: bool,
    /// Where agents and other stores connect.
    pub listen: Bind,
}
