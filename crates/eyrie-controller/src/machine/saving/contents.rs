//! What another machine needs to go on with a job that was saved, besides the images and what the
//! routers have saved. Plain data; its ranks come back as after a death.

use crate::machine::output::Ledger;
use crate::machine::pmi::Pmi;
use crate::machine::ranks::entry::SavedRank;
use eyrie_interface::Summary;
use eyrie_wire::{ImageId, Rank, RouterId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A saved job.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Saved {
    pub ranks: Vec<SavedRank>,
    pub pmi: Pmi,
    pub output: Ledger,
    pub summary: Summary,
    /// The primary router of each rank, where routers are on nodes: it has the rank's log.
    pub primaries: Vec<RouterId>,
    /// Signals that were sent to all ranks.
    pub signals: Vec<u8>,
}

impl Saved {
    /// The job's exit code, when all of its ranks had finished.
    pub fn code(&self) -> Option<i32> {
        self.ranks.iter().try_fold(0, |code, rank| Some(code | rank.code?))
    }

    /// The images that are needed.
    pub fn images(&self) -> BTreeSet<(Rank, ImageId)> {
        let all = self.ranks.iter().flat_map(|r| r.images.iter());
        all.map(|kept| (kept.instance.rank, kept.image.image)).collect()
    }
}
