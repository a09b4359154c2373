//! How much memory each region may use. The sum of what is granted must never be more than the
//! memory for logs, but where no wait could help: each rank has one extent for each channel, a
//! message that is longer than all of that memory is granted what it needs, and so is a rank that
//! no other one can give room ([`super::stalls`]).
//!
//! A region that nears its end gets more, as long as there is some. Then what others do not use is
//! taken back. Then images are asked for, which release what is kept for a receiver. Where none
//! helps within a second, messages are taken out of ledgers to disk ([`super::spill`]). Where that
//! helps neither, a rank that needs more waits until its receivers receive, and an event says so.
//! When it has waited long and the disk is full, what a receiver has is released without an image;
//! that is decided above.

use super::output::Output;
use super::ranks::Ranks;
use super::regions::Regions;
use eyrie_ledger::layout::{Channel, PAGE};
use eyrie_ledger::memory::Memory;
use eyrie_ledger::region;
use eyrie_router::RouterEvent;
use eyrie_wire::Rank;
use std::time::Duration;

/// What is granted is a multiple of this, where there is so much.
const STEP: u64 = 4 << 20;
/// Most bytes that are granted to a region at the start.
const MOST_AT_START: u64 = 64 << 20;
/// A region nears its end when less than this share is left.
const SHARE_LEFT: u64 = 4;
/// How long ranks wait before something is released without an image.
const HOLD: Duration = Duration::from_secs(10);
/// How often an image is asked for while there is too little.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// The same of a rank that lacks room for what it observes: with the last two images kept, it takes
/// two of them to release it, and the first one does not count here.
const ASK_OWN_EVERY: Duration = Duration::from_millis(50);
/// How long an image may take before messages are taken out to disk.
const GRACE: Duration = Duration::from_secs(1);
/// What is granted beyond the bound is reported from this share of the bound on, and whenever it
/// has become so many times as much.
const REPORTED_SHARE: u64 = 8;
const REPORTED_TIMES: u64 = 4;
/// It is granted this share of what its region uses, if that is more than it needs.
const MORE: u64 = 4;
/// The growth of what is kept for a receiver is reported in steps of this share of the memory for
/// logs, and of at least these bytes.
const GROWTH_SHARE: u64 = 64;
const MIN_GROWTH: u64 = 1 << 20;
/// How often that is looked at: so often that a step takes about as long, within these bounds.
const LOOK_OFTEN: Duration = Duration::from_millis(10);
const LOOK_RARELY: Duration = Duration::from_millis(100);
/// Ranks up to which it is looked at so often.
const FEW_RANKS: u32 = 16;

/// What is granted, and whether there is too little.
pub struct Room {
    /// Bytes of memory for logs.
    bound: u64,
    /// Bytes that each region has at least.
    least: u64,
    granted: Vec<u64>,
    /// Bytes of memory that the system had for ledgers when their use had last changed, and how
    /// many they used then.
    memory_left: u64,
    used: u64,
    /// Bytes that were granted beyond the bound, because no wait could help, and how many of them
    /// an event has named.
    pub beyond: u64,
    reported_beyond: u64,
    /// Since the keeper's start.
    now: Duration,
    /// When an image was last asked for, while there is too little.
    asked: Option<Duration>,
    /// An image has counted since.
    counted: bool,
    /// Regions that need more than there is, since when, and whether one of their ranks waits.
    short: Vec<Rank>,
    short_since: Option<Duration>,
    waits: bool,
    /// Whether images have given room when there was too little: then they are waited for.
    images_help: bool,
    /// When nothing could be taken out to disk.
    stuck: Option<Duration>,
    /// Since when a rank waits in vain, or since something was released without an image.
    held: Option<Duration>,
    growth: Vec<Growth>,
    /// When growth was last looked at, and when it is to be looked at again, from then on.
    looked: Duration,
    pause: Duration,
}

/// How much has been sent to a rank, in bytes.
#[derive(Clone, Copy, Default)]
struct Growth {
    /// Before the start.
    before: u64,
    reported: u64,
    /// At the last look.
    seen: u64,
}

