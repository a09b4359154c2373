//! The sampler: one thread that sleeps until the moment, reads, hands the sample on and sleeps
//! again. Must never allocate in a tick, share a lock while it reads, or stop for anything that it
//! reads.

use crate::accuracy::{self, Accuracy};
use crate::ages::REFRESH;
use crate::budget::{smallest_share, Budget};
use crate::clock::{self, process_cpu_ns, thread_cpu_ns, Clock, Steadiness};
use crate::node;
use crate::policy::Policy;
use crate::reader::{choose, Declined, Kind, Reader, Tick};
use crate::ring::Ring;
use crate::sample::{Cost, Detail, Head, Process};
use crate::sync::{Key, Mode, Moment, Pace};
use eyrie_units::nanoseconds;
use serde::Serialize;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[derive(Clone)]
pub struct Config {
    pub interval: Duration,
    /// `None`: the best that works.
    pub reader: Option<Kind>,
    pub policy: Policy,
    /// Share of one core.
    pub budget: Option<f64>,
    pub sync: Mode,
    /// The conductor, for `once` and `always`.
    pub with: Option<SocketAddr>,
    pub key: Key,
    /// Processes that a sample has room for; `None`: twice as many as there are now, and at least
    /// 4096.
    pub capacity: Option<usize>,
    pub ring_bytes: usize,
    /// Every part of the node at every sample, not in turn.
    pub node_all: bool,
    /// Ahead of ordinary threads, where permitted.
    pub real_time: bool,
    pub pin: Option<usize>,
    pub nice: i32,
    /// `/`, or a tree that looks like it, for the node's files (not the processes).
    pub root: PathBuf,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            interval: Duration::from_millis(500),
            reader: None,
            policy: Policy::Off,
            budget: None,
            sync: Mode::Clock,
            with: None,
            key: Key::default(),
            capacity: None,
            ring_bytes: 16 << 20,
            node_all: false,
            real_time: true,
            pin: None,
            nice: 0,
            root: "/".into(),
        }
    }
}

/// What was found out at the start; reported before the first sample.
#[derive(Clone, Debug, Serialize)]
pub struct Started {
    pub reader: Kind,
    /// Better readers, and why they were not taken.
    pub declined: Vec<Declined>,
    pub accuracy: Accuracy,
    /// CPU time of one sample as measured at the start, nanoseconds: median.
    pub cost_ns: u64,
    pub processes: usize,
    pub capacity: usize,
    pub interval_ns: u64,
    pub sync: Mode,
    pub clock: Clock,
    pub policy: Policy,
    pub budget: Option<f64>,
}

/// A sampler that is ready to run.
pub struct Sampler {
    config: Config,
    interval_ns: u64,
    reader: Box<dyn Reader>,
    node: node::Reader,
    pace: Pace,
    budget: Option<Budget>,
    processes: Vec<Process>,
    number: u64,
    /// Thread CPU time at the last waking.
    woke_cpu_ns: u64,
    whole_ns: u64,
    started: Started,
    /// Where another sampler's output goes on: samples are numbered from the first.
    alone: u64,
}

/// Samples that measure the cost at the start.
const TRIALS: usize = 9;
/// A sample may take at most this part of the interval.
const PART: u64 = 2;

impl Sampler {
    /// Finds a reader, measures what it costs, and agrees with the other nodes.
    ///
    /// # Errors
    /// One line for the user: reader not available, interval below what can be, budget impossible,
    /// conductor silent.
    pub fn prepare(config: Config) -> Result<Sampler, String> {
        let capacity = config.capacity.unwrap_or_else(|| (2 * count_processes()).max(4096));
        let interval_ns = clock::ns(config.interval);
        if interval_ns == 0 {
            return Err("the interval must be above 0".into());
        }
        let (reader, declined) = choose(config.reader, capacity)?;
        let node = node::Reader::new(&config.root, config.node_all);
        let mut sampler = Sampler {
            interval_ns,
            node,
            // Replaced below: agreeing takes time, and what is impossible should be said first.
            pace: Pace::new(Mode::Off, interval_ns, None, &config.key)?,
            budget: config.budget.map(Budget::new),
            processes: Vec::with_capacity(capacity),
            number: 0,
            woke_cpu_ns: 0,
            whole_ns: 0,
            alone: 0,
            started: Started {
                reader: reader.kind(),
                declined,
                accuracy: accuracy::of(reader.kind()),
                cost_ns: 0,
                processes: 0,
                capacity,
                interval_ns,
                sync: config.sync,
                clock: Clock::wall(),
                policy: config.policy,
                budget: config.budget,
            },
            reader,
            config,
        };
        sampler.measure()?;
        sampler.pace =
            Pace::new(sampler.config.sync, interval_ns, sampler.config.with, &sampler.config.key)?;
        Ok(sampler)
    }

