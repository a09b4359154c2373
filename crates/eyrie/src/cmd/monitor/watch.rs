//! Sampling itself: the sampler's thread, and around it what writes, judges, answers and shows.

use super::view::{Rates, Seen};
use super::{args, client, plain, table};
use crate::out::{self, Output};
use anyhow::Context;
use clap::Args;
use eyrie_monitor::adapt::Policy;
use eyrie_monitor::clock::Clock;
use eyrie_monitor::health::{Event, Health, Rules, State, World};
use eyrie_monitor::json;
use eyrie_monitor::metrics::Exporter;
use eyrie_monitor::names::{CommandLines, Directory};
use eyrie_monitor::reader::Kind;
use eyrie_monitor::ring::Frame;
use eyrie_monitor::sampler::{Config, Sampler, Started};
use eyrie_monitor::serve::{self, lock, Shared};
use eyrie_monitor::skew::Histogram;
use eyrie_monitor::sync::Mode;
use eyrie_units::{nanoseconds, positive_duration, share};
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[derive(Args)]
pub struct WatchArgs {
    /// Time from one sample to the next, with its unit
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = positive_duration)]
    interval: Duration,
    /// bpf-open, bpf-iter, clocks, taskstats or proc [default: the best that this node and user can have]
    #[arg(long, value_name = "READER")]
    reader: Option<Kind>,
    /// How nodes agree on the moment: clock (multiples of the interval on the wall clock), once, always, off
    #[arg(long, value_name = "HOW", default_value = "clock")]
    sync: Mode,
    /// Where `eyrie monitor conduct` answers, for --sync once and always
    #[arg(long, value_name = "HOST:PORT", value_parser = args::address)]
    with: Option<SocketAddr>,
    /// File with the secret shared with the conductor
    #[arg(long, value_name = "FILE", requires = "with")]
    secret: Option<PathBuf>,
    /// The most that sampling may use of one core; less is read, then seldom, to keep it
    #[arg(long, value_name = "SHARE%", value_parser = share)]
    budget: Option<f64>,
    /// Which processes may wait: off, busy=10% (those below), error=1% (those that a straight line foretells)
    #[arg(long, value_name = "POLICY", default_value = "off", value_parser = args::policy)]
    adapt: Policy,
    /// Write samples as JSON lines to FILE, or - for standard output
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Answer Prometheus at /metrics; a port alone is loopback only
    #[arg(long, value_name = "[HOST:]PORT", value_parser = args::address)]
    listen: Option<SocketAddr>,
    /// Series of commands that Prometheus is given at most; the rest are summed as "other"
    #[arg(long, value_name = "N", default_value_t = 64, hide_short_help = true)]
    series: usize,
    /// Show monitors that listen there, not this node
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',', conflicts_with_all = ["json", "listen", "reader", "rules"])]
    from: Vec<String>,
    /// Lines, also on a terminal
    #[arg(long)]
    plain: bool,
    /// End after this many samples
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    samples: Option<u64>,
    /// End after this time
    #[arg(long = "for", value_name = "TIME", value_parser = positive_duration)]
    length: Option<Duration>,
    /// Whose command lines are shown and written: none, own, all
    #[arg(long, value_name = "WHOSE", default_value = "own", value_parser = args::command_lines)]
    command_lines: CommandLines,
    /// Memory for recent samples, which `eyrie monitor dump` writes
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = args::ring, hide_short_help = true)]
    ring: usize,
    /// Processes that a sample has room for [default: twice as many as there are, at least 4096]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000), hide_short_help = true)]
    room: Option<u32>,
    /// Every part of the node at every sample, not in turn
    #[arg(long, hide_short_help = true)]
    whole_node: bool,
    /// Health rules, instead of those that `eyrie monitor rules` prints
    #[arg(long, value_name = "FILE.toml")]
    rules: Option<PathBuf>,
    /// Do not judge the node's health
    #[arg(long, conflicts_with_all = ["rules", "inject", "events"])]
    no_health: bool,
    /// Write health events as JSON lines to FILE [default: a line each on standard error]
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    /// Raise a health rule by hand: RULE or RULE=STATE (ok, suspect, failing)
    #[arg(long, value_name = "RULE[=STATE]", value_parser = args::injection)]
    inject: Vec<(String, State)>,
    /// Name of this node in samples [default: the host's]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Sample on this processor
    #[arg(long, value_name = "CPU", hide_short_help = true)]
    pin: Option<usize>,
    /// Sample behind ordinary processes, as nice(1) does, instead of ahead of them
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(i32).range(0..=19), hide_short_help = true)]
    nice: i32,
    /// A tree to read /proc and /sys of the node from, to try rules (processes are always this node's)
    #[arg(long, value_name = "DIR", default_value = "/", hide_short_help = true)]
    root: PathBuf,
}

