//! The cost of a sample, by reader, for crowds of several sizes. It is measured in turn: hot (one
//! sample after the other) and cold (after 128 MiB of other memory were written, as a job does
//! between two samples), and against other monitors.

use super::crowd::Crowd;
use super::setup::Setup;
use super::tools;
use crate::report::{cell, digits, Measured, Table};
use crate::statistics::Spread;
use crate::Effort;
use eyrie_monitor::clock;
use eyrie_monitor::reader::Kind;
use eyrie_monitor::sampling_thread::{Config, Sampler};
use serde_json::{json, Value};

/// Memory that is touched before a cold sample.
const OTHER_MEMORY: usize = 128 << 20;

/// Samples of a reader in a round.
const HOT: usize = 40;
const COLD: usize = 8;

struct Reader {
    sampler: Sampler,
    /// Nanoseconds of CPU time: for the processes, and with the node.
    hot: Vec<(u64, u64)>,
    cold: Vec<(u64, u64)>,
}

pub fn measure(
    setup: &Setup,
    effort: Effort,
    crowds: &[(usize, usize)],
) -> anyhow::Result<Measured> {
    let missing = tools::missing(&setup.tools);
    let mut tables = Vec::new();
    let mut data = Vec::new();
    let mut notes: Vec<String> = missing
        .iter()
        .map(|name| {
            format!(
                "{name} is left out: it is not in {} (scripts/monitor-tools.sh puts it there).",
                setup.tools.display()
            )
        })
        .collect();
    for &(processes, threads) in crowds {
        crate::progress(&format!("eyrie-bench: {processes} processes with {threads} threads"));
        let crowd = Crowd::start(processes, threads)?;
        let (table, values) = one_crowd(setup, effort, (processes, threads), &missing, &mut notes)?;
        drop(crowd);
        tables.push(table);
        data.push(values);
    }
    notes.push(
        "Microseconds of CPU time of one sample of every process of the machine: the crowd, and \
         what else runs."
            .into(),
    );
    notes.push(format!(
        "Cold: after {} MiB of other memory were written. \"With node\" adds what is read of the \
         node at each sample (one part in turn).",
        OTHER_MEMORY >> 20
    ));
    notes.push(
        "process-exporter and collectl: CPU time of the whole program for one scrape or sample."
            .into(),
    );
    Ok(Measured { tables, notes, data: json!(data), chart: None })
}

fn one_crowd(
    setup: &Setup,
    effort: Effort,
    (processes, threads): (usize, usize),
    missing: &[&str],
    notes: &mut Vec<String>,
) -> anyhow::Result<(Table, Value)> {
    let mut readers = Vec::new();
    for kind in Kind::ALL {
        let config = Config { reader: Some(kind), ..Config::default() };
        match Sampler::prepare(config) {
            Ok(sampler) => readers.push(Reader { sampler, hot: Vec::new(), cold: Vec::new() }),
            Err(why) => notes.push(format!("{processes} × {threads}: {why}.")),
        }
    }
    let mut exporter = Vec::new();
    let mut collectl = Vec::new();
    let mut other = vec![1u8; OTHER_MEMORY];
    let pinned = std::thread::scope(|s| {
        s.spawn(|| -> anyhow::Result<()> {
            clock::pin(0)?;
            for round in 0..effort.rounds {
                for reader in &mut readers {
                    reader.sampler.read_once();
                    reader.hot.extend((0..HOT).map(|_| reader.sampler.read_once()));
                    for _ in 0..COLD {
                        other.iter_mut().step_by(64).for_each(|b| *b = b.wrapping_add(1));
                        reader.cold.push(reader.sampler.read_once());
                    }
                }
                crate::progress(&format!("eyrie-bench: round {} of {}", round + 1, effort.rounds));
                if !missing.contains(&"process-exporter") {
                    exporter.extend(tools::process_exporter(&setup.tools, 2)?);
                }
                if !missing.contains(&"collectl") && round < 3 {
                    collectl.push(tools::collectl(&setup.tools, 4)?);
                }
            }
            Ok(())
        })
        .join()
        .expect("it does not panic")
    });
    pinned?;
    let seen = readers.first().map_or(0, |r| r.sampler.processes().len());
    let title = format!(
        "{processes} processes with {threads} threads each ({seen} processes on the machine)"
    );
    let mut table = Table::new(
        &title,
        &[
            "reader",
            "hot, µs",
            "cold, µs",
            "hot with node, µs",
            "cold with node, µs",
            "to plain /proc",
        ],
    );
    let us = |all: &[(u64, u64)], node: bool| {
        Spread::of(all.iter().map(|(p, n)| (if node { p + n } else { *p }) as f64 / 1e3))
    };
    let plain = readers
        .iter()
        .find(|r| r.sampler.started().reader == Kind::Proc)
        .and_then(|r| us(&r.hot, false));
    let mut values = serde_json::Map::new();
    for r in &readers {
        let name = r.sampler.started().reader.name();
        let all = [us(&r.hot, false), us(&r.cold, false), us(&r.hot, true), us(&r.cold, true)];
        let mut row = vec![name.to_string()];
        row.extend(all.iter().map(|s| cell(*s, digits)));
        row.push(ratio(all[0], plain));
        table.rows.push(row);
        values.insert(
            name.into(),
            json!({
                "hot": all[0], "cold": all[1], "hot_with_node": all[2], "cold_with_node": all[3],
            }),
        );
    }
    for (name, seconds) in [("process-exporter", exporter), ("collectl", collectl)] {
        let spread = Spread::of(seconds.iter().map(|s| s * 1e6));
        if spread.is_some() {
            let empty = String::new();
            table.rows.push(vec![
                name.into(),
                cell(spread, digits),
                "-".into(),
                empty.clone(),
                empty,
                ratio(spread, plain),
            ]);
            values.insert(name.into(), json!({ "hot": spread }));
        }
    }
    Ok((table, json!({"processes": processes, "threads": threads, "seen": seen, "us": values})))
}

fn ratio(of: Option<Spread>, to: Option<Spread>) -> String {
    match (of, to) {
        (Some(of), Some(to)) => format!("{:.3}×", of.median / to.median),
        _ => "-".into(),
    }
}
