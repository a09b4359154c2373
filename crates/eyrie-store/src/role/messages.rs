//! The messages between the controller and a store.

use eyrie_transport::role::Said;
use eyrie_wire::control::StoreAt;
pub use eyrie_wire::domains::Stored;
use eyrie_wire::role_address::{Addr, Bind};
use eyrie_wire::{ImageId, Rank, RankInstance};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What the controller asks of a store.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StoreCommand {
    /// From now on images of older incarnations are refused.
    Present(RankInstance),
    /// The controller has received [`StoreEvent::Stored`] of this image.
    Heard { instance: RankInstance, image: ImageId },
    /// Copy an image from this store. [`StoreEvent::Stored`] or
    /// [`StoreEvent::Failed`] is the answer. If the store already has the image, it answers at
    /// once.
    Copy { instance: RankInstance, image: ImageId, from: StoreAt },
    /// An image is no longer needed. It is no error when the store does not have it.
    Discard { rank: Rank, image: ImageId },
    /// What does the store hold? [`StoreEvent::Inventory`] is the answer.
    Inventory,
}

/// What a store reports to the controller.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StoreEvent {
    /// Agents can connect to this address from now on. This is the first event.
    Listening(Addr),
    /// An agent has begun to send an image.
    Begun { instance: RankInstance, image: ImageId },
    /// An image is whole. If an agent sent it, the store answers that agent only after it has
    /// received [`StoreCommand::Heard`]. If it was copied from another store, the store does not
    /// wait. `live_bytes` is what all images in the store take now.
    Stored { instance: RankInstance, stored: Stored, live_bytes: u64 },
    /// An image was not stored: it could not be copied, or its agent could not be told.
    Failed { instance: RankInstance, image: ImageId, reason: String },
    /// An image was not stored because the disk is full. Others will fail as well.
    Full { reason: String },
    /// All whole images, by rank and then oldest first.
    Inventory { images: Vec<(RankInstance, Stored)> },
    /// Something that users should know.
    Note(String),
}

impl Said for StoreEvent {}

/// What a store is started with. A store in a process of its own receives this first.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Config {
    /// The name of the job. No other job has it.
    pub job: String,
    /// Directory of the images. It is created, or already holds images of this job.
    pub dir: PathBuf,
    /// Images must survive the host, not only all processes: they are on stable storage before they
    /// count.
    pub sync: bool,
    /// Where agents and other stores connect.
    pub listen: Bind,
}
