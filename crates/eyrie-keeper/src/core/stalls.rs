//! Ranks that wait for room, and who can give it to them: a rank that has yet to receive what they
//! have sent, or what it has received, which is taken out or released. Where there is neither,
//! ranks wait for each other, and none would ever go on. It must never count a rank among these
//! while another one can still give it room, but for one that has been gone for long.

use super::images::{Images, Received};
use super::ranks::Ranks;
use super::regions::Regions;
use eyrie_ledger::layout::Channel;
use eyrie_ledger::memory::Memory;
use eyrie_ledger::region;
use eyrie_wire::Rank;
use std::time::Duration;

/// How long a rank waits at least: what was released just now, it has yet to find.
const SETTLED: Duration = Duration::from_millis(200);
/// How long a rank without a connection may be about to come back: it is restored, or has ended.
const GONE: Duration = Duration::from_secs(10);
/// How long a rank waits for an image of its own, of which none can begin while it records.
const IMAGE: Duration = Duration::from_secs(1);
/// When an event says that a rank waits for another one, and how often.
const REPORT_AFTER: Duration = Duration::from_secs(1);
const REPORT_EVERY: Duration = Duration::from_secs(60);
/// How long a rank waits for memory that the system does not have.
const GIVE_UP: Duration = Duration::from_secs(600);

/// A rank that waits.
struct Wait {
    rank: Rank,
    /// Since when it has waited, and nothing of its region was released or granted.
    since: Duration,
    /// What had been released of its region by then, and granted.
    state: (u64, u64),
}

/// A rank for which messages of another one are kept.
#[derive(Clone, Copy)]
struct Receiver {
    rank: Rank,
    /// Some it has yet to receive.
    has_more: bool,
    /// Some it has received.
    has_received: bool,
}

/// Who can give room to a rank that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Help {
    /// What this rank has received, and is kept for it, will be released.
    Release,
    /// This rank has yet to receive messages. It does not wait for room, or can be given some.
    Receiver(Rank),
    /// No rank.
    None,
}

/// The ranks that wait for room.
pub struct Stalls {
    waits: Vec<Wait>,
    /// When an event has last said that a rank waits for another one.
    reported: Vec<Option<Duration>>,
    /// Of each rank a clock, and how many messages of each source it had received then.
    received: Vec<(u64, Vec<u64>)>,
}

impl Stalls {
    /// No rank waits.
    pub fn new(ranks: usize) -> Stalls {
        let waits = Vec::new();
        let reported = vec![None; ranks];
        Stalls { waits, reported, received: vec![(0, vec![0; ranks]); ranks] }
    }

    /// Looks at the ranks that wait now.
    pub fn look<M: Memory>(&mut self, regions: &Regions<M>, ranks: &Ranks, now: Duration) {
        let before = std::mem::take(&mut self.waits);
        for rank in regions.ranks().filter(|rank| waits(regions, ranks, *rank)) {
            let (memory, layout) = regions.of(rank);
            let to_ranks = regions.ranks().map(|to| Channel::Rank(to.0));
            let channels = to_ranks.chain([Channel::Order, Channel::Observed]);
            let released = channels.map(|channel| region::released(memory, layout, channel));
            let released = released.fold(0, u64::wrapping_add);
            let state = (released, region::granted(memory, layout));
            let same = before.iter().find(|wait| wait.rank == rank && wait.state == state);
            let since = same.map_or(now, |wait| wait.since);
            self.waits.push(Wait { rank, since, state });
        }
    }

    /// Whether an event is to say now that this rank waits for another one. It then counts as said.
    pub fn report(&mut self, rank: Rank, now: Duration) -> bool {
        let is_late = self.since(rank).is_some_and(|since| now >= since + REPORT_AFTER);
        let last = &mut self.reported[rank.index()];
        let due = is_late && last.is_none_or(|last| now >= last + REPORT_EVERY);
        if due {
            *last = Some(now);
        }
        due
    }

    /// Whether a rank has waited so long that the job is to end.
    pub fn has_given_up(&self, rank: Rank, now: Duration) -> bool {
        self.since(rank).is_some_and(|since| now >= since + GIVE_UP)
    }

