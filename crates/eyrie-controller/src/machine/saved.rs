//! What another machine needs to go on with a job that was saved, besides the images and what the
//! routers have saved. Plain data; its ranks come back as after a death.

use super::copies::Copies;
use super::io::Image;
use super::output::Ledger;
use super::pmi::Pmi;
use super::rank::{KeptImage, RankEntry, RankState};
use super::reactor::{Config, Machine};
use crate::record::Summary;
use eyrie_transport::RouterId;
use eyrie_wire::{ImageId, Incarnation, Rank, RankInstance};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// The store that has the images of a saved job: the only one, or the archive.
pub const STORE: super::io::StoreId = 0;

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

impl Machine {
    /// A machine that goes on with a saved job.
    pub fn go_on(config: Config, saved: Saved) -> Machine {
        let mut machine = Machine::new(config);
        for (r, saved) in machine.ranks.iter_mut().zip(&saved.ranks) {
            take(r, saved);
            let silent = saved.code.is_some() && !saved.spoke_pmi;
            machine.counts.finished += u32::from(saved.code.is_some());
            machine.counts.spoke_pmi += u32::from(saved.spoke_pmi);
            machine.counts.finished_silent += u32::from(silent);
        }
        let Saved { pmi, output, summary, home, signals, .. } = saved;
        machine.roles.home = home;
        Machine { pmi, output, summary, signals, ..machine }
    }

    /// What is needed to go on with the job as it is now.
    pub(crate) fn saved(&self) -> Saved {
        let rank = |r: &RankEntry| SavedRank {
            incarnation: r.incarnation,
            code: r.code(),
            spoke_pmi: r.spoke_pmi,
            images: (r.images.iter().filter(|_| r.code().is_none()))
                .map(|kept| SavedImage { image: kept.image, instance: kept.instance })
                .collect(),
            next_image: r.next_image,
            truncated: r.truncated,
        };
        Saved {
            ranks: self.ranks.iter().map(rank).collect(),
            pmi: self.pmi.clone(),
            output: self.output.clone(),
            summary: self.summary(),
            home: self.roles.home.clone(),
            signals: self.signals.clone(),
        }
    }
}

fn take(r: &mut RankEntry, saved: &SavedRank) {
    let kept = |SavedImage { image, instance }: &SavedImage| KeptImage {
        image: *image,
        instance: *instance,
        asked: Duration::ZERO,
        copies: Copies { stores: BTreeSet::from([STORE]), ..Copies::default() },
        saved: true,
    };
    r.incarnation = saved.incarnation;
    r.spoke_pmi = saved.spoke_pmi;
    r.images = saved.images.iter().map(kept).collect();
    r.next_image = saved.next_image;
    r.truncated = saved.truncated;
    r.state = match saved.code {
        Some(code) => RankState::Finished { code },
        None => RankState::saved(),
    };
}