    /// Takes some samples for nothing but their cost, and refuses what cannot be kept.
    fn measure(&mut self) -> Result<(), String> {
        let mut costs: Vec<u64> = (0..TRIALS)
            .map(|_| {
                let before = thread_cpu_ns();
                self.read(Detail::Full);
                thread_cpu_ns() - before
            })
            .collect();
        costs.sort_unstable();
        let cost = costs[TRIALS / 2];
        self.started.cost_ns = cost;
        self.started.processes = self.processes.len();
        let smallest = (PART * cost).next_multiple_of(10_000);
        if self.interval_ns < smallest {
            return Err(format!(
                "an interval of {} is below what this node can do: a sample with reader {} costs {}, the smallest interval is {}us",
                nanoseconds(self.interval_ns as f64),
                self.started.reader.name(),
                nanoseconds(cost as f64),
                smallest / 1000
            ));
        }
        let lowest = smallest_share(cost, self.interval_ns);
        match self.config.budget {
            Some(budget) if budget < lowest => Err(format!(
                "a budget of {}% is impossible: a sample costs {} here, so the smallest budget at an interval of {} is {}%",
                percent(budget),
                nanoseconds(cost as f64),
                nanoseconds(self.interval_ns as f64),
                percent(lowest * 1.01)
            )),
            _ => Ok(()),
        }
    }

    pub fn started(&self) -> &Started {
        &self.started
    }

    /// A ring with room for this sampler's samples.
    pub fn ring(&self) -> Ring {
        Ring::new(self.config.ring_bytes, self.started.capacity)
    }

    /// Readies the calling thread, which is then the one to sample.
    ///
    /// # Errors
    /// When it was to be bound to a processor that does not exist.
    pub fn settle(&mut self) -> Result<Steadiness, String> {
        if let Some(cpu) = self.config.pin {
            clock::pin(cpu).map_err(|e| format!("cannot run on processor {cpu}: {e}"))?;
        }
        if self.config.nice != 0 {
            // Of this thread only, on Linux.
            rustix::process::nice(self.config.nice)
                .map_err(|e| format!("cannot be nice {}: {e}", self.config.nice))?;
        }
        let steadiness = clock::steady(self.config.real_time && self.config.nice == 0);
        self.woke_cpu_ns = thread_cpu_ns();
        Ok(steadiness)
    }

