//! When which rank is due for a checkpoint: by the clock, or because its log has grown. Pure: it
//! starts nothing.

use eyrie_interface::options::CheckpointEvery;
use eyrie_interface::Order;
use eyrie_wire::Rank;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// How often each rank is checkpointed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Interval {
    Off,
    Every(Duration),
    /// By Daly's formula from the measured cost and the mean time between failures, and sooner for
    /// a rank whose log since its last image has outgrown what an image costs: `log_share` is what
    /// a rank's log may take of the memory for logs, in bytes.
    Auto {
        mtbf: Duration,
        log_share: u64,
    },
}

impl Interval {
    /// What a user asks for. `log_memory`: what all logs of the job have, in bytes.
    pub fn asked(every: CheckpointEvery, mtbf: Duration, log_memory: u64, ranks: u32) -> Interval {
        match every {
            CheckpointEvery::Off => Interval::Off,
            CheckpointEvery::Auto => {
                Interval::Auto { mtbf, log_share: log_memory / u64::from(ranks.max(1)) }
            }
            CheckpointEvery::Time(time) => Interval::Every(time),
        }
    }
}

/// The interval of `auto` before anything has been measured.
const FIRST_AUTO: Duration = Duration::from_secs(30);
/// `auto` never asks more often than this.
const SHORTEST_AUTO: Duration = Duration::from_secs(1);

/// `auto` takes an image when the log since the last one exceeds this part of the rank's share of
/// the memory. The log reaches back to the image before the last one and grows on until the next
/// counts: three such parts as a rule.
const LOG_PARTS: u64 = 4;
/// What writing the log to disk is taken to cost at least: bytes in a second. Where an image takes
/// longer than the log would, it waits.
const DISK_BYTES_PER_S: f64 = 1e9;

/// Optimum interval between the ends of checkpoints: J. T. Daly, "A higher order estimate of the
/// optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22 (2006):
/// sqrt(2 δ M) (1 + 1/3 sqrt(δ / 2M) + 1/9 (δ / 2M)) − δ for δ < 2M, else M. `cost` is δ, the time
/// that one checkpoint takes; `mtbf` is M.
pub fn daly(cost: Duration, mtbf: Duration) -> Duration {
    let (d, m) = (cost.as_secs_f64(), mtbf.as_secs_f64());
    if d >= 2.0 * m {
        return mtbf;
    }
    let x = d / (2.0 * m);
    Duration::from_secs_f64(((2.0 * d * m).sqrt() * (1.0 + x.sqrt() / 3.0 + x / 9.0) - d).max(0.0))
}

/// The log of a rank.
#[derive(Clone, Copy, Default, Debug, Serialize, Deserialize)]
struct Logged {
    /// Bytes that were ever logged.
    bytes: u64,
    /// What this was when its newest image was asked for, or the last attempt failed.
    at_image: u64,
    /// What it was when the image under way was asked for.
    at_request: Option<u64>,
}

/// The clock of checkpoints.
#[derive(Debug, Serialize, Deserialize)]
pub struct Schedule {
    interval: Interval,
    order: Order,
    /// When each rank is due next, by rank and by time.
    due: Vec<Option<Duration>>,
    by_time: BTreeSet<(Duration, Rank)>,
    /// Mean cost of a checkpoint so far.
    cost: Option<Duration>,
    logs: Vec<Logged>,
    /// Ranks that are due because of their logs, whatever the order.
    outgrown: BTreeSet<Rank>,
}

impl Schedule {
    pub fn new(interval: Interval, order: Order, ranks: u32) -> Schedule {
        Schedule {
            interval,
            order,
            due: vec![None; ranks as usize],
            by_time: BTreeSet::new(),
            cost: None,
            logs: vec![Logged::default(); ranks as usize],
            outgrown: BTreeSet::new(),
        }
    }

    /// The interval at present.
    pub fn interval(&self) -> Option<Duration> {
        match self.interval {
            Interval::Off => None,
            Interval::Every(d) => Some(d),
            Interval::Auto { mtbf, .. } => {
                Some(self.cost.map_or(FIRST_AUTO, |c| daly(c, mtbf).max(SHORTEST_AUTO)))
            }
        }
    }

