//! The ranks of the job, and how many of them there are of a kind. A rank's state changes by the
//! table of [`super::state`] only. Decides nothing about nodes or images.

pub mod capture;
pub mod crash;
pub mod entry;
pub mod incarnation;
pub mod kept;
pub mod log;
pub mod phases;

use super::config::Config;
use super::images::copies::Copies;
use capture::Capture;
use entry::RankEntry;
use eyrie_placement::Assignment;
use eyrie_wire::domains::MovedRank;
use eyrie_wire::StoreId;
use eyrie_wire::{ImageId, NodeId, Rank, RankInstance};
use incarnation::Fence;
use kept::KeptImage;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::{Index, IndexMut};
use std::time::Duration;

#[derive(Serialize, Deserialize)]
pub struct Ranks {
    all: Vec<RankEntry>,
    /// How many are no ranks of other domains.
    here: u32,
    counts: Counts,
    /// Ranks that were asked for a checkpoint; some have come to its end.
    asked: BTreeSet<Rank>,
}

/// Ranks of a kind, so that they are not counted at every event.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub struct Counts {
    pub finished: u32,
    /// In any incarnation.
    pub spoke_pmi: u32,
    /// Finished without having spoken PMI.
    pub finished_silent: u32,
}

impl Index<Rank> for Ranks {
    type Output = RankEntry;

    fn index(&self, rank: Rank) -> &RankEntry {
        &self.all[rank.index()]
    }
}

impl IndexMut<Rank> for Ranks {
    fn index_mut(&mut self, rank: Rank) -> &mut RankEntry {
        &mut self.all[rank.index()]
    }
}

impl Ranks {
    /// Of a job that begins, each on its node, or in another domain.
    pub fn new(config: &Config) -> Ranks {
        let entry = |(rank, node): (Rank, &NodeId)| {
            let is_elsewhere = config.is_elsewhere(rank);
            let new = if is_elsewhere { RankEntry::elsewhere } else { RankEntry::new };
            new(rank, *node)
        };
        let all: Vec<RankEntry> = (0..).map(Rank).zip(&config.start).map(entry).collect();
        let here = all.iter().filter(|r| !r.is_elsewhere()).count() as u32;
        Ranks { all, here, counts: Counts::default(), asked: BTreeSet::new() }
    }

    /// They go on from a saved job, or are those of other domains: counts them.
    pub fn count(&mut self) {
        self.counts = Counts::default();
        self.here = 0;
        for r in self.all.iter().filter(|r| !r.is_elsewhere()) {
            self.here += 1;
            self.counts.finished += u32::from(r.code().is_some());
            self.counts.spoke_pmi += u32::from(r.has_spoken_pmi());
            self.counts.finished_silent += u32::from(r.code().is_some() && !r.has_spoken_pmi());
        }
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// All but those of other domains.
    pub fn of_this_domain(&self) -> impl Iterator<Item = &RankEntry> {
        self.all.iter().filter(|r| !r.is_elsewhere())
    }

    /// As [`Ranks::of_this_domain`], their numbers.
    pub fn numbers(&self) -> Vec<Rank> {
        self.of_this_domain().map(RankEntry::rank).collect()
    }

    /// How many these are.
    pub fn here(&self) -> u32 {
        self.here
    }

    /// Whether there is such a rank, and it is not of another domain.
    pub fn is_here(&self, rank: Rank) -> bool {
        self.get(rank).is_some_and(|r| !r.is_elsewhere())
    }

    pub fn get(&self, rank: Rank) -> Option<&RankEntry> {
        self.all.get(rank.index())
    }

    pub fn get_mut(&mut self, rank: Rank) -> Option<&mut RankEntry> {
        self.all.get_mut(rank.index())
    }

    pub fn iter(&self) -> std::slice::Iter<'_, RankEntry> {
        self.all.iter()
    }

    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, RankEntry> {
        self.all.iter_mut()
    }

    /// Those whose programs have not ended; none of other domains.
    pub fn living(&self) -> impl Iterator<Item = &RankEntry> {
        self.all.iter().filter(|r| r.is_living())
    }