pub fn run(args: WatchArgs) -> anyhow::Result<i32> {
    let live = std::io::stdout().is_terminal() && !args.plain && args.json.is_none();
    if !args.from.is_empty() {
        return others(&args.from, live, args.samples);
    }
    let rules = rules(&args)?;
    let output: Option<Box<dyn Write + Send>> = match &args.json {
        Some(path) if path.as_os_str() == "-" => Some(Box::new(Output)),
        Some(path) => Some(Box::new(create(path)?)),
        None => None,
    };
    let events = args.events.as_deref().map(create).transpose()?;
    let node = args.node.clone().unwrap_or_else(json::node_name);
    let judge = rules.map(|rules| Judge::new(rules, &node, &args, events, live)).transpose()?;
    // Said before anything is measured: a port that is taken will not become free by that.
    let tcp = args
        .listen
        .map(|address| {
            TcpListener::bind(address).with_context(|| {
                format!("cannot listen on {address}: choose another --listen, or end who has it")
            })
        })
        .transpose()?;
    let mut sampler = Sampler::prepare(config(&args)?).map_err(anyhow::Error::msg)?;
    let shared = Arc::new(Shared {
        node: node.clone(),
        ring: sampler.ring(),
        started: sampler.started().clone(),
        exporter: Mutex::new(Exporter::new(args.series)),
        names: Mutex::new(Directory::new(args.command_lines)),
        health: Mutex::new(Vec::new()),
    });
    let (unix, socket) = match own_socket() {
        Ok((listener, guard)) => (Some(listener), Some(guard)),
        Err(why) => {
            out::say(format_args!(
                "eyrie monitor: `eyrie monitor dump` will not find this one: {why:#}"
            ));
            (None, None)
        }
    };
    let scraped_at = tcp.as_ref().map(TcpListener::local_addr).transpose()?;
    let stop = Arc::new(AtomicBool::new(false));
    on_signal(stop.clone(), Some(shared.clone()))?;
    let serving = shared.clone();
    std::thread::Builder::new()
        .name("serve".into())
        .spawn(move || serve::run(serving, tcp, unix))?;
    if let Some(mut judge) = judge {
        let shared = shared.clone();
        std::thread::Builder::new().name("health".into()).spawn(move || judge.run(&shared))?;
    }
    let sampling = shared.clone();
    let (settled, settling) = std::sync::mpsc::channel();
    let never = AtomicBool::new(false);
    std::thread::Builder::new().name("sampler".into()).spawn(move || match sampler.settle() {
        Ok(steadiness) => {
            let _ = settled.send(Ok(steadiness));
            sampler.run(&sampling.ring, &never);
        }
        Err(why) => drop(settled.send(Err(why))),
    })?;
    let steadiness = settling.recv()?.map_err(anyhow::Error::msg)?;
    if !live {
        announce(&shared.started, &node);
    }
    if let (Some(address), false) = (scraped_at, live) {
        out::say(format_args!("eyrie monitor: metrics at http://{address}/metrics"));
    }
    if !live && !steadiness.locked {
        out::say(
            "eyrie monitor: memory is not locked (no CAP_IPC_LOCK, or ulimit -l): samples may wait \
             for the disk",
        );
    }
    let scribe = Scribe {
        shared: shared.clone(),
        output,
        scraped: scraped_at.is_some(),
        live,
        limit: limit(&args),
    };
    let written = scribe.run(&stop);
    drop(socket);
    written
}

