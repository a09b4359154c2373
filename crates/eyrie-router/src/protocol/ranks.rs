//! What a router knows of each rank's progress: its incarnation, its determinants and observations,
//! and whether it has reported. Decides nothing. It must never lose a determinant that no image
//! holds.

use super::kept::Kept;
use super::mutation::{active, Mutation};
use super::observed::ObservedLog;
use super::orders::RouterEvent;
use super::verify::Verifier;
use crate::space::{Space, Store};
use eyrie_wire::data::{Determinant, ObservedPart, Repeat};
use eyrie_wire::{Incarnation, Rank, RankInstance};

/// The progress of one rank.
#[derive(Default)]
struct Progress {
    /// The incarnation that may connect.
    incarnation: Incarnation,
    /// Whether the primary router has been given what the incarnation needs to replay.
    recovered: bool,
    /// In order.
    determinants: Vec<Determinant>,
    /// Images that count have the determinants up to this clock; they were truncated.
    truncated: u64,
    observed: ObservedLog,
    /// The clock of the rank's last message or observation that this router has.
    last_clock: u64,
    verifier: Verifier,
    /// The last message before the images of the rank: later ones are needed.
    needed_after: u64,
    /// Whether it has reported to this router all that it reported to the one before, if there was
    /// one.
    has_reported: bool,
    /// The growth of its log in bytes, as last reported.
    growth_reported: u64,
}

/// What is saved of the progress of a rank.
pub struct SavedProgress {
    pub incarnation: Incarnation,
    pub determinants: Vec<Determinant>,
    pub observed: Vec<ObservedPart>,
    pub last_clock: u64,
    pub needed_after: u64,
    pub has_reported: bool,
}

/// The progress of all ranks of the job.
pub struct Ranks {
    all: Vec<Progress>,
    /// Bytes of observations.
    observed_memory: u64,
}

impl Ranks {
    /// This many ranks at their start.
    pub fn new(count: u32) -> Ranks {
        let progress = |_| Progress {
            incarnation: Incarnation(1),
            recovered: true,
            has_reported: true,
            ..Progress::default()
        };
        Ranks { all: (0..count).map(progress).collect(), observed_memory: 0 }
    }

    fn of(&self, rank: Rank) -> &Progress {
        &self.all[rank.index()]
    }

    fn of_mut(&mut self, rank: Rank) -> &mut Progress {
        &mut self.all[rank.index()]
    }

    pub fn count(&self) -> usize {
        self.all.len()
    }

    pub fn has(&self, rank: Rank) -> bool {
        rank.index() < self.all.len()
    }

    /// Sets the incarnations that may connect at the start.
    pub fn begin_with(&mut self, incarnations: &[Incarnation]) {
        for (progress, incarnation) in self.all.iter_mut().zip(incarnations) {
            progress.incarnation = *incarnation;
        }
    }

    /// Whether this incarnation may connect.
    pub fn admit(&self, instance: RankInstance) -> Result<(), String> {
        let Some(progress) = self.all.get(instance.rank.index()) else {
            return Err("there is no such rank in the job".into());
        };
        if instance.incarnation != progress.incarnation && !active(Mutation::ForgetTheFence) {
            return Err(format!("{instance} has been replaced by {}", progress.incarnation));
        }
        Ok(())
    }

    /// The incarnation of a rank that may connect.
    pub fn instance(&self, rank: Rank) -> RankInstance {
        RankInstance { rank, incarnation: self.of(rank).incarnation }
    }

    /// Admits only this incarnation, and only once its recovery is prepared.
    pub fn fence(&mut self, instance: RankInstance) {
        let progress = self.of_mut(instance.rank);
        progress.incarnation = progress.incarnation.max(instance.incarnation);
        progress.recovered = false;
    }

    /// The determinants of a fenced rank.
    pub fn fenced_determinants(&self, rank: Rank) -> Vec<Determinant> {
        let progress = self.of(rank);
        let mut determinants = progress.determinants.clone();
        let last = determinants.last().copied().unwrap_or(Determinant { clock: 0, rsn: 0 });
        if progress.last_clock > last.clock && !active(Mutation::SkipNoDelivery) {
            // At this clock it had sent or observed something without having seen more: the next
            // incarnation must not see more before it either. A no-delivery determinant says so.
            determinants.push(Determinant { clock: progress.last_clock, rsn: last.rsn });
        }
        determinants
    }

