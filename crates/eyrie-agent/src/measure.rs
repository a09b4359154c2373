//! How much of its processors the ranks of this node and other processes use between two moments.
//! It must never slow a rank: it reads what the kernel and the rank's page have counted anyway.

use crate::rank::process::Process;
use eyrie_proc::host::{self, Processor};
use eyrie_proc::{Status, TICK_NS};
use eyrie_wire::control::{FromAgent, NodeUsage, RankUsage};
use eyrie_wire::RankInstance;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The measurements that are under way.
#[derive(Default)]
pub struct Measurements(Vec<Measuring>);

struct Measuring {
    n: u64,
    begun: Instant,
    over: Duration,
    first: Counts,
}

impl Measurements {
    /// Begins a measurement of these processes.
    pub fn begin<'a>(
        &mut self,
        n: u64,
        over: Duration,
        processes: impl Iterator<Item = &'a Process>,
    ) {
        let begun = Instant::now();
        self.0.push(Measuring { n, begun, over, first: counts(processes) });
    }

    /// When each of them ends.
    pub fn until(&self) -> impl Iterator<Item = Instant> + '_ {
        self.0.iter().map(Measuring::until)
    }

    /// Ends those whose time is over; returns their results.
    pub fn ended<'a>(
        &mut self,
        processes: impl Iterator<Item = &'a Process> + Clone,
    ) -> Vec<FromAgent> {
        let now = Instant::now();
        let all = std::mem::take(&mut self.0).into_iter();
        let (over, rest): (Vec<_>, Vec<_>) = all.partition(|measuring| now >= measuring.until());
        self.0 = rest;
        let result = |Measuring { n, begun, first, .. }| {
            let used = first.until(counts(processes.clone()), begun.elapsed());
            FromAgent::Measured { n, used }
        };
        over.into_iter().map(result).collect()
    }
}

/// What has been used up to a moment.
struct Counts {
    processors: Vec<u32>,
    busy: Duration,
    ranks: BTreeMap<RankInstance, Count>,
}

/// Processor time of a rank, and the part of it that it spent polling.
struct Count {
    used: Duration,
    polled: Duration,
    memory: u64,
}

impl Measuring {
    fn until(&self) -> Instant {
        self.begun + self.over
    }
}

/// The counts of these processes now.
fn counts<'a>(processes: impl Iterator<Item = &'a Process>) -> Counts {
    let processors = processors();
    let busy = busy(&host::processors(), &processors);
    let ranks = processes.filter(|p| p.ending.is_none()).filter_map(|p| {
        let pid = p.mpi_pid?;
        let used = eyrie_proc::read_stat(eyrie_proc::directory(pid))?.processor_time();
        let memory = Status::read(eyrie_proc::living(pid)).bytes("RssAnon")?;
        Some((p.instance, Count { used, polled: p.page.polled(), memory }))
    });
    Counts { busy, ranks: ranks.collect(), processors }
}

impl Counts {
    /// What was used from these counts to `end`. Ranks that were not here all the time are left
    /// out.
    fn until(&self, end: Counts, over: Duration) -> NodeUsage {
        let rank = |(instance, end): (RankInstance, Count)| {
            let begin = self.ranks.get(&instance)?;
            Some(RankUsage {
                instance,
                used: end.used.saturating_sub(begin.used),
                polled: end.polled.saturating_sub(begin.polled),
                memory: end.memory,
            })
        };
        NodeUsage {
            over,
            kernel: host::boot_id(),
            limit: limit(),
            busy: end.busy.saturating_sub(self.busy),
            ranks: end.ranks.into_iter().filter_map(rank).collect(),
            processors: end.processors,
        }
    }
}

/// The processors that this process and its children may run on.
fn processors() -> Vec<u32> {
    let set = rustix::thread::sched_getaffinity(None).unwrap_or_default();
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|n| set.is_set(*n)).map(|n| n as u32).collect()
}

/// How many processors this process may use at a time: its control group may have a limit, too.
fn limit() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u32)
}

/// For how long these processors were busy. It includes what the host of a virtual machine did
/// meanwhile.
fn busy(all: &[Processor], processors: &[u32]) -> Duration {
    let ours = |of: &&Processor| of.number.is_some_and(|number| processors.contains(&number));
    let ticks: u64 = all.iter().filter(ours).map(|of| of.busy() + of.stolen()).sum();
    Duration::from_nanos(ticks.saturating_mul(TICK_NS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::{Incarnation, Rank};

    #[test]
    fn only_these_processors_and_what_they_did_are_counted() {
        let of = |number, ticks| Processor { number, ticks };
        let all = [
            of(None, [9; 8]),
            of(Some(0), [1, 2, 3, 100, 100, 4, 5, 6]),
            of(Some(1), [10, 0, 0, 7, 0, 0, 0, 0]),
        ];
        assert_eq!(busy(&all, &[0]), Duration::from_millis(210));
        assert_eq!(busy(&all, &[0, 1, 7]), Duration::from_millis(310));
    }

    #[test]
    fn this_process_uses_its_processors() {
        let own = || eyrie_proc::read_stat(eyrie_proc::OWN).unwrap().processor_time();
        let all = || busy(&host::processors(), &processors());
        let before = own();
        let busy_before = all();
        let begun = Instant::now();
        while own() < before + Duration::from_millis(50) {
            assert!(begun.elapsed() < Duration::from_secs(60), "no processor time in a minute");
        }
        assert!(all() > busy_before && !processors().is_empty() && limit() > 0);
    }

    #[test]
    fn a_rank_that_came_meanwhile_is_not_measured() {
        let instance = |rank| RankInstance { rank, incarnation: Incarnation(1) };
        let count = |ms| Count {
            used: Duration::from_millis(ms),
            polled: Duration::from_millis(ms / 2),
            memory: 7,
        };
        let counts = |ranks: Vec<(RankInstance, Count)>| Counts {
            processors: vec![0],
            busy: Duration::ZERO,
            ranks: ranks.into_iter().collect(),
        };
        let first = counts(vec![(instance(Rank(0)), count(10)), (instance(Rank(2)), count(10))]);
        let last = counts(vec![(instance(Rank(0)), count(40)), (instance(Rank(1)), count(10))]);
        let usage = first.until(last, Duration::from_secs(1));
        let [RankUsage { instance, used, polled, memory }] = usage.ranks[..] else { panic!() };
        assert_eq!((instance.rank, memory), (Rank(0), 7));
        assert_eq!((used, polled), (Duration::from_millis(30), Duration::from_millis(15)));
    }
}
