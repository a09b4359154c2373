//! What the table and the plain lines show: rates from two samples of the same node, whether they
//! were taken here or came as JSON. Pure.

use crate::names::Directory;
use crate::ring::Frame;
use eyrie_units::plain;
use serde_json::Value;
use std::collections::HashMap;

/// A sample, reduced to what is shown. Counts are totals.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub node: String,
    pub time_ns: u64,
    pub reader: String,
    pub cost_ns: u64,
    pub monitor_ns: u64,
    pub skew_ns: i64,
    pub detail: String,
    /// Processor time of the node; that of an older sample where `cpu_age` is not 0.
    pub busy_ns: u64,
    pub all_ns: u64,
    pub cpu_age: u64,
    /// Samples since network and disks were read.
    pub network_age: u64,
    pub disk_age: u64,
    pub load: f64,
    pub memory_total: u64,
    pub memory_available: u64,
    pub network_bytes: u64,
    pub disk_bytes: u64,
    pub hottest: Option<f64>,
    pub processes: Vec<Process>,
}

#[derive(Clone, Debug, Default)]
pub struct Process {
    pub pid: u32,
    pub start_ns: u64,
    pub command: String,
    pub threads: u64,
    pub state: char,
    pub kernel: bool,
    pub cpu_ns: u64,
    pub rss_bytes: u64,
}

/// A row of the table.
#[derive(Clone, Debug, Default)]
pub struct Row {
    pub node: usize,
    pub process: Process,
    /// Share of a core since the sample before.
    pub cpu: f64,
}

/// A node with its rates.
#[derive(Clone, Debug, Default)]
pub struct NodeView {
    pub seen: Seen,
    /// Busy share of all processors.
    pub cpu: f64,
    pub network_per_s: f64,
    pub disk_per_s: f64,
    /// Share of one core that the monitor itself uses.
    pub monitor: f64,
    pub rows: Vec<Row>,
}

impl Seen {
    pub fn of_frame(node: &str, frame: &Frame, names: &Directory) -> Seen {
        let head = &frame.head;
        let n = &head.node;
        let process = |p: &crate::sample::Process| Process {
            pid: p.pid,
            start_ns: p.start_ns,
            command: command(&p.command(), names.of(p.pid).and_then(|n| n.command_line.as_deref())),
            threads: p.threads.into(),
            state: char::from(p.state),
            kernel: p.kernel_thread,
            cpu_ns: p.cpu_ns,
            rss_bytes: p.rss_bytes,
        };
        Seen {
            node: plain::line(node).into_owned(),
            time_ns: head.intended_ns,
            reader: head.reader.name().into(),
            cost_ns: head.cost.processes_ns + head.cost.node_ns,
            monitor_ns: head.cost.monitor_ns,
            skew_ns: head.skew_ns,
            detail: format!("{:?}", head.detail).to_lowercase(),
            busy_ns: n.cpu.busy_ns(),
            all_ns: n.cpu.busy_ns() + n.cpu.idle_ns + n.cpu.iowait_ns,
            cpu_age: n.ages.cpu.into(),
            network_age: n.ages.network.into(),
            disk_age: n.ages.disks.into(),
            load: n.load_1,
            memory_total: n.memory.total_bytes,
            memory_available: n.memory.available_bytes,
            network_bytes: n.network.iter().map(|i| i.received_bytes + i.sent_bytes).sum(),
            disk_bytes: n.disks.iter().map(|d| d.read_bytes + d.written_bytes).sum(),
            hottest: n.temperatures.iter().map(|t| t.celsius).reduce(f64::max),
            processes: frame.processes.iter().map(process).collect(),
        }
    }