/// Longer than any interval; what ends it early is a signal.
const LONG: Duration = Duration::from_secs(365 * 86_400);

struct Limit {
    samples: Option<u64>,
    until: Option<Instant>,
}

fn limit(args: &WatchArgs) -> Limit {
    Limit { samples: args.samples, until: args.length.map(|length| Instant::now() + length) }
}

fn config(args: &WatchArgs) -> anyhow::Result<Config> {
    Ok(Config {
        interval: args.interval,
        reader: args.reader,
        policy: args.adapt,
        budget: args.budget,
        sync: args.sync,
        with: args.with,
        key: args::key(args.secret.as_deref())?,
        capacity: args.room.map(|n| n as usize),
        ring_bytes: args.ring,
        node_all: args.whole_node,
        real_time: true,
        pin: args.pin,
        nice: args.nice,
        root: args.root.clone(),
    })
}

fn rules(args: &WatchArgs) -> anyhow::Result<Option<Rules>> {
    Ok(match (&args.rules, args.no_health) {
        (_, true) => None,
        (Some(path), _) => Some(Rules::load(path).map_err(anyhow::Error::msg)?),
        (None, _) => Some(Rules::default()),
    })
}

fn create(path: &Path) -> anyhow::Result<File> {
    File::create(path).with_context(|| format!("cannot write to {}", path.display()))
}

/// Says which reader was taken, and why no better one.
fn announce(started: &Started, node: &str) {
    for declined in &started.declined {
        out::say(format_args!(
            "eyrie monitor: reader {} is not available: {}",
            declined.reader.name(),
            declined.why
        ));
    }
    out::say(format_args!(
        "eyrie monitor: {node}: {} processes every {} with reader {}, {} of CPU time each, {:.4} % of a core",
        started.processes,
        nanoseconds(started.interval_ns as f64),
        started.reader.name(),
        nanoseconds(started.cost_ns as f64),
        started.cost_ns as f64 / started.interval_ns as f64 * 100.0
    ));
}

/// A socket that is removed with its guard.
struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The socket that `dump` asks; in a folder that only this user can enter.
fn own_socket() -> anyhow::Result<(UnixListener, Socket)> {
    let path = client::socket(&client::directory()?, std::process::id());
    let _ = std::fs::remove_file(&path);
    let listener =
        UnixListener::bind(&path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok((listener, Socket(path)))
}

/// Sets the flag, and ends all waiting for samples, at SIGINT, SIGTERM and SIGHUP. Nothing wakes to look for them.
fn on_signal(stop: Arc<AtomicBool>, shared: Option<Arc<Shared>>) -> anyhow::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for _ in signals.forever() {
            stop.store(true, Ordering::Relaxed);
            if let Some(shared) = &shared {
                shared.ring.end_waits();
            }
        }
    })?;
    Ok(())
}

/// Judges the node's health, right after a sample is taken.
struct Judge {
    health: Health,
    world: World,
    events: Option<File>,
    live: bool,
}

impl Judge {
    fn new(
        rules: Rules,
        node: &str,
        args: &WatchArgs,
        events: Option<File>,
        live: bool,
    ) -> anyhow::Result<Judge> {
        let world = World::new(&args.root);
        let mut judge = Judge { health: Health::new(rules, node), world, events, live };
        for (rule, state) in &args.inject {
            let event = judge
                .health
                .inject(rule, *state, Clock::Realtime.now_ns())
                .map_err(anyhow::Error::msg)?;
            judge.tell(&[event]);
        }
        Ok(judge)
    }

