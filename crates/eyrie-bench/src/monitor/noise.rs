//! How a loop of fixed work is interrupted (the fixed-work-quantum method of Sottile and Minnich,
//! 2004): on every processor at once, without a monitor and with several, in turn.

use super::process::Monitor;
use super::setup::Setup;
use crate::report::{cell, digits, Measured, Table};
use crate::statistics::Spread;
use crate::Effort;
use eyrie_monitor::clock;
use serde_json::json;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Steps of a quantum: some microseconds.
const STEPS: u64 = 4096;
/// A quantum that takes longer than the shortest by this much counts as a detour.
const DETOUR: Duration = Duration::from_micros(2);

/// The detours on one processor in a period of time.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Detours a second.
    count: f64,
    largest_us: f64,
    /// Part of the time that detours took.
    share: f64,
}

fn quantum(x: u64) -> u64 {
    (0..STEPS).fold(x, |x, _| {
        black_box(x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407))
    })
}

/// Works for `length` on this processor.
fn observe(cpu: usize, length: Duration) -> std::io::Result<Seen> {
    clock::pin(cpu)?;
    let mut times = Vec::with_capacity(1 << 20);
    let begin = Instant::now();
    let mut before = begin;
    let mut x = cpu as u64;
    while before - begin < length && times.len() < times.capacity() {
        x = quantum(x);
        let now = Instant::now();
        times.push(now - before);
        before = now;
    }
    black_box(x);
    let elapsed = (before - begin).as_secs_f64();
    // The quickest hundredth: the shortest of all may be an accident of the clock.
    let mut sorted = times.clone();
    sorted.sort_unstable();
    let shortest = sorted[sorted.len() / 100];
    let detours = times.iter().filter_map(|t| t.checked_sub(shortest)).filter(|d| *d > DETOUR);
    let mut seen = Seen::default();
    for detour in detours {
        seen.count += 1.0 / elapsed;
        seen.largest_us = seen.largest_us.max(detour.as_secs_f64() * 1e6);
        seen.share += detour.as_secs_f64() / elapsed;
    }
    Ok(seen)
}

/// Runs it on all processors at once.
fn everywhere(length: Duration) -> anyhow::Result<Vec<Seen>> {
    let cpus = std::thread::available_parallelism()?.get();
    let threads: Vec<_> =
        (0..cpus).map(|cpu| std::thread::spawn(move || observe(cpu, length))).collect();
    threads.into_iter().map(|t| Ok(t.join().expect("it does not panic")?)).collect()
}

pub fn measure(setup: &Setup, effort: Effort, interval: Duration) -> anyhow::Result<Measured> {
    let length = if effort.quick { Duration::from_millis(500) } else { Duration::from_secs(3) };
    let interval = format!("{}us", interval.as_micros());
    let option = |text: &str| text.split(' ').map(String::from).collect::<Vec<_>>();
    let kinds: [(&str, Option<Vec<String>>); 3] = [
        ("no monitor", None),
        ("eyrie monitor", Some(option(&format!("--interval {interval}")))),
        (
            "plain /proc, not in step",
            Some(option(&format!("--interval {interval} --reader proc --sync off"))),
        ),
    ];
    let folder = tempfile::tempdir()?;
    let cpus = std::thread::available_parallelism()?.get();
    // By processor and by what runs beside it.
    let mut seen: Vec<Vec<Vec<Seen>>> = vec![vec![Vec::new(); kinds.len()]; cpus];
    for round in 0..effort.rounds {
        crate::progress(&format!("eyrie-bench: round {} of {}", round + 1, effort.rounds));
        for (kind, (_, options)) in kinds.iter().enumerate() {
            let file = folder.path().join("samples");
            let monitor =
                options.as_ref().map(|o| Monitor::start(&setup.eyrie, o, file)).transpose()?;
            for (cpu, one) in everywhere(length)?.into_iter().enumerate() {
                seen[cpu][kind].push(one);
            }
            monitor.map(Monitor::end).transpose()?;
        }
    }
    let mut table = Table::new(
        "Detours of a loop of fixed work on each processor",
        &[
            "processor",
            "beside",
            "detours a second",
            "largest, µs",
            "share of the time",
            "more than without, percentage points",
        ],
    );
    let mut data = Vec::new();
    for (cpu, seen) in seen.iter().enumerate() {
        for (kind, (name, _)) in kinds.iter().enumerate() {
            let all = &seen[kind];
            let of = |value: fn(&Seen) -> f64| Spread::of(all.iter().map(value));
            let more = Spread::of(
                all.iter().zip(&seen[0]).map(|(with, without)| with.share - without.share),
            );
            let percent = |v: f64| format!("{:.4} %", v * 100.0);
            let row = [
                cpu.to_string(),
                name.to_string(),
                cell(of(|s| s.count), digits),
                cell(of(|s| s.largest_us), digits),
                cell(of(|s| s.share), percent),
                if kind == 0 { "-".into() } else { cell(more, |v| format!("{:+.4}", v * 100.0)) },
            ];
            table.rows.push(row.to_vec());
            data.push(json!({"processor": cpu, "beside": name, "per_second": of(|s| s.count), "largest_us": of(|s| s.largest_us),
                "share": of(|s| s.share), "more": more}));
        }
    }
    let notes = vec![
        format!(
            "A detour is a quantum of {STEPS} dependent steps that takes over {} µs longer than \
             the quickest hundredth; {} s in each round, on all processors at once.",
            DETOUR.as_micros(),
            length.as_secs_f64()
        ),
        "The monitors sample every process of this machine as it is; there is no crowd.".into(),
    ];
    Ok(Measured { tables: vec![table], notes, data: json!(data), chart: None })
}