    /// The recovery of a rank is prepared. False: another incarnation may connect by now.
    pub fn recover(
        &mut self,
        instance: RankInstance,
        mut determinants: Vec<Determinant>,
        observed: Vec<ObservedPart>,
    ) -> bool {
        if !self.has(instance.rank) || self.instance(instance.rank) != instance {
            return false;
        }
        let progress = self.of_mut(instance.rank);
        determinants.append(&mut progress.determinants);
        progress.determinants = merge(determinants);
        progress.recovered = true;
        self.change_observed(instance.rank, |log| log.add(observed));
        true
    }

    /// Whether the router has what the rank needs to replay.
    pub fn is_prepared(&self, rank: Rank) -> bool {
        self.of(rank).recovered || active(Mutation::SkipRecovery)
    }

    /// Up to which clock the progress of a rank is stable, here or in an image, and up to which
    /// byte its observations are.
    pub fn stable(&self, rank: Rank) -> (u64, u64) {
        let progress = self.of(rank);
        let last = progress.determinants.last().map_or(0, |d| d.clock);
        let forgets = active(Mutation::ForgetWhatWasTruncated);
        let truncated = if forgets { 0 } else { progress.truncated };
        (last.max(truncated), progress.observed.end())
    }

    /// The rank has sent something at this clock.
    pub fn spoke_at(&mut self, rank: Rank, clock: u64) {
        let progress = self.of_mut(rank);
        progress.last_clock = progress.last_clock.max(clock);
    }

    /// Keeps those determinants of a frame that are new.
    pub fn keep_determinants(&mut self, rank: Rank, list: impl Iterator<Item = Determinant>) {
        let known = &mut self.of_mut(rank).determinants;
        for d in list {
            let new = known.last().is_none_or(|last| last.clock < d.clock);
            if new && !active(Mutation::DropDeterminants) {
                known.push(d);
            }
        }
    }

    /// The determinants of a rank behind its `clock`.
    pub fn determinants_after(&self, rank: Rank, clock: u64) -> &[Determinant] {
        let determinants = &self.of(rank).determinants;
        let after = if active(Mutation::ReplayThePast) {
            0
        } else {
            determinants.partition_point(|d| d.clock <= clock)
        };
        &determinants[after..]
    }

    /// The receive sequence number of the last message that has become visible, as far as this
    /// router knows.
    pub fn shown(&self, rank: Rank) -> u64 {
        self.of(rank).determinants.last().map_or(0, |d| d.rsn)
    }

    /// Keeps a part of what a rank has observed.
    pub fn keep_observed(&mut self, rank: Rank, part: ObservedPart<&[u8]>) {
        let clock = part.clock;
        self.change_observed(rank, |log| log.push(part));
        // Until then nothing more had been visible: with more it might observe something else.
        if !active(Mutation::SkipObservedClock) {
            self.spoke_at(rank, clock);
        }
    }

    pub fn observed(&self, rank: Rank) -> &ObservedLog {
        &self.of(rank).observed
    }

    /// Bytes of memory that the observations of all ranks take.
    pub fn observed_memory(&self) -> u64 {
        self.observed_memory
    }

    /// Loses the observations of the rank that has most; returns it, and the bytes that it had.
    pub fn lose_most_observed(&mut self) -> Option<(Rank, u64)> {
        let most = |rank: &usize| self.all[*rank].observed.memory();
        let rank = (0..self.all.len()).max_by_key(most)?;
        let lost = most(&rank);
        self.change_observed(Rank(rank as u32), ObservedLog::lose);
        Some((Rank(rank as u32), lost))
    }

    /// Changes the observations of a rank, and counts their memory.
    fn change_observed(&mut self, rank: Rank, change: impl FnOnce(&mut ObservedLog)) {
        let log = &mut self.of_mut(rank).observed;
        let before = log.memory();
        change(log);
        let after = log.memory();
        self.observed_memory = self.observed_memory + after - before;
    }

