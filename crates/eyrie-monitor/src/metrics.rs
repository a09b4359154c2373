//! The newest sample as OpenMetrics. Processes are grouped by their command's name, and groups are
//! bounded: what finds no room is summed as "other", so that a node that starts a million programs
//! has as many series as one that starts ten.

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
use std::collections::HashMap;
use std::fmt;

/// Of the processes of one command.
#[derive(Clone, Debug, Default, PartialEq)]
struct Group {
    cpu_ns: u64,
    rss_bytes: u64,
    processes: u64,
    threads: u64,
    /// Samples since a process of it lived.
    idle: u64,
}

/// A group without processes for so many samples makes room for another.
const IDLE: u64 = 1200;

/// What is counted over all samples, so that scrapes may come as they like.
pub struct Exporter {
    most: usize,
    groups: HashMap<[u8; 16], Group>,
    other: Group,
    /// CPU time of each process when it was seen last.
    seen: HashMap<(u32, u64), (u64, bool)>,
    skew: Histogram,
    samples: u64,
    missed: u64,
    failed: u64,
    newest: Option<Frame>,
}

impl Exporter {
    /// At most `most` groups beside "other".
    pub fn new(most: usize) -> Exporter {
        Exporter {
            most,
            groups: HashMap::new(),
            other: Group::default(),
            seen: HashMap::new(),
            skew: Histogram::default(),
            samples: 0,
            missed: 0,
            failed: 0,
            newest: None,
        }
    }

    /// Takes a sample in.
    pub fn observe(&mut self, frame: Frame) {
        self.samples += 1;
        self.missed += u64::from(frame.head.step.saturating_sub(1));
        self.failed += u64::from(frame.head.failed);
        self.skew.add(frame.head.skew_ns);
        for group in self.groups.values_mut().chain([&mut self.other]) {
            *group = Group { cpu_ns: group.cpu_ns, idle: group.idle + 1, ..Group::default() };
        }
        self.seen.values_mut().for_each(|(_, present)| *present = false);
        for p in &frame.processes {
            // What a process used before we came counts with it: counters are since its start.
            let before =
                self.seen.insert((p.pid, p.start_ns), (p.cpu_ns, true)).map_or(0, |(cpu, _)| cpu);
            let group = self.group(p.command);
            group.cpu_ns += p.cpu_ns.saturating_sub(before);
            group.rss_bytes += p.rss_bytes;
            group.processes += 1;
            group.threads += u64::from(p.threads);
            group.idle = 0;
        }
        self.seen.retain(|_, (_, present)| *present);
        self.newest = Some(frame);
    }

    fn group(&mut self, command: [u8; 16]) -> &mut Group {
        if !self.groups.contains_key(&command) && self.groups.len() >= self.most {
            let stale = self.groups.iter().find(|(_, g)| g.idle > IDLE).map(|(name, _)| *name);
            match stale {
                Some(name) => drop(self.groups.remove(&name)),
                None => return &mut self.other,
            }
        }
        self.groups.entry(command).or_default()
    }

    /// How far samples were from their moments.
    pub fn skew(&self) -> crate::skew::Summary {
        self.skew.summary()
    }

