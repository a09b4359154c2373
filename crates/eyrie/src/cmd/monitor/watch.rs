//! `eyrie monitor` itself: options, what is said, and who is shown the samples. The monitor runs in
//! eyrie-monitor.

use super::view::View;
use super::{args, plain, sockets, table};
use anyhow::Context;
use clap::Args;
use eyrie_cli::out::{self, Output};
use eyrie_controller::runtime::appended;
use eyrie_exporter::listen::address;
use eyrie_monitor::health::{Event, HealthState, Rules};
use eyrie_monitor::json;
use eyrie_monitor::names::CommandLines;
use eyrie_monitor::policy::Policy;
use eyrie_monitor::reader::Kind;
use eyrie_monitor::sampling_thread::{Config, Started};
use eyrie_monitor::shared::Shared;
use eyrie_monitor::sync::Mode;
use eyrie_monitor::watch::remote::Remote;
use eyrie_monitor::watch::{Judgement, Limit, Options, Watch};
use eyrie_units::{nanoseconds, positive_duration, share};
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

#[derive(Args)]
pub struct WatchArgs {
    /// Time from one sample to the next, with its unit
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = positive_duration)]
    interval: Duration,
    /// bpf-open, bpf-iter, clocks, taskstats or proc [default: the best that this node and user can
    /// have]
    #[arg(long, value_name = "READER")]
    reader: Option<Kind>,
    /// How nodes agree on the moment: clock (multiples of the interval on the wall clock), once,
    /// always, off
    #[arg(long, value_name = "HOW", default_value = "clock")]
    sync: Mode,
    /// Where `eyrie monitor conduct` answers, for --sync once and always
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    with: Option<SocketAddr>,
    /// File with the secret shared with the conductor
    #[arg(long, value_name = "FILE", requires = "with")]
    secret: Option<PathBuf>,
    /// The most that sampling may use of one core; less is read, then seldom, to keep it
    #[arg(long, value_name = "SHARE%", value_parser = share)]
    budget: Option<f64>,
    /// Which processes may wait: off, busy=10% (those below), error=1% (those that a straight line
    /// foretells)
    #[arg(long, value_name = "POLICY", default_value = "off")]
    adapt: Policy,
    /// Write samples as JSON lines to FILE, or - for standard output
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Answer Prometheus at /metrics; a port alone is loopback only
    #[arg(long, value_name = "[HOST:]PORT", value_parser = address)]
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
    #[arg(long, value_name = "WHOSE", default_value = "own")]
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
    inject: Vec<(String, HealthState)>,
    /// Name of this node in samples [default: the host's]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Sample on this processor
    #[arg(long, value_name = "CPU", hide_short_help = true)]
    pin: Option<usize>,
    /// Sample behind ordinary processes, as nice(1) does, instead of ahead of them
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(i32).range(0..=19), hide_short_help = true)]
    nice: i32,
    /// A tree to read /proc and /sys of the node from, to try rules (processes are always this
    /// node's)
    #[arg(long, value_name = "DIR", default_value = "/", hide_short_help = true)]
    root: PathBuf,
}

pub fn run(args: WatchArgs) -> anyhow::Result<i32> {
    let live = std::io::stdout().is_terminal() && !args.plain && args.json.is_none();
    let stop = Arc::new(AtomicBool::new(false));
    let watching = Arc::new(OnceLock::new());
    if !args.from.is_empty() {
        on_signal(stop.clone(), watching)?;
        return others(&args.from, live, args.samples, &stop);
    }
    let judgement = judgement(&args, live)?;
    let output: Option<Box<dyn Write + Send>> = match &args.json {
        Some(path) if path.as_os_str() == "-" => Some(Box::new(Output)),
        Some(path) => Some(Box::new(create(path)?)),
        None => None,
    };
    let options = Options {
        node: args.node.clone().unwrap_or_else(json::node_name),
        sampler: config(&args)?,
        judgement,
        listen: args.listen,
        series: args.series,
        command_lines: args.command_lines,
        sockets: sockets(),
    };
    on_signal(stop.clone(), watching.clone())?;
    let watch = Watch::start(options, stop)?;
    let _ = watching.set(watch.shared.clone());
    say_how_it_runs(&watch, live);
    let until = args.length.map(|length| Instant::now() + length);
    let mut view = View::new(&watch, output, live)?;
    let mut summary = watch.follow(Limit { samples: args.samples, until }, &mut view)?;
    drop(view);
    if let Some(text) = summary.text() {
        out::say(format_args!("eyrie monitor: {text}"));
    }
    Ok(0)
}