    /// From a line of `--json`; missing values are 0.
    pub fn of_json(line: &Value) -> Seen {
        let n = |v: &Value| v.as_u64().unwrap_or(0);
        let list = |v: &Value, fields: [&str; 2]| -> u64 {
            let items = v.as_array().map(Vec::as_slice).unwrap_or_default();
            items.iter().map(|i| n(&i[fields[0]]) + n(&i[fields[1]])).sum()
        };
        let system = &line["system"];
        let cpu = |names: &[&str]| {
            names.iter().map(|name| n(&system["cpu"][format!("{name}_ns")])).sum::<u64>()
        };
        let busy_ns = cpu(&["user", "nice", "system", "irq", "softirq", "steal"]);
        let text = |v: &Value| plain::line(v.as_str().unwrap_or_default()).into_owned();
        let process = |p: &Value| Process {
            pid: n(&p["pid"]) as u32,
            start_ns: n(&p["start_ns"]),
            command: command(p["command"].as_str().unwrap_or_default(), p["command_line"].as_str()),
            threads: n(&p["threads"]),
            state: p["state"].as_str().and_then(|s| s.chars().next()).unwrap_or('?'),
            kernel: p["kernel"].as_bool().unwrap_or(false),
            cpu_ns: n(&p["cpu_ns"]),
            rss_bytes: n(&p["rss_bytes"]),
        };
        let sensors = system["temperatures"].as_array().map(Vec::as_slice).unwrap_or_default();
        Seen {
            node: text(&line["node"]),
            time_ns: n(&line["intended_ns"]),
            reader: text(&line["reader"]),
            cost_ns: n(&line["cost"]["processes_ns"]) + n(&line["cost"]["node_ns"]),
            monitor_ns: n(&line["cost"]["monitor_ns"]),
            skew_ns: line["skew_ns"].as_i64().unwrap_or(0),
            detail: text(&line["detail"]),
            busy_ns,
            all_ns: busy_ns + cpu(&["idle", "iowait"]),
            cpu_age: n(&system["ages"]["cpu"]),
            network_age: n(&system["ages"]["network"]),
            disk_age: n(&system["ages"]["disks"]),
            load: system["load_1"].as_f64().unwrap_or(0.0),
            memory_total: n(&system["memory"]["total_bytes"]),
            memory_available: n(&system["memory"]["available_bytes"]),
            network_bytes: list(&system["network"], ["received_bytes", "sent_bytes"]),
            disk_bytes: list(&system["disks"], ["read_bytes", "written_bytes"]),
            hottest: sensors.iter().filter_map(|t| t["celsius"].as_f64()).reduce(f64::max),
            processes: line["processes"].as_array().into_iter().flatten().map(process).collect(),
        }
    }
}

/// The whole command line where it is known, else the name, made safe for a terminal.
fn command(name: &str, line: Option<&str>) -> String {
    plain::line(line.filter(|line| !line.is_empty()).unwrap_or(name)).into_owned()
}

/// Turns samples of several nodes into rates.
#[derive(Default)]
pub struct Rates {
    before: HashMap<String, Before>,
}

/// The previous state of a node.
#[derive(Default)]
struct Before {
    seen: Seen,
    /// Parts that are read in turn: their totals, when they were read, and the rate then.
    cpu: Part<2>,
    network: Part<1>,
    disk: Part<1>,
}

/// A part of the node that is not read at each sample.
struct Part<const N: usize> {
    read_ns: u64,
    totals: [u64; N],
    /// By how much it grew, and in which time.
    growth: Option<([u64; N], u64)>,
}

impl<const N: usize> Default for Part<N> {
    fn default() -> Self {
        Part { read_ns: 0, totals: [0; N], growth: None }
    }
}

impl<const N: usize> Part<N> {
    /// Takes new totals; old ones are ignored.
    fn take(&mut self, age: u64, now_ns: u64, totals: [u64; N]) {
        if age != 0 || now_ns <= self.read_ns {
            return;
        }
        if self.read_ns != 0 {
            let grown = std::array::from_fn(|i| totals[i].saturating_sub(self.totals[i]));
            self.growth = Some((grown, now_ns - self.read_ns));
        }
        (self.read_ns, self.totals) = (now_ns, totals);
    }

    fn per_s(&self) -> f64 {
        self.growth.map_or(0.0, |(grown, ns)| grown[0] as f64 / ns as f64 * 1e9)
    }
}