impl Room {
    /// Room for these ranks within `bound` bytes.
    pub fn new<M: Memory>(regions: &Regions<M>, bound: u64) -> Room {
        let ranks = regions.count() as u64;
        let share = (bound / ranks.max(1)).min(MOST_AT_START);
        let share = if share < STEP { share / PAGE * PAGE } else { share / STEP * STEP };
        // A rank can send to each rank once, and record.
        let least = (ranks + 2) * PAGE;
        let used = |rank| regions.used(rank).next_multiple_of(PAGE).max(least);
        let shares = regions.ranks().map(|rank| share.max(used(rank)).min(limit(regions, rank)));
        let mut granted: Vec<_> = shares.collect();
        if granted.iter().sum::<u64>() > bound {
            // What was saved takes so much: each has what it uses, and gets more when it needs it.
            granted = regions.ranks().map(used).collect();
        }
        let beyond = granted.iter().sum::<u64>().saturating_sub(bound);
        let growth = regions
            .ranks()
            .map(|rank| Growth { before: regions.sent_to(rank), ..Growth::default() });
        Room {
            bound,
            least,
            granted,
            memory_left: u64::MAX,
            used: u64::MAX,
            beyond,
            reported_beyond: beyond.max(bound / REPORTED_SHARE / REPORTED_TIMES),
            now: Duration::ZERO,
            asked: None,
            counted: false,
            short: Vec::new(),
            short_since: None,
            waits: false,
            images_help: true,
            stuck: None,
            held: None,
            growth: growth.collect(),
            looked: Duration::ZERO,
            pause: LOOK_RARELY,
        }
    }

    /// Bytes of memory for logs.
    pub fn bound(&self) -> u64 {
        self.bound
    }

    /// Bytes that the region of a rank may use.
    pub fn granted(&self, rank: Rank) -> u64 {
        self.granted[rank.index()]
    }

    /// The time since the keeper's start.
    #[cfg(test)]
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Sets the time since the keeper's start.
    pub fn set_time(&mut self, now: Duration) {
        self.now = now;
    }

    /// Looks how much memory the system has yet, when more of it is used than at the last look.
    /// Where it has none, regions keep what they use, and are granted no more.
    pub fn look_at_memory<M: Memory>(&mut self, regions: &Regions<M>, out: &impl Output) {
        let used = regions.ranks().map(|rank| regions.used(rank)).fold(0, u64::saturating_add);
        if used == self.used && self.short.is_empty() {
            return;
        }
        (self.used, self.memory_left) = (used, out.memory_left());
        if self.memory_left > 0 {
            return;
        }
        for rank in regions.ranks() {
            let used = regions.used(rank).max(self.least).next_multiple_of(PAGE);
            if used < self.granted(rank) {
                self.grant(regions, rank, used);
            }
        }
    }

    /// Whether the system has no memory for what a rank wants.
    pub fn lacks_memory<M: Memory>(&self, regions: &Regions<M>, rank: Rank) -> bool {
        let (memory, layout) = regions.of(rank);
        region::wanted(memory, layout) > self.memory_left
    }

    /// Grants more where it is needed, and reports what cannot be granted.
    pub fn keep<M: Memory>(&mut self, regions: &Regions<M>, ranks: &Ranks, out: &mut impl Output) {
        self.short.clear();
        self.waits = false;
        for rank in regions.ranks().filter(|rank| ranks.has_ledgers(*rank)) {
            let (memory, layout) = regions.of(rank);
            let wanted = region::wanted(memory, layout);
            let granted = self.granted(rank);
            let needed = if wanted > 0 {
                regions.used(rank).saturating_add(wanted)
            } else if self.nears_its_end(regions, rank) {
                granted + PAGE
            } else {
                continue;
            };
            if needed <= granted {
                // It waits for what it was granted: a bit of that word may have flipped.
                self.grant(regions, rank, granted);
                continue;
            }
            // A message that is longer than the bound need not wait, unless there is another one
            // like it that may be taken out first.
            let is_longer = wanted > self.bound.max(regions.needed(rank));
            let has_room = self.raise(regions, rank, needed)
                || is_longer && wanted <= self.memory_left && self.exceed(regions, rank, needed);
            if !has_room {
                self.short.push(rank);
                self.waits |= wanted > 0;
            }
        }
        let scarce = !self.short.is_empty();
        self.short_since = scarce.then(|| self.short_since.unwrap_or(self.now));
        self.held = self.held.filter(|_| self.waits);
        self.ask(regions, scarce, out);
    }

    /// An image has counted.
    pub fn image_counted<M: Memory>(&mut self, regions: &Regions<M>, out: &mut impl Output) {
        self.images_help |= self.short.is_empty();
        self.counted = true;
        self.ask(regions, !self.short.is_empty(), out);
        self.stuck = None;
    }

    /// The ranks that need more than there is, when messages are to be taken out of their ledgers
    /// now.
    pub fn ranks_to_relieve(&mut self) -> Option<&[Rank]> {
        let since = self.short_since?;
        self.images_help &= self.now < since + GRACE;
        let now = !self.images_help && self.stuck != Some(self.now);
        now.then_some(&self.short)
    }

    /// Messages were taken out of ledgers.
    pub fn relieved(&mut self) {
        self.stuck = None;
    }

    /// Nothing can be taken out of the ledgers before something more is received.
    pub fn rest(&mut self) {
        self.stuck = Some(self.now);
    }

