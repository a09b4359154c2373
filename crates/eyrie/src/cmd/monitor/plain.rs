//! A line for each sample: for pipes and logs.

use eyrie_monitor::watch::view::{sort, NodeView, Order};
use eyrie_units::{bytes, nanoseconds};

/// Processes in a line.
const TOP: usize = 3;

pub fn line(node: &NodeView) -> String {
    let s = &node.seen;
    let mut rows = node.rows.clone();
    sort(&mut rows, Order::Cpu);
    let top: Vec<String> = rows
        .iter()
        .filter(|r| r.cpu >= 0.0005)
        .take(TOP)
        .map(|r| format!("{}[{}] {:.1} %", short(&r.process.command), r.process.pid, r.cpu * 100.0))
        .collect();
    let memory = s.memory_total.saturating_sub(s.memory_available);
    format!(
        "{} {} cpu {:.1} %, memory {} of {}, load {:.2}, network {}/s, disk {}/s, {} processes{}{} | cost {}, {} late, {}{}",
        time_of_day(s.time_ns),
        s.node,
        node.cpu * 100.0,
        bytes(memory),
        bytes(s.memory_total),
        s.load,
        bytes(node.network_per_s as u64),
        bytes(node.disk_per_s as u64),
        s.processes.len(),
        if top.is_empty() { "" } else { ": " },
        top.join(", "),
        nanoseconds(s.cost_ns as f64),
        nanoseconds(s.skew_ns as f64),
        s.reader,
        if s.detail == "full" { String::new() } else { format!(", detail lowered to {}", s.detail) },
    )
}

/// The program's name of a command line, without its folder.
pub fn short(command: &str) -> &str {
    let first = command.split(' ').next().unwrap_or_default();
    match first.rsplit('/').next() {
        Some(name) if !name.is_empty() => name,
        _ => first,
    }
}

/// UTC.
pub fn time_of_day(ns: u64) -> String {
    let s = ns / 1_000_000_000;
    let ms = ns / 1_000_000 % 1000;
    format!("{:02}:{:02}:{:02}.{ms:03}", s / 3600 % 24, s / 60 % 60, s % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_times() {
        assert_eq!(short("/usr/bin/python3 -c pass"), "python3");
        assert_eq!(short("kworker/0:1"), "0:1");
        assert_eq!(time_of_day(86_400_000_000_000 + 3_723_500_000_000), "01:02:03.500");
    }
}
