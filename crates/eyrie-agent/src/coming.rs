//! A rank that is about to come to this node, and the restorer that waits for it. Dropping it ends
//! the restorer.

use crate::launch::Launched;
use crate::process::kill_group;
use eyrie_wire::control::StartRank;
use eyrie_wire::ImageId;
use std::os::fd::OwnedFd;

/// A rank that is about to come.
pub struct Coming {
    pub restorer: Restorer,
    pub launched: Launched,
    /// The image that is in place; 0: none yet.
    pub image: ImageId,
    /// Where the restorer reads the next image; `None` while it gets one.
    pub into: Option<OwnedFd>,
    /// Its start was ordered meanwhile.
    pub start: Option<Box<StartRank>>,
}

/// The id of a process that is killed when it is not wanted any more.
pub struct Restorer(pub u32);

impl Drop for Restorer {
    fn drop(&mut self) {
        kill_group(self.0);
    }
}