    /// What an image takes until it is stored, in the mean of the last ones.
    pub fn cost(&self) -> Option<Duration> {
        self.cost
    }

    /// The longest that a rank is to be without a new image; that of `auto` may be shorter by now
    /// than when a rank that has had none (`first`) was told when it is due.
    pub fn longest_interval(&self, first: bool) -> Option<Duration> {
        let interval = self.interval()?;
        let began_longer = first && matches!(self.interval, Interval::Auto { .. });
        Some(if began_longer { interval.max(FIRST_AUTO) } else { interval })
    }

    /// These ranks run from `now` on.
    pub fn begin(&mut self, ranks: &[Rank], now: Duration) {
        let Some(interval) = self.interval() else { return };
        let all = ranks.len() as u32;
        for (n, rank) in (1..).zip(ranks) {
            let due = match self.order {
                Order::Batch => now + interval,
                // The first of them after a share of the interval, so that the round ends with it.
                Order::Sequential | Order::SelfTimed => now + interval * n / all,
            };
            self.set(*rank, |_| Some(due));
        }
    }

    /// Changes when a rank is due.
    fn set(&mut self, rank: Rank, change: impl FnOnce(Option<Duration>) -> Option<Duration>) {
        let Some(due) = self.due.get_mut(rank.index()) else { return };
        let before = *due;
        *due = change(before);
        if *due != before {
            before.map(|at| self.by_time.remove(&(at, rank)));
            due.map(|at| self.by_time.insert((at, rank)));
        }
    }

    /// Whether some rank may be due.
    pub fn is_due(&self, now: Duration) -> bool {
        !self.outgrown.is_empty() || self.by_time.first().is_some_and(|(at, _)| *at <= now)
    }

    /// Whether ranks wait for each other's checkpoints.
    pub fn one_by_one(&self) -> bool {
        self.order == Order::Sequential
    }

    /// The ranks that are due, the most overdue first. `busy`: a checkpoint is under way.
    pub fn due(&self, now: Duration, busy: bool) -> Vec<Rank> {
        let most = match self.order {
            Order::Sequential => usize::from(!busy),
            Order::Batch | Order::SelfTimed => usize::MAX,
        };
        let due = self.by_time.range(..=(now, Rank(u32::MAX))).take(most);
        let by_time = due.map(|(_, rank)| *rank);
        let by_log = self.outgrown.iter().copied();
        let mut all: Vec<Rank> = by_log.collect();
        all.extend(by_time.filter(|rank| !self.outgrown.contains(rank)));
        all
    }

    /// So many bytes were ever logged for the rank, whose newest image has `image_bytes`.
    pub fn logged(&mut self, rank: Rank, bytes: u64, image_bytes: u64) {
        let Interval::Auto { log_share, .. } = self.interval else { return };
        let cost = self.cost.unwrap_or_default().as_secs_f64();
        let worth = image_bytes.max(log_share / LOG_PARTS).max((cost * DISK_BYTES_PER_S) as u64);
        let Some(log) = self.logs.get_mut(rank.index()) else { return };
        log.bytes = bytes;
        if log.at_request.is_none() && bytes.saturating_sub(log.at_image) > worth {
            self.outgrown.insert(rank);
        }
    }

    /// The space for logs comes to an end; that of this rank takes most of it.
    pub fn log_scarce(&mut self, rank: Rank) {
        let asked = self.logs.get(rank.index()).is_none_or(|log| log.at_request.is_some());
        if self.interval != Interval::Off && !asked {
            self.outgrown.insert(rank);
        }
    }

    /// A checkpoint of the rank was asked for.
    pub fn asked(&mut self, rank: Rank, now: Duration) {
        let interval = self.interval();
        self.outgrown.remove(&rank);
        if let Some(log) = self.logs.get_mut(rank.index()) {
            log.at_request = Some(log.bytes);
        }
        let order = self.order;
        self.set(rank, |due| match (due, interval, order) {
            (_, None, _) => None,
            // Its timer runs again from the end of this one; should that never come, from here.
            (_, Some(i), Order::SelfTimed) => Some(now + i),
            // The rhythm is kept, but what was missed is not made up for.
            (Some(d), Some(i), _) if d + i > now => Some(d + i),
            (_, Some(i), _) => Some(now + i),
        });
    }