    /// Nothing can be taken out of the ledgers, because the disk is full: ranks that need more
    /// wait. True: they begin to.
    pub fn hold(&mut self) -> bool {
        self.stuck = Some(self.now);
        let begins = self.waits && self.held.is_none();
        if begins {
            self.held = Some(self.now);
        }
        begins
    }

    /// Reports what was granted beyond the bound, once it is much, and whenever it has become much
    /// more.
    pub fn report_beyond(&mut self, out: &mut impl Output) {
        if self.beyond > REPORTED_TIMES * self.reported_beyond {
            self.reported_beyond = self.beyond;
            out.event(RouterEvent::BoundExceeded { bytes: self.beyond });
        }
    }

    fn nears_its_end<M: Memory>(&self, regions: &Regions<M>, rank: Rank) -> bool {
        let near =
            |bytes: u64| self.granted(rank).saturating_sub(bytes) < self.granted(rank) / SHARE_LEFT;
        // It needs no more than it has used.
        near(regions.used(rank)) && near(regions.needed(rank))
    }

    /// Grants a region at least `needed` bytes, and some more. False: there are not so many.
    fn raise<M: Memory>(&mut self, regions: &Regions<M>, rank: Rank, needed: u64) -> bool {
        let limit = limit(regions, rank);
        if needed > limit {
            return false;
        }
        let granted = self.granted(rank);
        let wish = needed.max(granted + granted / 2).next_multiple_of(STEP).min(limit);
        if wish - granted > self.left() {
            self.take_back(regions, rank, wish - granted);
        }
        let possible = wish.min(granted + self.left()) / PAGE * PAGE;
        if possible < needed {
            return false;
        }
        self.grant(regions, rank, possible);
        true
    }

    /// Grants a region so many bytes, whatever is left. False: it has not so many addresses.
    fn exceed<M: Memory>(&mut self, regions: &Regions<M>, rank: Rank, needed: u64) -> bool {
        let fits = needed <= limit(regions, rank);
        if fits {
            let more = needed.next_multiple_of(PAGE).saturating_sub(self.granted(rank));
            let within = self.bound.saturating_sub(self.granted.iter().sum());
            self.beyond += more.saturating_sub(within);
            self.grant(regions, rank, self.granted(rank) + more);
        }
        fits
    }

    /// Whether ranks have waited so long that something is to be released without an image.
    pub fn has_waited_long(&self) -> bool {
        self.held.is_some_and(|since| self.now >= since + HOLD)
    }

    /// Something was released without an image, or cannot be: waits again.
    pub fn wait_again(&mut self) {
        self.held = Some(self.now);
    }

    /// Grants a rank that waits what it needs, where that fits beside what all need: its region is
    /// in pieces that are too small. What ranks observe, and their order, cannot be taken out: up
    /// to as many bytes again are granted for them. False: it does not fit.
    pub fn grant_pieces<M: Memory>(&mut self, regions: &Regions<M>, rank: Rank) -> bool {
        let needed = regions.ranks().map(|rank| regions.needed(rank));
        let needed = needed.fold(0, u64::saturating_add);
        let own = [Channel::Order, Channel::Observed];
        let own = |rank| own.map(|channel| regions.needed_by(rank, channel)).iter().sum::<u64>();
        let recorded = regions.ranks().map(own).fold(0, u64::saturating_add);
        let bound = self.bound.saturating_add(recorded.min(self.bound));
        self.grant_more(regions, rank, bound.saturating_sub(needed))
    }

    /// Whether what a rank has observed takes more than half of its share of the memory for logs.
    pub fn is_filled_by_observed<M: Memory>(&self, regions: &Regions<M>, rank: Rank) -> bool {
        let share = self.bound / regions.count().max(1) as u64;
        regions.needed_by(rank, Channel::Observed) > share / 2
    }

    /// Grants a rank that waits what it needs, whatever is left. False: it has not so many
    /// addresses.
    pub fn grant_beyond<M: Memory>(&mut self, regions: &Regions<M>, rank: Rank) -> bool {
        self.grant_more(regions, rank, u64::MAX)
    }

    /// Grants a rank what it waits for, and some more, so that one that sends much does not have to
    /// wait often. False: that is more than `most` bytes, or than it has addresses.
    fn grant_more<M: Memory>(&mut self, regions: &Regions<M>, rank: Rank, most: u64) -> bool {
        let (memory, layout) = regions.of(rank);
        let used = regions.used(rank);
        let wanted = region::wanted(memory, layout);
        let limit = limit(regions, rank).saturating_sub(used);
        let most = most.min(self.memory_left);
        let more = wanted.max((used / MORE).min(most)).min(limit);
        wanted <= most.min(limit) && self.exceed(regions, rank, used + more)
    }

