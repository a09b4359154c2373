//! The newest sample as OpenMetrics. The text is valid whatever the names of processes and devices:
//! any user of a node may choose names.

use crate::commands::{Commands, Group};
use crate::health::HealthState;
use crate::reader::Kind;
use crate::ring::Frame;
use crate::sample::{text_of, Cpu, Detail};
use crate::shared::{lock, Shared};
use crate::skew::Histogram;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
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
        let mut registry = Registry::default();
        registry.register_collector(Box::new(snapshot));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        Ok(text)
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

const SECONDS: Unit = Unit::Seconds;
const BYTES: Unit = Unit::Bytes;

/// Nanoseconds as seconds.
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// The output, one family of metrics after the other: each entry is its labels and its value.
struct Out<'a, 'b>(&'a mut DescriptorEncoder<'b>);

impl Out<'_, '_> {
    fn family<L: EncodeLabelSet>(
        &mut self,
        (name, help, unit, kind): (&str, &str, Option<&Unit>, MetricType),
        entries: impl IntoIterator<Item = (L, f64)>,
    ) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, unit, kind)?;
        for (labels, value) in entries {
            put(encoder.encode_family(&labels)?, kind, value)?;
        }
        Ok(())
    }

    fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        all: impl IntoIterator<Item = (L, f64)>,
    ) -> fmt::Result {
        self.family((name, help, unit, MetricType::Counter), all)
    }

    fn gauges<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        all: impl IntoIterator<Item = (L, f64)>,
    ) -> fmt::Result {
        self.family((name, help, unit, MetricType::Gauge), all)
    }

    fn one(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        kind: MetricType,
        value: f64,
    ) -> fmt::Result {
        put(self.0.encode_descriptor(name, help, unit, kind)?, kind, value)
    }
}

fn put(mut encoder: MetricEncoder, kind: MetricType, value: f64) -> fmt::Result {
    match kind {
        MetricType::Counter => encoder.encode_counter::<NoLabelSet, _, f64>(&value, None),
        _ => encoder.encode_gauge(&value),
    }
}

type Label = [(&'static str, String); 1];
type Labels = [(&'static str, String); 2];

fn label(name: &'static str, value: &str) -> Label {
    [(name, label_value(value))]
}

fn labels(first: (&'static str, &str), second: (&'static str, &str)) -> Labels {
    [(first.0, label_value(first.1)), (second.0, label_value(second.1))]
}

/// A value between quotes, which prometheus_client writes unchanged. Control characters other than
/// the end of a line are valid, but do not belong on a terminal.
fn label_value(text: &str) -> String {
    let mut value = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => value += "\\\\",
            '"' => value += "\\\"",
            '\n' => value += "\\n",
            c if c.is_control() => value.push('?'),
            c => value.push(c),
        }
    }
    value
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let mut out = Out(&mut encoder);
        self.monitor(&mut out)?;
        self.commands(&mut out)?;
        match &self.frame {
            Some(frame) => self.node(&mut out, frame),
            None => Ok(()),
        }
    }
}

impl Snapshot {
    fn monitor(&self, out: &mut Out) -> fmt::Result {
        let [samples, missed, failed] = self.counts.map(|n| n as f64);
        let info = labels(("reader", self.reader.name()), ("sync", &self.sync));
        out.gauges("eyrie_monitor_info", "How this node is sampled", None, [(info, 1.0)])?;
        out.one("eyrie_monitor_samples", "Samples taken", None, MetricType::Counter, samples)?;
        out.one(
            "eyrie_monitor_missed",
            "Moments at which no sample was taken",
            None,
            MetricType::Counter,
            missed,
        )?;
        out.one(
            "eyrie_monitor_failed_reads",
            "Reads that failed",
            None,
            MetricType::Counter,
            failed,
        )?;
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
        out.one(
            "eyrie_monitor_cpu",
            "CPU time of the whole monitor",
            Some(&SECONDS),
            MetricType::Counter,
            seconds(cost.monitor_ns),
        )?;
        let detail = match head.detail {
            Detail::Full => 0.0,
            Detail::Busy => 1.0,
            Detail::Least => 2.0,
        };
        out.one(
            "eyrie_monitor_detail",
            "0 full, 1 busy processes, 2 least: lowered by the budget",
            None,
            MetricType::Gauge,
            detail,
        )?;
        out.one(
            "eyrie_monitor_beyond",
            "Processes for which there was no room",
            None,
            MetricType::Gauge,
            f64::from(head.beyond),
        )?;
        out.one(
            "eyrie_sample_time",
            "When the newest sample was taken",
            Some(&SECONDS),
            MetricType::Gauge,
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
            .map(|(of, tasks, us)| (labels(("resource", of), ("tasks", tasks)), us as f64 / 1e6));
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
                    .map(|(way, n)| (labels(("interface", &name), ("direction", way)), n as f64))
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
                .map(|(way, n)| (labels(("disk", &name), ("direction", way)), n as f64))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_ends_where_it_should() {
        for (text, value) in [
            ("solver é", "solver é"),
            ("quo\"te\\", "quo\\\"te\\\\"),
            ("new\nline", "new\\nline"),
            ("\u{1b}[31m\t\r", "?[31m??"),
        ] {
            assert_eq!(label_value(text), value);
        }
    }
}
