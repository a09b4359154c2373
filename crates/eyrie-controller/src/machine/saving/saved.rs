//! What another machine needs to go on with a job that was saved, besides the images and what the
//! routers have saved. Plain data; its ranks come back as after a death.

use crate::machine::images::copies::Copies;
use crate::machine::images::stores::SAVED;
use crate::machine::io::Image;
use crate::machine::output::Ledger;
use crate::machine::pmi::Pmi;
use crate::machine::ranks::entry::{KeptImage, RankEntry, RankState};
use eyrie_interface::Summary;
use eyrie_transport::RouterId;
use eyrie_wire::{ImageId, Incarnation, Rank, RankInstance};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// An image that counts, and the incarnation that it shows.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SavedImage {
    pub image: Image,
    pub instance: RankInstance,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SavedRank {
    /// The one that is to speak next.
    pub incarnation: Incarnation,
    /// Of one that has finished.
    pub code: Option<i32>,
    pub spoke_pmi: bool,
    /// Older first.
    pub images: Vec<SavedImage>,
    pub next_image: ImageId,
    pub truncated: bool,
}

/// A saved job.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Saved {
    pub ranks: Vec<SavedRank>,
    pub pmi: Pmi,
    pub output: Ledger,
    pub summary: Summary,
    /// The home router of each rank, where routers are on nodes: it has the rank's log.
    pub home: Vec<RouterId>,
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

impl SavedRank {
    /// As the rank is now.
    pub fn of(r: &RankEntry) -> SavedRank {
        SavedRank {
            incarnation: r.incarnation,
            code: r.code(),
            spoke_pmi: r.spoke_pmi,
            images: (r.images.iter().filter(|_| r.code().is_none()))
                .map(|kept| SavedImage { image: kept.image, instance: kept.instance })
                .collect(),
            next_image: r.next_image,
            truncated: r.log.is_truncated(),
        }
    }
}

/// The rank goes on from what was saved.
pub fn take(r: &mut RankEntry, saved: &SavedRank) {
    let kept = |SavedImage { image, instance }: &SavedImage| KeptImage {
        image: *image,
        instance: *instance,
        asked: Duration::ZERO,
        copies: Copies { stores: BTreeSet::from([SAVED]), ..Copies::default() },
        saved: true,
    };
    r.incarnation = saved.incarnation;
    r.spoke_pmi = saved.spoke_pmi;
    r.images = saved.images.iter().map(kept).collect();
    r.next_image = saved.next_image;
    if saved.truncated {
        r.log.truncate();
    }
    r.state = match saved.code {
        Some(code) => RankState::Finished { code },
        None => RankState::saved(),
    };
}