fn say_how_it_runs(watch: &Watch, live: bool) {
    if let Some(why) = &watch.unfindable {
        out::say(format_args!(
            "eyrie monitor: `eyrie monitor dump` will not find this one: {why:#}"
        ));
    }
    if live {
        return;
    }
    announce(&watch.shared.started, &watch.shared.node);
    if let Some(address) = watch.scraped_at {
        out::say(format_args!("eyrie monitor: metrics at http://{address}/metrics"));
    }
    if !watch.steadiness.locked {
        out::say(
            "eyrie monitor: memory is not locked (no CAP_IPC_LOCK, or ulimit -l): samples may wait \
             for the disk",
        );
    }
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
        lock_memory: true,
        real_time: true,
        pin: args.pin,
        nice: args.nice,
        root: args.root.clone(),
    })
}

/// How health is judged, and where its changes are said.
fn judgement(args: &WatchArgs, live: bool) -> anyhow::Result<Option<Judgement>> {
    let rules = match (&args.rules, args.no_health) {
        (_, true) => return Ok(None),
        (Some(path), _) => Rules::load(path).map_err(anyhow::Error::msg)?,
        (None, _) => Rules::default(),
    };
    let mut events = args.events.as_deref().map(create).transpose()?;
    let tell = Box::new(move |event: &Event| match &mut events {
        Some(file) => write_event(file, event),
        None if live => {}
        None => say_event(event),
    });
    Ok(Some(Judgement { rules, injected: args.inject.clone(), tell }))
}

fn write_event(file: &mut File, event: &Event) {
    let line = serde_json::to_string(event).expect("plain data");
    if let Err(e) = writeln!(file, "{line}") {
        out::say(format_args!("eyrie monitor: cannot write the event {line}: {e}"));
    }
}

fn say_event(event: &Event) {
    let Event { rule, what, from, to, evidence, .. } = event;
    let word = |s: &HealthState| format!("{s:?}").to_lowercase();
    out::say(format_args!(
        "eyrie monitor: health: {rule}: {what}: {} after {}: {}",
        word(to),
        word(from),
        evidence.said
    ));
}

fn create(path: &Path) -> anyhow::Result<File> {
    appended(path).with_context(|| format!("cannot write to {}", path.display()))
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

/// Sets the flag, and ends all waiting for samples, at SIGINT, SIGTERM and SIGHUP. Nothing wakes to
/// look for them.
fn on_signal(stop: Arc<AtomicBool>, shared: Arc<OnceLock<Arc<Shared>>>) -> anyhow::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for _ in signals.forever() {
            stop.store(true, Ordering::Relaxed);
            if let Some(shared) = shared.get() {
                shared.ring.end_waits();
            }
        }
    })?;
    Ok(())
}

/// Shows monitors that listen elsewhere.
fn others(
    addresses: &[String],
    live: bool,
    samples: Option<u64>,
    stop: &AtomicBool,
) -> anyhow::Result<i32> {
    let mut screen = if live { Some(table::Table::open()?) } else { None };
    let mut remote = Remote::new(addresses);
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) && samples.is_none_or(|n| count < n) {
        let answers = remote.ask()?;
        if answers.changed {
            count += 1;
            match &mut screen {
                Some(screen) => screen.show(answers.nodes, &[])?,
                None => answers.nodes.iter().try_for_each(|node| out::line(plain::line(node)))?,
            }
        }
        let ended = match &mut screen {
            Some(screen) => screen.keys(answers.interval)?,
            None => {
                std::thread::sleep(answers.interval);
                false
            }
        };
        if ended {
            break;
        }
    }
    Ok(0)
}
