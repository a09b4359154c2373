//! Injected failures: which strikes when. They go through the same detection as real ones.

use super::{Command, Machine, State};
use crate::inject::{Injection, Strike, When};
use crate::record::Record;
use eyrie_wire::Rank;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::time::Duration;

/// Time between two random kills: evenly between these, in milliseconds.
const RANDOM_GAP_MS: std::ops::Range<u64> = 100..1000;

/// Injections that wait for their moment.
#[derive(Debug)]
pub struct Strikes {
    /// Given on the command line: their times count from the start of the ranks.
    given: Vec<Injection>,
    timed: Vec<(Duration, What)>,
    /// For the middle of a checkpoint or a recovery.
    moments: Vec<(Strike, When)>,
}

#[derive(Clone, Debug)]
enum What {
    Strike(Strike),
    /// One of `left` random kills.
    Random {
        left: u32,
        random: Box<SmallRng>,
    },
}

impl Strikes {
    pub fn new(given: &[Injection]) -> Strikes {
        Strikes { given: given.to_vec(), timed: Vec::new(), moments: Vec::new() }
    }

    pub fn begin(&mut self, now: Duration) {
        for injection in std::mem::take(&mut self.given) {
            self.add(&injection, now);
        }
    }

    pub fn add(&mut self, injection: &Injection, now: Duration) {
        match *injection {
            Injection::At { strike, when: When::After(delay) } => {
                self.timed.push((now + delay, What::Strike(strike)))
            }
            Injection::At { strike, when } => self.moments.push((strike, when)),
            Injection::RandomRanks { count, seed } => {
                let random = Box::new(SmallRng::seed_from_u64(seed));
                self.add_random(count, random, now);
            }
        }
    }

    /// Takes those that have not struck, as users write them.
    fn take_left(&mut self) -> Vec<String> {
        let mut left: Vec<String> = self.given.drain(..).map(|i| i.to_string()).collect();
        left.extend(self.timed.drain(..).map(|(_, what)| match what {
            What::Strike(strike) => strike.to_string(),
            What::Random { left, .. } => format!("random-ranks ({left} left)"),
        }));
        let moment = |(strike, when): (Strike, When)| format!("{strike}@{when}");
        left.extend(self.moments.drain(..).map(moment));
        left
    }

    fn add_random(&mut self, left: u32, mut random: Box<SmallRng>, now: Duration) {
        if left > 0 {
            let at = now + Duration::from_millis(random.gen_range(RANDOM_GAP_MS));
            self.timed.push((at, What::Random { left, random }));
        }
    }

    pub fn next(&self) -> Option<Duration> {
        self.timed.iter().map(|(at, _)| *at).min()
    }

    fn take_due(&mut self, now: Duration) -> Vec<What> {
        let (due, later) = std::mem::take(&mut self.timed).into_iter().partition(|t| t.0 <= now);
        self.timed = later;
        let mut due: Vec<(Duration, What)> = due;
        due.sort_by_key(|t| t.0);
        due.into_iter().map(|t| t.1).collect()
    }
}

impl Machine {
    /// The job is over: what has not struck never will.
    pub(super) fn miss_all_strikes(&mut self) {
        for strike in self.strikes.take_left() {
            let cause = "the job ended before".into();
            self.record(Record::InjectionMissed { strike, cause });
        }
    }

    pub(super) fn strike_due(&mut self) {
        for what in self.strikes.take_due(self.now) {
            match what {
                What::Strike(strike) => self.strike(strike),
                What::Random { left, mut random } => {
                    let alive: Vec<Rank> =
                        (self.ranks.iter()).filter(|r| r.is_on_a_node()).map(|r| r.rank).collect();
                    if !alive.is_empty() {
                        self.strike(Strike::KillRank(alive[random.gen_range(0..alive.len())]));
                    }
                    self.strikes.add_random(left - 1, random, self.now);
                }
            }
        }
    }

    /// A checkpoint of `rank` is in its middle.
    pub(super) fn strike_checkpoint(&mut self, rank: Rank) {
        let node = self.ranks[rank as usize].node;
        self.strike_moments(|strike, when| {
            when == When::Checkpoint
                && match strike {
                    Strike::KillRank(r) | Strike::DropConnection(r) => r == rank,
                    Strike::KillNode(n) | Strike::FreezeNode(n) => n == node,
                }
        });
    }

    /// A recovery of `rank` has begun (`restored`: its process is back). What strikes the recovering rank itself
    /// waits until there is a process to strike.
    pub(super) fn strike_recovery(&mut self, rank: Rank, restored: bool) {
        let node = self.ranks[rank as usize].node;
        self.strike_moments(|strike, when| {
            let itself = match strike {
                Strike::KillRank(r) | Strike::DropConnection(r) => r == rank,
                Strike::KillNode(n) | Strike::FreezeNode(n) => n == node,
            };
            when == When::Recovery && itself == restored
        });
    }

    fn strike_moments(&mut self, now: impl Fn(Strike, When) -> bool) {
        let moments = std::mem::take(&mut self.strikes.moments);
        let (hit, later): (Vec<_>, Vec<_>) = moments.into_iter().partition(|m| now(m.0, m.1));
        self.strikes.moments = later;
        for (strike, _) in hit {
            self.strike(strike);
        }
    }

    fn strike(&mut self, strike: Strike) {
        let now = self.now;
        let up = |node: u32| {
            (self.nodes.get(node as usize)).is_some_and(|n| n.standing == super::Standing::Up)
        };
        let missed = match strike {
            Strike::KillRank(r) | Strike::DropConnection(r) => match self.ranks.get(r as usize) {
                Some(r) if r.is_on_a_node() => None,
                Some(r) if r.state == State::Finished => Some("it has finished"),
                _ => Some("it is not running"),
            },
            Strike::KillNode(n) | Strike::FreezeNode(n) => (!up(n)).then_some("it is not up"),
        };
        if let Some(cause) = missed {
            let strike = strike.to_string();
            return self.record(Record::InjectionMissed { strike, cause: cause.into() });
        }
        let hit = |r: &&mut super::RankState| match strike {
            Strike::KillRank(rank) => r.rank == rank,
            Strike::KillNode(node) => r.node == node && r.is_on_a_node(),
            Strike::FreezeNode(_) | Strike::DropConnection(_) => false,
        };
        for r in self.ranks.iter_mut().filter(hit) {
            r.struck = Some(now);
        }
        self.record(Record::Injected { strike: strike.to_string() });
        self.commands.push(Command::Strike(strike));
    }
}
