//! A rank that is about to come to this node, and the restorer that waits with its memory. Dropping
//! it ends the restorer.

use crate::rank::launch::Launched;
use eyrie_supervision::kill_group;
use eyrie_wire::control::StartRank;
use eyrie_wire::ImageId;
use std::os::fd::OwnedFd;

/// A rank that is about to come to this node.
pub struct Incoming {
    pub restorer: Restorer,
    pub launched: Launched,
    /// The image that is in place; 0: none yet.
    pub image: ImageId,
    /// The pipe from which the restorer reads the next image; `None` while it reads one.
    pub into: Option<OwnedFd>,
    /// The start, if the controller ordered it while an image was on the way.
    pub start: Option<Box<StartRank>>,
}

/// The id of a restorer's process, which is killed when this is dropped.
pub struct Restorer(pub u32);

impl Drop for Restorer {
    fn drop(&mut self) {
        kill_group(self.0);
    }
}