    /// Takes back what regions do not use, until so much is left for another one, if it can be.
    fn take_back<M: Memory>(&mut self, regions: &Regions<M>, except: Rank, wanted: u64) {
        let spare = |room: &Room, rank: Rank| {
            let used = regions.used(rank);
            let (memory, layout) = regions.of(rank);
            // It was granted what it waits for, perhaps, and has not taken it yet.
            let waits_for = used.saturating_add(region::wanted(memory, layout));
            // With less it would near its end at once.
            let stays = (used + used / 2).max(waits_for).max(room.least).next_multiple_of(PAGE);
            room.granted(rank).saturating_sub(stays)
        };
        let mut others: Vec<_> = regions.ranks().filter(|rank| *rank != except).collect();
        others.sort_by_key(|rank| std::cmp::Reverse(spare(self, *rank)));
        for rank in others {
            let lacks = wanted.saturating_sub(self.left());
            let taken = spare(self, rank).min(lacks.next_multiple_of(PAGE));
            if taken == 0 {
                return;
            }
            // If its rank uses it at this moment, a little more than the bound is used.
            self.grant(regions, rank, self.granted(rank) - taken);
        }
    }

    fn grant<M: Memory>(&mut self, regions: &Regions<M>, rank: Rank, bytes: u64) {
        self.granted[rank.index()] = bytes;
        let (memory, layout) = regions.of(rank);
        region::grant(memory, layout, bytes);
    }

    /// Bytes that are not granted.
    fn left(&self) -> u64 {
        let granted: u64 = self.granted.iter().sum();
        // What is granted and not used yet takes memory, too.
        let unused = granted.saturating_sub(self.used);
        self.bound.saturating_sub(granted).min(self.memory_left.saturating_sub(unused))
    }

    /// Asks for an image while there is too little: of a rank that lacks room for what it observes,
    /// which only its own image releases, else of the receiver for which most is kept. Where a rank
    /// waits, the next one is asked for as soon as one has counted that was not enough.
    fn ask<M: Memory>(&mut self, regions: &Regions<M>, scarce: bool, out: &mut impl Output) {
        if !scarce {
            self.asked = None;
            return;
        }
        let observes = |rank: &Rank| self.is_filled_by_observed(regions, *rank);
        let own = self.short.iter().copied().filter(observes);
        let own = own.max_by_key(|rank| regions.needed_by(*rank, Channel::Observed));
        let again = self.counted && self.images_help && self.waits && self.lacks(regions);
        let every = if own.is_some() { ASK_OWN_EVERY } else { ASK_EVERY };
        if !again && self.asked.is_some_and(|asked| self.now < asked + every) {
            return;
        }
        (self.asked, self.counted) = (Some(self.now), false);
        let receiver = || regions.ranks().max_by_key(|rank| regions.needed_for(*rank));
        if let Some(rank) = own.or_else(receiver) {
            out.event(RouterEvent::LogScarce { rank });
        }
    }

    /// Whether a rank that waits needs more than what was released gives it.
    fn lacks<M: Memory>(&self, regions: &Regions<M>) -> bool {
        self.short.iter().any(|rank| {
            let (memory, layout) = regions.of(*rank);
            let wanted = region::wanted(memory, layout);
            wanted > 0 && regions.needed(*rank).saturating_add(wanted) > self.granted(*rank)
        })
    }

    /// Reports how much has been sent to each rank since the start, whenever that has grown by a
    /// step.
    pub fn report_growth<M: Memory>(&mut self, regions: &Regions<M>, out: &mut impl Output) {
        let step = self.bound / (GROWTH_SHARE * regions.count().max(1) as u64);
        let step = step.max(MIN_GROWTH);
        let mut fastest = 0;
        for (rank, growth) in regions.ranks().zip(&mut self.growth) {
            let bytes = regions.sent_to(rank).saturating_sub(growth.before);
            fastest = fastest.max(bytes.saturating_sub(growth.seen));
            growth.seen = bytes;
            if bytes.saturating_sub(growth.reported) >= step {
                growth.reported = bytes;
                out.event(RouterEvent::LogGrown { rank, bytes });
            }
        }
        let time = self.now.saturating_sub(std::mem::replace(&mut self.looked, self.now));
        let steps = (fastest as f64 / step as f64).max(1e-3);
        self.pause = time.div_f64(steps).clamp(self.shortest_pause(), LOOK_RARELY);
    }

    fn shortest_pause(&self) -> Duration {
        LOOK_OFTEN * (self.granted.len() as u32 / FEW_RANKS).clamp(1, 10)
    }

    /// How long it may take until growth is looked at again. While a rank waits, every message that
    /// another one receives may be what gives it room.
    pub fn pause(&self) -> Duration {
        if self.waits {
            self.shortest_pause()
        } else {
            self.pause
        }
    }
}

/// Most bytes that a region can use.
fn limit<M: Memory>(regions: &Regions<M>, rank: Rank) -> u64 {
    let (_, layout) = regions.of(rank);
    layout.end() - layout.extents()
}
