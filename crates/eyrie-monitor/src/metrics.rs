//! The newest sample as metrics.

use crate::commands::{Commands, Group};
use crate::health::HealthState;
use crate::reader::Kind;
use crate::ring::Frame;
use crate::sample::{text_of, Cpu, Detail};
use crate::shared::{lock, Shared};
use crate::skew::Histogram;
use eyrie_exporter::text::{self, label, labels, Out, Source, BYTES, SECONDS};
use std::fmt;

/// The counts over all samples. They do not depend on when scrapes come.
pub struct Exporter {
    commands: Commands,
    skew: Histogram,
    samples: u64,
    missed: u64,
    failed: u64,
    newest: Option<Frame>,
}

impl Exporter {
    /// At most `most` commands have series beside those of kernel threads and "other".
    pub fn new(most: usize) -> Exporter {
        Exporter {
            commands: Commands::new(most),
            skew: Histogram::default(),
            samples: 0,
            missed: 0,
            failed: 0,
            newest: None,
        }
    }

    /// Adds a sample.
    pub fn observe(&mut self, frame: Frame) {
        self.samples += 1;
        self.missed += u64::from(frame.head.step.saturating_sub(1));
        self.failed += u64::from(frame.head.failed);
        self.skew.add(frame.head.skew_ns);
        self.commands.observe(&frame.processes);
        self.newest = Some(frame);
    }

    /// How far samples were from their moments.
    pub fn skew(&self) -> crate::skew::Summary {
        self.skew.summary()
    }

    /// All metrics as text.
    ///
    /// # Errors
    /// Those of formatting; none are known.
    pub fn encode(&self, shared: &Shared) -> Result<String, fmt::Error> {
        let snapshot = Snapshot {
            frame: self.newest.clone(),
            groups: self.commands.series(),
            skew: self.skew.summary(),
            counts: [self.samples, self.missed, self.failed],
            reader: shared.started.reader,
            sync: serde_json::to_value(shared.started.sync)
                .ok()
                .and_then(|v| v.as_str().map(String::from))
                .unwrap_or_default(),
            health: lock(&shared.health).clone(),
        };
        text::encode(snapshot, [])
    }
}

#[derive(Debug)]
struct Snapshot {
    frame: Option<Frame>,
    groups: Vec<(String, Group)>,
    skew: crate::skew::Summary,
    counts: [u64; 3],
    reader: Kind,
    sync: String,
    health: Vec<(String, HealthState)>,
}

/// Nanoseconds as seconds.
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

impl Source for Snapshot {
    fn write(&self, out: &mut Out) -> fmt::Result {
        self.monitor(out)?;
        self.commands(out)?;
        match &self.frame {
            Some(frame) => self.node(out, frame),
            None => Ok(()),
        }
    }
}

impl Snapshot {
    fn monitor(&self, out: &mut Out) -> fmt::Result {
        let [samples, missed, failed] = self.counts.map(|n| n as f64);
        let info = labels([("reader", self.reader.name()), ("sync", &self.sync)]);
        out.gauges("eyrie_monitor_info", "How this node is sampled", None, [(info, 1.0)])?;
        out.counter("eyrie_monitor_samples", "Samples taken", None, samples)?;
        out.counter("eyrie_monitor_missed", "Moments at which no sample was taken", None, missed)?;
        out.counter("eyrie_monitor_failed_reads", "Reads that failed", None, failed)?;
        let skew = [
            ("0.5", self.skew.median_ns),
            ("0.99", self.skew.p99_ns),
            ("1", self.skew.largest_ns as f64),
        ];
        out.gauges(
            "eyrie_monitor_skew",
            "From the intended moment to the sample: this part of all samples was no later",
            Some(&SECONDS),
            skew.map(|(part, ns)| (label("part", part), ns / 1e9)),
        )?;
        let code = |state: &HealthState| *state as u8 as f64;
        out.gauges(
            "eyrie_health_state",
            "0 ok, 1 suspect, 2 failing",
            None,
            self.health.iter().map(|(rule, state)| (label("rule", rule), code(state))),
        )
    }

    fn commands(&self, out: &mut Out) -> fmt::Result {
        let each = |value: fn(&Group) -> f64| {
            self.groups.iter().map(move |(name, g)| (label("command", name), value(g)))
        };
        out.counters(
            "eyrie_command_cpu",
            "CPU time of all processes of a command",
            Some(&SECONDS),
            each(|g| seconds(g.cpu_ns)),
        )?;
        out.gauges(
            "eyrie_command_resident",
            "Resident memory of a command's processes",
            Some(&BYTES),
            each(|g| g.rss_bytes as f64),
        )?;
        out.gauges(
            "eyrie_command_processes",
            "Processes of a command",
            None,
            each(|g| g.processes as f64),
        )?;
        out.gauges(
            "eyrie_command_threads",
            "Threads of a command",
            None,
            each(|g| g.threads as f64),
        )
    }