impl Rates {
    /// The rates from the node's previous sample to this one. For the first one all rates are 0.
    pub fn take(&mut self, at: usize, seen: Seen) -> NodeView {
        let before = self.before.entry(seen.node.clone()).or_default();
        before.cpu.take(seen.cpu_age, seen.time_ns, [seen.busy_ns, seen.all_ns]);
        before.network.take(seen.network_age, seen.time_ns, [seen.network_bytes]);
        before.disk.take(seen.disk_age, seen.time_ns, [seen.disk_bytes]);
        let last = std::mem::replace(&mut before.seen, seen.clone());
        let elapsed_ns = seen.time_ns.saturating_sub(last.time_ns).max(1) as f64;
        let known: HashMap<(u32, u64), u64> =
            last.processes.iter().map(|p| ((p.pid, p.start_ns), p.cpu_ns)).collect();
        let row = |p: &Process| {
            let grown =
                known.get(&(p.pid, p.start_ns)).map_or(0, |then| p.cpu_ns.saturating_sub(*then));
            Row { node: at, process: p.clone(), cpu: grown as f64 / elapsed_ns }
        };
        let monitor =
            if last.time_ns == 0 { 0 } else { seen.monitor_ns.saturating_sub(last.monitor_ns) };
        NodeView {
            cpu: before.cpu.growth.map_or(0.0, |([busy, all], _)| busy as f64 / all.max(1) as f64),
            network_per_s: before.network.per_s(),
            disk_per_s: before.disk.per_s(),
            monitor: monitor as f64 / elapsed_ns,
            rows: seen.processes.iter().map(row).collect(),
            seen,
        }
    }
}

/// What rows are sorted by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    Cpu,
    Memory,
    Threads,
    Pid,
    Name,
}

pub fn sort(rows: &mut [Row], order: Order) {
    let key = |r: &Row| (r.node, r.process.pid);
    match order {
        Order::Cpu => rows.sort_by(|a, b| {
            b.cpu
                .total_cmp(&a.cpu)
                .then(b.process.cpu_ns.cmp(&a.process.cpu_ns))
                .then(key(a).cmp(&key(b)))
        }),
        Order::Memory => rows.sort_by(|a, b| {
            b.process.rss_bytes.cmp(&a.process.rss_bytes).then(key(a).cmp(&key(b)))
        }),
        Order::Threads => {
            rows.sort_by(|a, b| b.process.threads.cmp(&a.process.threads).then(key(a).cmp(&key(b))))
        }
        Order::Pid => rows.sort_by_key(|r| (r.process.pid, r.node)),
        Order::Name => {
            rows.sort_by(|a, b| a.process.command.cmp(&b.process.command).then(key(a).cmp(&key(b))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sample(time_s: u64, cpu_s: f64) -> Seen {
        Seen::of_json(&json!({
            "node": "n1", "intended_ns": time_s * 1_000_000_000,
            "cost": {"processes_ns": 10, "node_ns": 5, "monitor_ns": time_s * 1_000_000},
            "system": {"cpu": {"user_ns": time_s * 500_000_000, "idle_ns": time_s * 1_500_000_000},
                       "network": [{"received_bytes": time_s * 100, "sent_bytes": 0}]},
            "processes": [{"pid": 7, "start_ns": 1, "command": "a", "cpu_ns": (cpu_s * 1e9) as u64},
                          {"pid": 8, "start_ns": time_s, "command": "always new", "cpu_ns": 999}],
        }))
    }

    #[test]
    fn rates_are_between_two_samples() {
        let mut rates = Rates::default();
        assert_eq!(rates.take(0, sample(10, 1.0)).cpu, 0.0);
        let node = rates.take(0, sample(12, 2.5));
        assert!((node.cpu - 0.25).abs() < 1e-9 && (node.network_per_s - 100.0).abs() < 1e-9);
        assert!((node.rows[0].cpu - 0.75).abs() < 1e-9);
        assert_eq!(node.rows[1].cpu, 0.0, "another process with the same number has no rate yet");
        assert!((node.monitor - 0.001).abs() < 1e-9);
        assert_eq!(node.seen.cost_ns, 15);
        // While other parts are read, the rate stays; the next one is over both samples.
        let aged = Seen { cpu_age: 1, busy_ns: 0, ..sample(13, 2.5) };
        assert!((rates.take(0, aged).cpu - 0.25).abs() < 1e-9);
        assert!((rates.take(0, sample(14, 2.5)).cpu - 0.25).abs() < 1e-9);
    }

    #[test]
    fn rows_are_sorted() {
        let row = |pid, cpu, rss_bytes| Row {
            node: 0,
            cpu,
            process: Process { pid, rss_bytes, ..Process::default() },
        };
        let mut rows = [row(1, 0.5, 10), row(2, 0.9, 5), row(3, 0.5, 20)];
        let pids = |rows: &[Row]| rows.iter().map(|r| r.process.pid).collect::<Vec<_>>();
        sort(&mut rows, Order::Cpu);
        assert_eq!(pids(&rows), [2, 1, 3]);
        sort(&mut rows, Order::Memory);
        assert_eq!(pids(&rows), [3, 1, 2]);
    }
}
