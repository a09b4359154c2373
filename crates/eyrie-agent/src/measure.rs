//! How much of its processors the ranks of this node and other processes use between two moments.
//! It must never slow a rank: it reads what the kernel and the rank's page have counted anyway.

use crate::family::directory_of;
use crate::process::Process;
use eyrie_wire::control::{NodeUsage, RankUsage};
use eyrie_wire::RankInstance;
use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::time::{Duration, Instant};

/// A measurement under way.
pub struct Measuring {
    pub n: u64,
    pub begun: Instant,
    pub over: Duration,
    pub first: Counts,
}

/// What has been used up to a moment.
pub struct Counts {
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
    pub fn until(&self) -> Instant {
        self.begun + self.over
    }
}

/// The counts of these processes now.
pub fn counts<'a>(processes: impl Iterator<Item = &'a Process>) -> Counts {
    let processors = processors();
    let busy = busy(&read_to_string("/proc/stat").unwrap_or_default(), &processors);
    let ranks = processes.filter(|p| p.ending.is_none()).filter_map(|p| {
        let pid = p.mpi_pid?;
        let stat = read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let status = read_to_string(directory_of(pid).join("status")).ok()?;
        let (used, memory) = (used(&stat)?, memory(&status)?);
        Some((p.instance, Count { used, polled: p.page.polled(), memory }))
    });
    Counts { busy, ranks: ranks.collect(), processors }
}

impl Counts {
    /// What was used from these counts to `end`. Ranks that were not here all the time are left
    /// out.
    pub fn until(&self, end: Counts, over: Duration) -> NodeUsage {
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
            kernel: read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
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

fn ticks(count: u64) -> Duration {
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Duration::from_nanos(count.saturating_mul(1_000_000_000 / per_second))
}

/// For how long these processors were busy, by /proc/stat. It includes what the host of a virtual
/// machine did meanwhile (steal).
fn busy(stat: &str, processors: &[u32]) -> Duration {
    let of = |line: &str| {
        let mut words = line.strip_prefix("cpu")?.split_ascii_whitespace();
        let number: u32 = words.next()?.parse().ok()?;
        let counts: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        // user, nice, system, (idle, iowait,) irq, softirq, steal.
        let busy: u64 = [0, 1, 2, 5, 6, 7].iter().filter_map(|at| counts.get(*at)).sum();
        processors.contains(&number).then_some(busy)
    };
    ticks(stat.lines().filter_map(of).sum())
}

/// Processor time of all threads of a process, by its /proc/PID/stat.
pub fn used(stat: &str) -> Option<Duration> {
    // The name of the program, in parentheses, may be anything.
    let words: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |at: usize| words.get(at)?.parse::<u64>().ok();
    Some(ticks(number(11)? + number(12)?))
}

/// Bytes of anonymous memory of a process, by its /proc/PID/status.
fn memory(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.split_ascii_whitespace().next()?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_has_counted_is_read() {
        let stat = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 100 100 4 5 6 0 0\n\
                    cpu1 10 0 0 7 0 0 0 0 0 0\nintr 1\n";
        assert_eq!(busy(stat, &[0]), ticks(21));
        assert_eq!(busy(stat, &[0, 1, 7]), ticks(31));
        let stat = "7 (a) b) R 1 7 7 0 -1 4194304 1 0 0 0 250 50 0 0 20 0 1 0 5 6 7";
        assert_eq!(used(stat), Some(ticks(300)));
        assert_eq!(memory("VmRSS:\t 10 kB\nRssAnon:\t       4 kB\n"), Some(4096));
        assert_eq!((used("7 (a"), memory("")), (None, None));
    }

    #[test]
    fn this_process_uses_its_processors() {
        let own = || used(&read_to_string("/proc/self/stat").unwrap()).unwrap();
        let all = || busy(&read_to_string("/proc/stat").unwrap(), &processors());
        let (before, busy_before) = (own(), all());
        let begun = Instant::now();
        while own() < before + Duration::from_millis(50) {
            assert!(begun.elapsed() < Duration::from_secs(60), "no processor time in a minute");
        }
        assert!(all() > busy_before && !processors().is_empty() && limit() > 0);
    }

    #[test]
    fn a_rank_that_came_meanwhile_is_not_measured() {
        let instance = |rank| RankInstance { rank, incarnation: 1 };
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
        let first = counts(vec![(instance(0), count(10)), (instance(2), count(10))]);
        let last = counts(vec![(instance(0), count(40)), (instance(1), count(10))]);
        let usage = first.until(last, Duration::from_secs(1));
        let [RankUsage { instance, used, polled, memory }] = usage.ranks[..] else { panic!() };
        assert_eq!((instance.rank, memory), (0, 7));
        assert_eq!((used, polled), (Duration::from_millis(30), Duration::from_millis(15)));
    }
}