    /// As [`Ranks::living`], their numbers.
    pub fn unfinished(&self) -> impl Iterator<Item = Rank> + '_ {
        self.living().map(RankEntry::rank)
    }

    /// Ranks on the node whose programs have not ended.
    pub fn on(&self, node: NodeId) -> Vec<Rank> {
        self.living().filter(|r| r.node() == node).map(RankEntry::rank).collect()
    }

    pub fn no_such(&self, rank: Rank) -> String {
        format!("there is no rank {rank}: the job has ranks 0 to {}", self.all.len() - 1)
    }

    pub fn is_of_another_domain(&self, rank: Rank) -> String {
        format!("rank {rank} is in another domain: name that one with --domain")
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    pub fn have_all_finished(&self) -> bool {
        self.counts.finished == self.here
    }

    /// The job's exit code as mpiexec makes it: every bit that any rank has set.
    pub fn code(&self) -> i32 {
        self.all.iter().filter_map(RankEntry::code).fold(0, |code, of_rank| code | of_rank)
    }

    /// Some incarnation of the rank has spoken PMI.
    pub fn spoke_pmi(&mut self, rank: Rank) {
        self.counts.spoke_pmi += u32::from(self[rank].speak_pmi());
    }

    /// The rank's program has ended by itself; false when the table has no row for that.
    pub fn finish(&mut self, rank: Rank, code: i32) -> bool {
        if !self[rank].exit(code) {
            return false;
        }
        self.counts.finished += 1;
        self.counts.finished_silent += u32::from(!self[rank].has_spoken_pmi());
        true
    }

    /// The rank, when `instance` is its present one and a process of it may be on a node.
    pub fn current(&mut self, instance: RankInstance) -> Option<&mut RankEntry> {
        let r = self.get_mut(instance.rank)?;
        (r.instance() == instance && r.on_node().is_some()).then_some(r)
    }

    /// Whether a process of this incarnation may run on the node. The node of one that has ended
    /// may be lost.
    pub fn runs_on(&self, instance: RankInstance, node: NodeId) -> bool {
        let r = self.get(instance.rank).filter(|r| r.instance() == instance);
        r.is_some_and(|r| r.is_living() && r.on_node().is_some() && r.node() == node)
    }

    /// A rank, which has ended or is fenced, is one of another domain from now on. What is for it
    /// goes to this node, the gateway's. What that domain must know of it; `None`: it is neither.
    pub fn leave(
        &mut self,
        rank: Rank,
        gateway: NodeId,
        arrived: u32,
        output: [u64; 2],
    ) -> Option<MovedRank> {
        let moved = self[rank].leave(gateway, arrived, output)?;
        self.count();
        Some(moved)
    }

    /// A rank of another domain is one of this one from now on. It is being fenced, to come back on
    /// this node from this image.
    pub fn come(
        &mut self,
        moved: &MovedRank,
        node: NodeId,
        image: Option<KeptImage>,
        fence: Fence,
        now: Duration,
    ) {
        self[moved.rank].come(moved, node, image, fence, now);
        self.count();
    }

    /// These ranks are to go to these nodes.
    pub fn assign(&mut self, assigned: Vec<Assignment>) {
        for assignment in assigned {
            self[Rank(assignment.rank)].assign(assignment);
        }
    }

    /// Whether every router refuses older incarnations of the rank.
    pub fn is_fenced(&self, rank: Rank) -> bool {
        self[rank].fence().is_some_and(Fence::is_whole)
    }

    /// A rank that could not come back from what is kept of it, and why.
    pub fn no_way_back(&self) -> Option<String> {
        self.living().find_map(|r| {
            let why = r.way_back().err()?;
            let refused = r.images().refused().map_or(String::new(), |cause| format!(": {cause}"));
            Some(format!("rank {} could not come back: {why}{refused}", r.rank()))
        })
    }

    /// A checkpoint of the rank begins, which is handed to this store and must have begun to arrive
    /// there until then. `hold`: the rank stands still from then on. The number of its image.
    pub fn begin_capture(
        &mut self,
        rank: Rank,
        store: StoreId,
        hold: bool,
        now: Duration,
        until: Duration,
    ) -> ImageId {
        let image = self[rank].images_mut().number();
        if let Some(on_node) = self[rank].on_node_mut() {
            on_node.begin_capture(Capture::new(image, store, hold, now, until));
        }
        self.asked.insert(rank);
        image
    }

    /// Whether a checkpoint is under way.
    pub fn are_captured(&mut self) -> bool {
        let Ranks { all, asked, .. } = self;
        asked.retain(|rank| all[rank.index()].capture().is_some());
        !asked.is_empty()
    }

    /// The first rank of which a checkpoint is under way.
    pub fn first_captured(&self) -> Option<Rank> {
        self.asked.iter().copied().find(|rank| self[*rank].capture().is_some())
    }

    /// The capture of this image by this incarnation, when it is under way.
    pub fn capture_of(&mut self, instance: RankInstance, image: ImageId) -> Option<&mut Capture> {
        self.current(instance)?.capture_mut().filter(|c| c.image() == image)
    }

    /// Where an image lies that is being taken, or counts.
    pub fn copies_mut(&mut self, instance: RankInstance, image: ImageId) -> Option<&mut Copies> {
        self.get_mut(instance.rank)?.copies_mut(instance, image)
    }

    /// The controller itself stood still for so long.
    pub fn extend(&mut self, gap: Duration) {
        self.all.iter_mut().for_each(|r| r.extend(gap));
    }
}