    /// A checkpoint of the rank has ended after `cost` (`None`: it failed).
    pub fn ended(&mut self, rank: Rank, now: Duration, cost: Option<Duration>) {
        if let Some(log) = self.logs.get_mut(rank.index()) {
            // What cannot be taken is not asked for at every message.
            let at_request = log.at_request.take();
            log.at_image = at_request.filter(|_| cost.is_some()).unwrap_or(log.bytes);
        }
        if let Some(cost) = cost {
            self.cost = Some(self.cost.map_or(cost, |c| (c * 3 + cost) / 4));
        }
        if self.order == Order::SelfTimed {
            let next = self.interval().map(|i| now + i);
            self.set(rank, |_| next);
        }
    }

    /// The rank is due at once.
    pub fn want(&mut self, rank: Rank, now: Duration) {
        self.set(rank, |due| Some(due.map_or(now, |d| d.min(now))));
    }

    /// The rank is due but could not be captured: to be tried again at `at`.
    pub fn retry(&mut self, rank: Rank, at: Duration) {
        self.outgrown.remove(&rank);
        self.set(rank, |_| Some(at));
    }

    /// When the next rank that is not due yet will be.
    pub fn next_after(&self, now: Duration) -> Option<Duration> {
        self.by_time.range((now, Rank(u32::MAX))..).map(|(at, _)| *at).find(|at| *at > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// All ranks run from `now` on.
    fn begin(c: &mut Schedule, now: Duration) {
        let all: Vec<Rank> = Rank::first(c.due.len() as u32).collect();
        c.begin(&all, now);
    }

    #[test]
    fn daly_between_its_limits() {
        // First order for a small cost: sqrt(2 δ M); here 120 s against 24 h.
        let t = daly(s(1), s(7200)).as_secs_f64();
        assert!(
            (t - (120.0 * (1.0 + (1.0f64 / 14400.0).sqrt() / 3.0 + 1.0 / 129600.0) - 1.0)).abs()
                < 1e-9
        );
        assert_eq!(daly(s(10), s(5)), s(5));
        assert_eq!(daly(s(0), s(5)), s(0));
    }

    #[test]
    fn batch_wants_all_at_once() {
        let mut c = Schedule::new(Interval::Every(s(10)), Order::Batch, 3);
        begin(&mut c, s(0));
        assert!(c.due(s(9), false).is_empty());
        assert_eq!(c.due(s(10), true), [0, 1, 2].map(Rank));
        c.asked(Rank(1), s(10));
        assert_eq!(c.due(s(10), true), [0, 2].map(Rank));
        assert_eq!(c.next_after(s(10)), Some(s(20)));
    }

    #[test]
    fn sequential_wants_one_after_another() {
        let mut c = Schedule::new(Interval::Every(s(9)), Order::Sequential, 3);
        begin(&mut c, s(0));
        assert_eq!(c.due(s(3), false), [0].map(Rank));
        c.asked(Rank(0), s(3));
        assert!(c.due(s(20), true).is_empty());
        assert_eq!(c.due(s(6), false), [1].map(Rank));
        c.asked(Rank(1), s(30));
        // Late, but not twice in a row to make up for it.
        assert_eq!(c.due(s(30), false), [2].map(Rank));
    }

    #[test]
    fn self_timed_counts_from_the_end() {
        let mut c = Schedule::new(Interval::Every(s(10)), Order::SelfTimed, 2);
        begin(&mut c, s(0));
        assert_eq!(c.due(s(5), true), [0].map(Rank));
        c.asked(Rank(0), s(5));
        c.ended(Rank(0), s(8), Some(s(3)));
        assert!(!c.due(s(17), true).contains(&Rank(0)));
        assert!(c.due(s(18), true).contains(&Rank(0)));
    }

    #[test]
    fn off_takes_only_what_is_asked_for() {
        let mut c = Schedule::new(Interval::Off, Order::Batch, 2);
        begin(&mut c, s(0));
        assert_eq!(c.next_after(s(0)), None);
        c.want(Rank(1), s(4));
        assert_eq!(c.due(s(4), false), [1].map(Rank));
        c.asked(Rank(1), s(4));
        assert!(c.due(s(1000), false).is_empty());
    }

    #[test]
    fn auto_follows_the_measured_cost() {
        let auto = Interval::Auto { mtbf: s(7200), log_share: 1 << 20 };
        let mut c = Schedule::new(auto, Order::Batch, 1);
        assert_eq!(c.interval(), Some(FIRST_AUTO));
        c.ended(Rank(0), s(0), Some(s(1)));
        assert_eq!(c.interval(), Some(daly(s(1), s(7200))));
    }

    #[test]
    fn auto_takes_an_image_when_the_log_has_outgrown_what_it_costs() {
        const MIB: u64 = 1 << 20;
        let auto = Interval::Auto { mtbf: s(7200), log_share: 40 * MIB };
        let mut c = Schedule::new(auto, Order::Sequential, 3);
        begin(&mut c, s(0));
        c.logged(Rank(1), 10 * MIB, 0);
        assert!(c.due(s(0), false).is_empty());
        c.logged(Rank(1), 11 * MIB, 0);
        c.logged(Rank(2), 11 * MIB, 0);
        assert_eq!(c.due(s(0), true), [1, 2].map(Rank), "whatever the order");
        c.asked(Rank(1), s(0));
        c.logged(Rank(1), 30 * MIB, 0);
        assert_eq!(c.due(s(0), true), [2].map(Rank), "one is under way");
        c.ended(Rank(1), s(0), Some(Duration::from_millis(1)));
        c.asked(Rank(2), s(0));
        // It counts from when the image was asked for.
        c.logged(Rank(1), 20 * MIB, 0);
        assert!(c.due(s(0), true).is_empty());
        c.logged(Rank(1), 22 * MIB, 0);
        assert_eq!(c.due(s(0), true), [1].map(Rank));
        // A large image, or a slow one, waits for a larger log.
        c.asked(Rank(1), s(0));
        c.ended(Rank(1), s(0), Some(s(1)));
        c.logged(Rank(1), 40 * MIB, 100 * MIB);
        c.logged(Rank(1), 200 * MIB, 100 * MIB);
        assert!(c.due(s(0), true).is_empty(), "the cost is a quarter of a second by now");
        c.logged(Rank(1), 270 * MIB, 100 * MIB);
        assert_eq!(c.due(s(0), true), [1].map(Rank));
    }

    #[test]
    fn a_rank_that_cannot_be_captured_is_not_asked_at_every_message() {
        let auto = Interval::Auto { mtbf: s(7200), log_share: 4000 };
        let mut c = Schedule::new(auto, Order::Batch, 1);
        begin(&mut c, s(0));
        c.logged(Rank(0), 1001, 0);
        c.asked(Rank(0), s(0));
        c.logged(Rank(0), 5000, 0);
        c.ended(Rank(0), s(0), None);
        c.logged(Rank(0), 6000, 0);
        assert!(c.due(s(0), false).is_empty());
        c.logged(Rank(0), 6001, 0);
        assert_eq!(c.due(s(0), false), [0].map(Rank));
    }

    #[test]
    fn scarce_space_asks_for_images_but_where_there_are_none() {
        let mut c = Schedule::new(Interval::Every(s(10)), Order::Batch, 2);
        begin(&mut c, s(0));
        c.log_scarce(Rank(1));
        assert_eq!(c.due(s(0), false), [1].map(Rank));
        c.asked(Rank(1), s(0));
        c.log_scarce(Rank(1));
        assert!(c.due(s(0), false).is_empty());
        c.ended(Rank(1), s(0), Some(s(0)));
        c.log_scarce(Rank(1));
        assert_eq!(c.due(s(0), false), [1].map(Rank));
        let mut none = Schedule::new(Interval::Off, Order::Batch, 1);
        none.log_scarce(Rank(0));
        assert!(none.due(s(0), false).is_empty());
    }
}