    fn run(&mut self, shared: &Shared) {
        let begin = Instant::now();
        *lock(&shared.health) = self.health.states();
        let (mut seen, mut next) = (None, Duration::ZERO);
        loop {
            // Rules are seldom due; between, nothing wakes.
            if let Some(wait) = next.checked_sub(begin.elapsed()) {
                std::thread::sleep(wait);
            }
            let Some(frame) = shared.ring.wait(seen, LONG) else { return };
            seen = Some(frame.head.number);
            let events = self.health.check(&self.world, begin.elapsed(), Clock::Realtime.now_ns());
            if !events.is_empty() {
                *lock(&shared.health) = self.health.states();
                self.tell(&events);
            }
            next = self.health.next_due();
        }
    }

    fn tell(&mut self, events: &[Event]) {
        for event in events {
            if let Some(file) = &mut self.events {
                let line = serde_json::to_string(event).expect("plain data");
                if let Err(e) = writeln!(file, "{line}") {
                    out::say(format_args!("eyrie monitor: cannot write the event {line}: {e}"));
                }
            } else if !self.live {
                let Event { rule, what, from, to, evidence, .. } = event;
                let word = |s: &State| format!("{s:?}").to_lowercase();
                out::say(format_args!(
                    "eyrie monitor: health: {rule}: {what}: {} after {}: {}",
                    word(to),
                    word(from),
                    evidence.said
                ));
            }
        }
    }
}

/// Writes and shows samples as they come.
struct Scribe {
    shared: Arc<Shared>,
    output: Option<Box<dyn Write + Send>>,
    scraped: bool,
    live: bool,
    limit: Limit,
}

impl Scribe {
    fn run(mut self, stop: &AtomicBool) -> anyhow::Result<i32> {
        let mut screen = if self.live { Some(table::Table::open()?) } else { None };
        let (mut rates, mut summary) = (Rates::default(), Summary::default());
        let mut seen = None;
        while !stop.load(Ordering::Relaxed) && !self.is_over(summary.count) {
            if let Some(screen) = &mut screen {
                // Keys are waited for until the next sample is there: only it and they wake us.
                if screen.keys(self.until_next(summary.last.0))? {
                    break;
                }
            }
            let Some(frame) = self.next(&mut seen) else { continue };
            summary.add(&frame);
            if let Some(output) = &mut self.output {
                lock(&self.shared.names).update(&frame.processes);
                let names = lock(&self.shared.names);
                let line = json::line(
                    &self.shared.node,
                    &frame,
                    &self.shared.started.accuracy,
                    Some(&names),
                );
                writeln!(output, "{line}")
                    .and_then(|()| output.flush())
                    .context("cannot write samples")?;
            } else if screen.is_some() || !self.scraped {
                lock(&self.shared.names).update(&frame.processes);
                let node = rates
                    .take(0, Seen::of_frame(&self.shared.node, &frame, &lock(&self.shared.names)));
                match &mut screen {
                    Some(screen) => screen.show(vec![node], &lock(&self.shared.health))?,
                    None => out::line(plain::line(&node))?,
                }
            }
            if self.scraped {
                lock(&self.shared.exporter).observe(frame);
            }
        }
        drop(screen);
        if let Some(text) = summary.text() {
            out::say(text);
        }
        Ok(0)
    }

    fn is_over(&self, count: u64) -> bool {
        let Limit { samples, until } = self.limit;
        samples.is_some_and(|n| count >= n) || until.is_some_and(|until| Instant::now() >= until)
    }

    /// How long it is until the sample after one with this intended moment is there, about.
    fn until_next(&self, last_ns: u64) -> Duration {
        let next = last_ns + self.shared.started.interval_ns + 2_000_000;
        let wait = next.saturating_sub(Clock::Realtime.now_ns());
        Duration::from_nanos(wait.min(self.shared.started.interval_ns))
    }

    /// The next sample in order; those that the ring has lost are left out.
    fn next(&self, seen: &mut Option<u64>) -> Option<Frame> {
        let patience = match self.live {
            true => Duration::from_millis(20),
            false => LONG,
        };
        let left =
            self.limit.until.map_or(LONG, |until| until.saturating_duration_since(Instant::now()));
        self.shared.ring.wait(*seen, patience.min(left))?;
        let frame = self.shared.ring.following(*seen)?;
        *seen = Some(frame.head.number);
        Some(frame)
    }
}

