//! The sampler: one thread that sleeps until the moment, reads, adds the sample to the ring and
//! sleeps again. It must never allocate in a tick, share a lock while it reads, or stop because of
//! anything that it reads.

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
    /// `None`: the best one that works.
    pub reader: Option<Kind>,
    pub policy: Policy,
    /// Share of one core.
    pub budget: Option<f64>,
    pub sync: Mode,
    /// The conductor, for `once` and `always`.
    pub with: Option<SocketAddr>,
    pub key: Key,
    /// Processes for which a sample has room; `None`: twice as many as there are now, and at least
    /// 4096.
    pub capacity: Option<usize>,
    pub ring_bytes: usize,
    /// Whether every part of the node is read at every sample, not in turn.
    pub node_all: bool,
    /// Whether the thread gets precedence over ordinary ones, where permitted.
    pub real_time: bool,
    /// Whether no memory of the process is to be paged out, where permitted.
    pub lock_memory: bool,
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
            lock_memory: true,
            pin: None,
            nice: 0,
            root: "/".into(),
        }
    }
}

/// What was found out at the start. It is reported before the first sample.
#[derive(Clone, Debug, Serialize)]
pub struct Started {
    pub reader: Kind,
    /// Better readers, and why they were not chosen.
    pub declined: Vec<Declined>,
    pub accuracy: Accuracy,
    /// Median CPU time of one sample, as measured at the start, in nanoseconds.
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
    /// CPU time of the thread when it woke up last.
    woke_cpu_ns: u64,
    whole_ns: u64,
    started: Started,
    /// Moments in a row for which the conductor's tick was missing.
    alone: u64,
}

/// Samples taken at the start to measure the cost.
const TRIALS: usize = 9;
/// The interval is at least this many times the cost of a sample.
const PART: u64 = 2;

impl Sampler {
    /// Finds a reader, measures its cost, and agrees with the other nodes.
    ///
    /// # Errors
    /// One line for the user: the reader is not available, the interval is too short, the budget is
    /// impossible, or the conductor does not answer.
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
            // Replaced below: agreeing takes time, and an impossible wish should be refused first.
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

    /// Takes some samples to measure their cost, and refuses an interval or budget that is too
    /// small.
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
                "an interval of {} is below what this node can do: a sample with reader {} costs \
                 {}, the smallest interval is {}us",
                nanoseconds(self.interval_ns as f64),
                self.started.reader.name(),
                nanoseconds(cost as f64),
                smallest / 1000
            ));
        }
        let lowest = smallest_share(cost, self.interval_ns);
        match self.config.budget {
            Some(budget) if budget < lowest => Err(format!(
                "a budget of {}% is impossible: a sample costs {} here, so the smallest budget at \
                 an interval of {} is {}%",
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

    /// Prepares the calling thread, which then samples.
    ///
    /// # Errors
    /// When the processor does not exist to which it is to be bound.
    pub fn settle(&mut self) -> Result<Steadiness, String> {
        if let Some(cpu) = self.config.pin {
            clock::pin(cpu).map_err(|e| format!("cannot run on processor {cpu}: {e}"))?;
        }
        if self.config.nice != 0 {
            // On Linux this changes the calling thread only.
            rustix::process::nice(self.config.nice)
                .map_err(|e| format!("cannot be nice {}: {e}", self.config.nice))?;
        }
        let locked = self.config.lock_memory && clock::lock_memory();
        let real_time = clock::steady(self.config.real_time && self.config.nice == 0);
        self.woke_cpu_ns = thread_cpu_ns();
        Ok(Steadiness { locked, real_time })
    }

    /// Samples by the ticks of a conductor from the next sample on. If it does not answer, the
    /// moments stay as they were.
    ///
    /// # Errors
    /// When it does not answer, or keeps another interval.
    pub fn follow(&mut self, with: SocketAddr) -> Result<(), String> {
        self.pace = Pace::new(Mode::Always, self.interval_ns, Some(with), &self.config.key)?;
        self.started.sync = Mode::Always;
        self.alone = 0;
        Ok(())
    }

    /// Whether a conductor's tick said when to take the last sample.
    pub fn is_in_step(&self) -> bool {
        self.started.sync == Mode::Always && self.alone == 0
    }

    /// Samples until `stop` is set, which is checked after each sample.
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

    /// Samples now. The processes are in `self.processes` afterwards.
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

    /// Reads processes, then the node; returns the CPU time of both.
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

    /// Reads everything once, outside of any rhythm, to measure it. Returns the CPU time for the
    /// processes and for the node, in nanoseconds.
    pub fn read_once(&mut self) -> (u64, u64) {
        self.number += 1;
        let (_, processes, node) = self.read(Detail::Full);
        (processes, node)
    }

    /// The processes of the last reading.
    pub fn processes(&self) -> &[Process] {
        &self.processes
    }
}

/// A share in percent, with its significant digits.
fn percent(share: f64) -> String {
    let percent = share * 100.0;
    let digits = (3.0 - percent.abs().max(1e-9).log10().floor()).clamp(1.0, 9.0) as usize;
    let text = format!("{percent:.digits$}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

fn count_processes() -> usize {
    eyrie_proc::all().count()
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
    fn an_interval_that_is_too_short_is_refused_with_one_that_works() {
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
    fn a_budget_that_is_too_small_is_refused_with_one_that_works() {
        let why = Sampler::prepare(Config { budget: Some(1e-9), ..config() }).err().unwrap();
        assert!(why.contains("impossible"), "{why}");
        let smallest = eyrie_units::share(why.rsplit(" is ").next().unwrap()).unwrap();
        assert!(Sampler::prepare(Config { budget: Some(smallest * 20.0), ..config() }).is_ok());
    }

    #[test]
    fn a_full_table_is_counted_and_sampling_goes_on() {
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
    fn shares_are_written_with_their_significant_digits() {
        assert_eq!(
            ["0.0005", "0.1", "1", "0.0000001"].map(|s| percent(s.parse().unwrap())),
            ["0.05", "10", "100", "0.00001"]
        );
    }
}