    /// Samples until `stop`, which is looked at after each sample.
    pub fn run(&mut self, ring: &Ring, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            self.tick(ring);
        }
    }

    /// Waits for the next moment and samples.
    pub fn tick(&mut self, ring: &Ring) {
        let stretch = self.budget.as_ref().map_or(1, Budget::stretch);
        let moment = self.pace.wait(self.interval_ns, stretch);
        let head = self.sample(moment);
        ring.push(&head, &self.processes);
    }

    /// Samples now. The processes are in `self.processes`.
    fn sample(&mut self, moment: Moment) -> Head {
        let woke = thread_cpu_ns();
        self.whole_ns = woke - self.woke_cpu_ns;
        self.woke_cpu_ns = woke;
        if let (Some(budget), true) = (&mut self.budget, self.number > 1) {
            budget.observe(self.whole_ns, self.interval_ns * u64::from(moment.step));
        }
        self.alone = if moment.alone { self.alone + 1 } else { 0 };
        let detail = self.budget.as_ref().map_or(Detail::Full, Budget::detail);
        let (tally, processes_ns, node_ns) = self.read(detail);
        let head = Head {
            number: self.number,
            intended_ns: moment.intended_ns,
            skew_ns: moment.skew_ns,
            step: moment.step,
            interval_ns: self.interval_ns,
            reader: self.started.reader,
            detail,
            cost: Cost {
                processes_ns,
                node_ns,
                whole_ns: self.whole_ns,
                monitor_ns: process_cpu_ns(),
            },
            beyond: tally.beyond,
            failed: tally.failed,
            node: *self.node.node(),
        };
        self.number += 1;
        head
    }

    /// Reads processes, then the node: CPU time of both.
    fn read(&mut self, detail: Detail) -> (crate::reader::Tally, u64, u64) {
        let policy = match (detail, self.config.policy) {
            (Detail::Full, policy) => policy,
            (_, Policy::Off) => Policy::Threshold { share: 0.1 },
            (_, policy) => policy,
        };
        let tick = Tick {
            number: self.number,
            now_ns: Clock::Monotonic.now_ns(),
            refresh: self.number % u64::from(REFRESH) == 0,
            policy,
        };
        let begin = thread_cpu_ns();
        self.processes.clear();
        let mut tally = self.reader.read(&tick, &mut self.processes);
        let between = thread_cpu_ns();
        tally.failed += self.node.read(detail);
        (tally, between - begin, thread_cpu_ns() - between)
    }

    /// Reads everything once, outside of any rhythm: for measuring. The CPU time of the processes
    /// and of the node, nanoseconds.
    pub fn read_once(&mut self) -> (u64, u64) {
        self.number += 1;
        let (_, processes, node) = self.read(Detail::Full);
        (processes, node)
    }

    /// What the last reading found.
    pub fn processes(&self) -> &[Process] {
        &self.processes
    }
}

/// A share in percent, with the digits that count.
fn percent(share: f64) -> String {
    let percent = share * 100.0;
    let digits = (3.0 - percent.abs().max(1e-9).log10().floor()).clamp(1.0, 9.0) as usize;
    let text = format!("{percent:.digits$}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

fn count_processes() -> usize {
    let names = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    names.filter(|e| e.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_digit())).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config {
            reader: Some(Kind::Proc),
            real_time: false,
            interval: Duration::from_secs(2),
            ..Config::default()
        }
    }

    #[test]
    fn an_interval_that_cannot_be_kept_is_refused_with_one_that_can() {
        let why = Sampler::prepare(Config { interval: Duration::from_micros(1), ..config() })
            .err()
            .unwrap();
        let smallest = why.rsplit("smallest interval is ").next().unwrap();
        let smallest = eyrie_units::duration(smallest).unwrap();
        assert!(smallest > Duration::from_micros(1), "{why}");
        let roomy = Config { interval: smallest * 20, ..config() };
        assert!(Sampler::prepare(roomy).is_ok());
    }

    #[test]
    fn a_budget_that_cannot_be_kept_is_refused_with_one_that_can() {
        let why = Sampler::prepare(Config { budget: Some(1e-9), ..config() }).err().unwrap();
        assert!(why.contains("impossible"), "{why}");
        let smallest = eyrie_units::share(why.rsplit(" is ").next().unwrap()).unwrap();
        assert!(Sampler::prepare(Config { budget: Some(smallest * 20.0), ..config() }).is_ok());
    }

    #[test]
    fn a_table_that_is_full_says_so_and_goes_on() {
        let mut sampler = Sampler::prepare(Config {
            capacity: Some(2),
            interval: Duration::from_millis(20),
            ..config()
        })
        .unwrap();
        let ring = sampler.ring();
        sampler.tick(&ring);
        sampler.tick(&ring);
        let frame = ring.latest().unwrap();
        assert_eq!((frame.head.number, frame.processes.len()), (1, 2));
        assert!(frame.head.beyond > 0);
    }

    #[test]
    fn shares_are_written_with_the_digits_that_count() {
        assert_eq!(
            ["0.0005", "0.1", "1", "0.0000001"].map(|s| percent(s.parse().unwrap())),
            ["0.05", "10", "100", "0.00001"]
        );
    }
}