    fn node(&self, out: &mut Out, frame: &Frame) -> fmt::Result {
        let head = &frame.head;
        let node = &head.node;
        let cost = &head.cost;
        let parts =
            [("processes", cost.processes_ns), ("node", cost.node_ns), ("whole", cost.whole_ns)];
        out.gauges(
            "eyrie_monitor_cost",
            "CPU time of the newest sample, by part",
            Some(&SECONDS),
            parts.map(|(part, ns)| (label("part", part), seconds(ns))),
        )?;
        out.counter(
            "eyrie_monitor_cpu",
            "CPU time of the whole monitor",
            Some(&SECONDS),
            seconds(cost.monitor_ns),
        )?;
        let detail = match head.detail {
            Detail::Full => 0.0,
            Detail::Busy => 1.0,
            Detail::Least => 2.0,
        };
        out.gauge(
            "eyrie_monitor_detail",
            "0 full, 1 busy processes, 2 least: lowered by the budget",
            None,
            detail,
        )?;
        out.gauge(
            "eyrie_monitor_beyond",
            "Processes for which there was no room",
            None,
            f64::from(head.beyond),
        )?;
        out.gauge(
            "eyrie_sample_time",
            "When the newest sample was taken",
            Some(&SECONDS),
            head.intended_ns as f64 / 1e9,
        )?;
        let Cpu { user_ns, nice_ns, system_ns, idle_ns, iowait_ns, irq_ns, softirq_ns, steal_ns } =
            node.cpu;
        let modes = [
            ("user", user_ns),
            ("nice", nice_ns),
            ("system", system_ns),
            ("idle", idle_ns),
            ("iowait", iowait_ns),
            ("irq", irq_ns),
            ("softirq", softirq_ns),
            ("steal", steal_ns),
        ];
        out.counters(
            "eyrie_node_cpu",
            "Processor time of the node",
            Some(&SECONDS),
            modes.map(|(m, ns)| (label("mode", m), seconds(ns))),
        )?;
        let loads = [("1m", node.load_1), ("5m", node.load_5), ("15m", node.load_15)];
        out.gauges(
            "eyrie_node_load",
            "Load average",
            None,
            loads.map(|(w, load)| (label("over", w), load)),
        )?;
        let m = &node.memory;
        let memory = [
            ("total", m.total_bytes),
            ("free", m.free_bytes),
            ("available", m.available_bytes),
            ("cached", m.cached_bytes),
            ("swap_total", m.swap_total_bytes),
            ("swap_free", m.swap_free_bytes),
        ];
        out.gauges(
            "eyrie_node_memory",
            "Memory of the node",
            Some(&BYTES),
            memory.map(|(k, b)| (label("kind", k), b as f64)),
        )?;
        let p = &node.pressure;
        let pressure = [
            ("cpu", "some", p.cpu_some_us),
            ("memory", "some", p.memory_some_us),
            ("memory", "full", p.memory_full_us),
            ("io", "some", p.io_some_us),
            ("io", "full", p.io_full_us),
        ];
        let pressure = pressure
            .map(|(of, tasks, us)| (labels([("resource", of), ("tasks", tasks)]), us as f64 / 1e6));
        out.counters(
            "eyrie_node_pressure",
            "Time that tasks stood still for lack of a resource",
            Some(&SECONDS),
            pressure,
        )?;
        self.devices(out, frame)
    }

    fn devices(&self, out: &mut Out, frame: &Frame) -> fmt::Result {
        let node = &frame.head.node;
        let network = |values: fn(&crate::sample::Interface) -> (u64, u64)| {
            node.network.iter().flat_map(move |i| {
                let name = text_of(&i.name);
                let (received, sent) = values(i);
                [("receive", received), ("send", sent)]
                    .map(|(way, n)| (labels([("interface", &name), ("direction", way)]), n as f64))
            })
        };
        out.counters(
            "eyrie_node_network",
            "Bytes through an interface",
            Some(&BYTES),
            network(|i| (i.received_bytes, i.sent_bytes)),
        )?;
        out.counters(
            "eyrie_node_network_packets",
            "Packets through an interface",
            None,
            network(|i| (i.received_packets, i.sent_packets)),
        )?;
        out.counters(
            "eyrie_node_network_errors",
            "Errors of an interface",
            None,
            network(|i| (i.receive_errors, i.send_errors)),
        )?;
        let disks = node.disks.iter().flat_map(|d| {
            let name = text_of(&d.name);
            [("read", d.read_bytes), ("write", d.written_bytes)]
                .map(|(way, n)| (labels([("disk", &name), ("direction", way)]), n as f64))
        });
        out.counters("eyrie_node_disk", "Bytes to and from a disk", Some(&BYTES), disks)?;
        let busy =
            node.disks.iter().map(|d| (label("disk", &text_of(&d.name)), d.busy_ms as f64 / 1e3));
        out.counters("eyrie_node_disk_busy", "Time that a disk was busy", Some(&SECONDS), busy)?;
        let sensors = node.temperatures.iter().enumerate();
        // Chips may have the same name.
        let degrees = sensors
            .map(|(at, t)| (label("sensor", &format!("{at} {}", text_of(&t.name))), t.celsius));
        out.gauges("eyrie_node_temperature_celsius", "Temperature of a sensor", None, degrees)
    }
}