    /// All metrics as text.
    ///
    /// # Errors
    /// Never, as far as is known: what formatting gives.
    pub fn encode(&self, shared: &Shared) -> Result<String, fmt::Error> {
        let snapshot = Snapshot {
            frame: self.newest.clone(),
            groups: self
                .groups
                .iter()
                .map(|(name, g)| (text_of(name).into_owned(), g.clone()))
                .collect(),
            other: self.other.clone(),
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
    other: Group,
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

/// One family of metrics: each entry is its labels and its value.
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
    [(name, value.into())]
}

fn labels(first: (&'static str, &str), second: (&'static str, &str)) -> Labels {
    [(first.0, first.1.into()), (second.0, second.1.into())]
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
        let mut all: Vec<(&str, &Group)> =
            self.groups.iter().map(|(name, g)| (name.as_str(), g)).collect();
        // A command may itself be called "other", or two may look alike as text: a series must not
        // come twice.
        all.sort_by(|a, b| a.0.cmp(b.0));
        let mut rest = self.other.clone();
        let mut kept: Vec<(&str, Group)> = Vec::new();
        for (name, g) in all {
            let same = kept.last_mut().filter(|(last, _)| *last == name).map(|(_, g)| g);
            let into = if name == "other" { Some(&mut rest) } else { same };
            match into {
                Some(sum) => {
                    sum.cpu_ns += g.cpu_ns;
                    sum.rss_bytes += g.rss_bytes;
                    sum.processes += g.processes;
                    sum.threads += g.threads;
                }
                None => kept.push((name, g.clone())),
            }
        }
        kept.push(("other", rest));
        let each = |value: fn(&Group) -> f64| {
            kept.iter().map(move |(name, g)| (label("command", name), value(g)))
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
        let (node, cost) = (&head.node, &head.cost);
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
            "Processes that found no room",
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
            .map(|(of, who, us)| (labels(("resource", of), ("tasks", who)), us as f64 / 1e6));
        out.counters(
            "eyrie_node_pressure",
            "Time that tasks stood still for want of something",
            Some(&SECONDS),
            pressure,
        )?;
        self.devices(out, frame)
    }

    fn devices(&self, out: &mut Out, frame: &Frame) -> fmt::Result {
        let node = &frame.head.node;
        let network = |values: fn(&crate::sample::Interface) -> (u64, u64)| {
            node.network.iter().flat_map(move |i| {
                let (name, (received, sent)) = (text_of(&i.name), values(i));
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
    use crate::sample::{name_of, Cost, Head, NodeSample, Process};

    fn frame(number: u64, processes: &[(u32, &str, u64)]) -> Frame {
        let head = Head {
            number,
            intended_ns: number,
            skew_ns: 1000,
            step: 1,
            interval_ns: 10,
            reader: Kind::Proc,
            detail: Detail::Full,
            cost: Cost::default(),
            beyond: 0,
            failed: 0,
            node: NodeSample::default(),
        };
        let process = |&(pid, command, cpu_ns): &(u32, &str, u64)| Process {
            pid,
            command: name_of(command.as_bytes()),
            cpu_ns,
            rss_bytes: 100,
            threads: 2,
            ..Process::NONE
        };
        Frame { head, processes: processes.iter().map(process).collect() }
    }

    #[test]
    fn groups_are_bounded_and_counters_never_go_back() {
        let mut exporter = Exporter::new(3);
        let mut last = 0;
        for number in 0..50u64 {
            let names: Vec<String> = (0..20).map(|i| format!("job{}", number * 20 + i)).collect();
            let mut all: Vec<(u32, &str, u64)> = names
                .iter()
                .enumerate()
                .map(|(i, n)| ((number * 20) as u32 + i as u32 + 10, n.as_str(), 5))
                .collect();
            all.push((1, "steady", number * 100));
            exporter.observe(frame(number, &all));
            assert!(exporter.groups.len() <= 3);
            let total: u64 =
                exporter.groups.values().map(|g| g.cpu_ns).sum::<u64>() + exporter.other.cpu_ns;
            assert!(total >= last, "counters must not go back");
            last = total;
            assert_eq!(total, (number + 1) * 20 * 5 + number * 100, "and nothing is lost");
        }
        assert!(exporter.seen.len() <= 21);
    }

    #[test]
    fn a_group_that_is_gone_for_long_makes_room() {
        let mut exporter = Exporter::new(1);
        exporter.observe(frame(0, &[(1, "old", 5)]));
        for number in 0..IDLE + 2 {
            exporter.observe(frame(number, &[]));
        }
        exporter.observe(frame(9999, &[(2, "new", 7)]));
        assert!(exporter.groups.contains_key(&name_of(b"new")) && exporter.groups.len() == 1);
    }
}