    /// Whether a rank has waited as long as the store of an image that is under way may take.
    pub fn has_waited_for_an_image(&self, rank: Rank, now: Duration) -> bool {
        self.since(rank).is_some_and(|since| now >= since + IMAGE)
    }

    fn since(&self, rank: Rank) -> Option<Duration> {
        self.waits.iter().find(|wait| wait.rank == rank).map(|wait| wait.since)
    }

    /// Who can give room to each of the ranks that have waited for a while.
    ///
    /// # Errors
    /// A sentence for users, when the order of a rank is damaged.
    pub fn help<M: Memory>(
        &mut self,
        (regions, ranks, images): (&Regions<M>, &Ranks, &Images),
        now: Duration,
    ) -> Result<Vec<(Rank, Help)>, String> {
        if self.waits.is_empty() {
            return Ok(Vec::new());
        }
        regions.ranks().try_for_each(|rank| self.read_received(regions, images, rank))?;
        // One that has only begun to wait may have found room by now.
        let long = self.waits.iter().filter(|wait| now >= wait.since + SETTLED);
        let waits: Vec<_> = long.map(|wait| (wait.rank, wait.since)).collect();
        let mut all = Vec::with_capacity(waits.len());
        for (rank, since) in &waits {
            let is_there = |to: &Receiver| ranks.has_ledgers(to.rank);
            let may_come = |to: &Receiver| is_there(to) || now < *since + GONE;
            let receivers: Vec<_> = self.receivers(regions, *rank).filter(may_come).collect();
            let is_free =
                |to: &&Receiver| to.has_more && !waits.iter().any(|(rank, _)| *rank == to.rank);
            let releases = |to: &Receiver| to.has_received;
            let help = match receivers.iter().find(is_free) {
                // What one has received that is not there is released only when it has come back.
                _ if receivers.iter().filter(|to| is_there(to)).any(releases) => Help::Release,
                Some(to) => Help::Receiver(to.rank),
                None if receivers.iter().any(releases) => Help::Release,
                None => Help::None,
            };
            all.push((*rank, help, receivers));
        }
        // A receiver that waits receives later, when it is given room.
        while let Some((at, by)) = (0..all.len()).find_map(|at| {
            let (_, Help::None, receivers) = &all[at] else { return None };
            let is_helped = |rank| all.iter().any(|(r, help, _)| *r == rank && *help != Help::None);
            receivers.iter().find(|to| is_helped(to.rank)).map(|to| (at, to.rank))
        }) {
            all[at].1 = Help::Receiver(by);
        }
        Ok(all.into_iter().map(|(rank, help, _)| (rank, help)).collect())
    }

    /// The ranks for which messages of this one are kept.
    fn receivers<'a, M: Memory>(
        &'a self,
        regions: &'a Regions<M>,
        rank: Rank,
    ) -> impl Iterator<Item = Receiver> + 'a {
        regions.ranks().zip(&self.received).filter_map(move |(to, (_, received))| {
            let newest = regions.newest(rank, to);
            let released = regions.released(rank, to);
            let received = received[rank.index()];
            let has_more = newest > received;
            let has_received = received > released;
            (newest > released).then_some(Receiver { rank: to, has_more, has_received })
        })
    }

    /// Reads how many messages of each source a rank has received, as far as it has recorded that.
    fn read_received<M: Memory>(
        &mut self,
        regions: &Regions<M>,
        images: &Images,
        rank: Rank,
    ) -> Result<(), String> {
        let known = &mut self.received[rank.index()];
        let imaged = images.of(rank);
        if imaged.clock > known.0 {
            // What comes before may be released.
            *known = (imaged.clock, imaged.counts.clone());
        }
        let received = Received::so_far(regions, rank, (known.0, &known.1));
        let Received { clock, counts, .. } = received?;
        *known = (clock.max(known.0), counts);
        Ok(())
    }
}

/// Whether a rank is connected and waits for more than it is granted.
fn waits<M: Memory>(regions: &Regions<M>, ranks: &Ranks, rank: Rank) -> bool {
    let (memory, layout) = regions.of(rank);
    let wanted = region::wanted(memory, layout);
    let needed = regions.used(rank).saturating_add(wanted);
    wanted > 0 && needed > region::granted(memory, layout) && ranks.has_ledgers(rank)
}