    /// An image of the rank counts, which has its determinants up to `clock`, its messages up to
    /// `rsn`, and its observations up to the byte `observed`.
    pub fn truncate(&mut self, rank: Rank, (clock, rsn, observed): (u64, u64, u64)) {
        let progress = self.of_mut(rank);
        let gone = if active(Mutation::TruncateDeterminants) {
            progress.determinants.len()
        } else {
            progress.determinants.partition_point(|d| d.clock <= clock)
        };
        progress.determinants.drain(..gone);
        progress.truncated = progress.truncated.max(clock);
        progress.needed_after = progress.needed_after.max(rsn);
        self.change_observed(rank, |log| log.truncate(clock, observed));
    }

    /// The last message before the images of the rank: later ones are needed.
    pub fn needed_after(&self, rank: Rank) -> u64 {
        self.of(rank).needed_after
    }

    /// All ranks must report to this router, which has taken over from a lost one.
    pub fn must_report(&mut self) {
        self.all.iter_mut().for_each(|progress| progress.has_reported = false);
    }

    pub fn has_reported(&self, rank: Rank) -> bool {
        self.of(rank).has_reported
    }

    /// The rank has reported. True: it had not until now.
    pub fn reports(&mut self, rank: Rank) -> bool {
        !std::mem::replace(&mut self.of_mut(rank).has_reported, true)
    }

    /// The bytes that have come for a rank since the start, `logged` of them in messages, when they
    /// have grown by `step` since that was last reported.
    pub fn growth(&mut self, rank: Rank, logged: u64, step: u64) -> Option<u64> {
        let progress = self.of_mut(rank);
        let bytes = logged + progress.observed.appended();
        let due = bytes - progress.growth_reported >= step;
        due.then(|| {
            progress.growth_reported = bytes;
            bytes
        })
    }

    /// The rank sends on a new connection: what it sends again is compared from the start.
    pub fn begin_verifying(&mut self, rank: Rank) {
        self.of_mut(rank).verifier = Verifier::default();
    }

    /// Compares a message that is sent again with the log, if the log still has it.
    pub fn verify<S: Store>(
        &mut self,
        source: Rank,
        again: &Repeat,
        kept: &Kept,
        space: &Space<S>,
    ) -> Option<RouterEvent> {
        let verifier = &mut self.of_mut(source).verifier;
        let found = verifier.check(source, again, kept.log(again.destination), space);
        found.filter(|_| !active(Mutation::SkipVerification))
    }

    pub fn saved(&self, rank: Rank) -> SavedProgress {
        let progress = self.of(rank);
        let determinants = &progress.determinants;
        let drops = active(Mutation::SaveNoDeterminants);
        let unobserved = active(Mutation::SaveUnobserved);
        SavedProgress {
            incarnation: progress.incarnation,
            determinants: if drops { Vec::new() } else { determinants.clone() },
            observed: if unobserved { Vec::new() } else { progress.observed.all() },
            last_clock: progress.last_clock,
            needed_after: progress.needed_after,
            has_reported: progress.has_reported,
        }
    }

    pub fn restore(&mut self, rank: Rank, saved: SavedProgress) {
        let progress = self.of_mut(rank);
        progress.incarnation = saved.incarnation;
        progress.determinants = saved.determinants;
        progress.last_clock = saved.last_clock;
        progress.needed_after = saved.needed_after;
        progress.has_reported = saved.has_reported;
        self.change_observed(rank, |log| log.add(saved.observed));
    }
}

/// Makes one list of determinants from those of several routers. A router that does not have the
/// last determinants gives too low an rsn for a no-delivery determinant: numbers never fall.
fn merge(mut determinants: Vec<Determinant>) -> Vec<Determinant> {
    determinants.sort_unstable();
    let mut merged: Vec<Determinant> = Vec::with_capacity(determinants.len());
    for mut d in determinants {
        match merged.last_mut() {
            Some(last) if last.clock == d.clock => last.rsn = last.rsn.max(d.rsn),
            last => {
                d.rsn = d.rsn.max(last.map_or(0, |l| l.rsn));
                merged.push(d);
            }
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn determinants_of_several_routers_make_one_history() {
        let d = |clock, rsn| Determinant { clock, rsn };
        // The second router knows of a send at clock 9, but not of what became visible at clock 5.
        let merged = merge(vec![d(2, 1), d(5, 4), d(2, 1), d(9, 1), d(5, 4)]);
        assert_eq!(merged, [d(2, 1), d(5, 4), d(9, 4)]);
    }
}