/// What is said at the end.
#[derive(Default)]
struct Summary {
    count: u64,
    missed: u64,
    failed: u64,
    lowered: u64,
    skew: Histogram,
    cost: Vec<u64>,
    first: Option<(u64, u64)>,
    last: (u64, u64),
}

/// Costs kept for the median.
const COSTS: usize = 100_000;

impl Summary {
    fn add(&mut self, frame: &Frame) {
        let head = &frame.head;
        self.count += 1;
        self.missed += if self.count > 1 { u64::from(head.step - 1) } else { 0 };
        self.failed += u64::from(head.failed);
        self.lowered += u64::from(head.detail != eyrie_monitor::sample::Detail::Full);
        self.skew.add(head.skew_ns);
        if self.cost.len() < COSTS && head.number > 0 {
            self.cost.push(head.cost.whole_ns);
        }
        self.last = (head.intended_ns, head.cost.monitor_ns);
        self.first.get_or_insert(self.last);
    }

    fn text(&mut self) -> Option<String> {
        let (begin, used) = self.first?;
        let cost = self.cost_text(begin, used);
        let skew = self.skew.summary();
        Some(format!(
            "eyrie monitor: {} samples, {} missed, {} failed reads, {} with less detail; late by {} (median), {} (99 %), {} (most){}",
            self.count,
            self.missed,
            self.failed,
            self.lowered,
            nanoseconds(skew.median_ns),
            nanoseconds(skew.p99_ns),
            nanoseconds(skew.largest_ns as f64),
            cost,
        ))
    }

    /// What it cost; of one sample alone nothing is known, since each tells the cost of the one before.
    fn cost_text(&mut self, begin_ns: u64, used_ns: u64) -> String {
        self.cost.sort_unstable();
        let Some(cost) = self.cost.get(self.cost.len() / 2) else { return String::new() };
        let elapsed = self.last.0.saturating_sub(begin_ns).max(1);
        let share = (self.last.1 - used_ns) as f64 / elapsed as f64 * 100.0;
        format!(
            "; a sample costs {} (median, with waking); the whole monitor used {share:.4} % of a core",
            nanoseconds(*cost as f64)
        )
    }
}

/// Shows monitors that listen elsewhere.
fn others(addresses: &[String], live: bool, samples: Option<u64>) -> anyhow::Result<i32> {
    let stop = Arc::new(AtomicBool::new(false));
    on_signal(stop.clone(), None)?;
    let mut screen = if live { Some(table::Table::open()?) } else { None };
    let mut rates = Rates::default();
    let mut shown_of: Vec<u64> = vec![0; addresses.len()];
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) && samples.is_none_or(|n| count < n) {
        let (mut nodes, mut changed) = (Vec::new(), false);
        let mut interval = Duration::from_millis(500);
        for (at, address) in addresses.iter().enumerate() {
            let mut text = Vec::new();
            client::get(&client::Place::Port(address.clone()), "/sample", &mut text)?;
            let line = serde_json::from_slice(&text)
                .with_context(|| format!("{address} gave no sample"))?;
            let mut seen = Seen::of_json(&line);
            // Nodes may have the same name.
            seen.node = format!("{} ({address})", seen.node);
            interval = Duration::from_nanos(line["interval_ns"].as_u64().unwrap_or(0))
                .max(Duration::from_millis(50));
            changed |= shown_of[at] != seen.time_ns;
            shown_of[at] = seen.time_ns;
            nodes.push(rates.take(at, seen));
        }
        if changed {
            count += 1;
            match &mut screen {
                Some(screen) => screen.show(nodes, &[])?,
                None => nodes.iter().try_for_each(|node| out::line(plain::line(node)))?,
            }
        }
        match &mut screen {
            Some(screen) => {
                if screen.keys(interval)? {
                    break;
                }
            }
            None => std::thread::sleep(interval),
        }
    }
    Ok(0)
}
