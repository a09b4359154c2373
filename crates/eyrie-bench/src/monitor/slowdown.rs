//! The expected slowdown of a bulk-synchronous job by number of nodes, from the cost of samples
//! measured here. It is checked against the paper's closed form and a real Allreduce loop.

use super::allreduce::Allreduce;
use super::crowd::Crowd;
use super::model::{closed_form, slowdown, Job};
use super::process::{Monitor, Said};
use super::setup::{Setup, SEED};
use crate::plot::{Chart, Series};
use crate::report::{cell, Measured, Table};
use crate::statistics::Spread;
use crate::Effort;
use serde_json::json;
use std::time::Duration;

/// Where costs and skews come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A monitor that samples this many processes here.
    Measured { processes: usize },
    /// As given.
    Given { cost: Duration, skew: Duration },
}

/// A way to sample.
struct Way {
    name: &'static str,
    options: &'static str,
    in_step: bool,
}

const WAYS: [Way; 4] = [
    Way { name: "eyrie, in step", options: "", in_step: true },
    Way { name: "eyrie, not in step", options: "--sync off", in_step: false },
    Way { name: "plain /proc, in step", options: "--reader proc", in_step: true },
    Way { name: "plain /proc, not in step", options: "--reader proc --sync off", in_step: false },
];

const NODES: [usize; 16] =
    [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536];

pub fn measure(
    setup: &Setup,
    effort: Effort,
    grain: Duration,
    interval: Duration,
    source: &Source,
) -> anyhow::Result<Measured> {
    let mut tables = Vec::new();
    let mut notes = Vec::new();
    let mut data = serde_json::Map::new();
    let said: Vec<Said> = match source {
        Source::Given { cost, skew } => {
            let (cost, skew) = (cost.as_secs_f64(), skew.as_secs_f64());
            // Evenly spread between zero and the given one.
            let skews: Vec<f64> = (0..=100).map(|i| skew * f64::from(i) / 100.0).collect();
            vec![Said { whole: vec![cost], skews, ..Said::default() }]
        }
        Source::Measured { processes } => {
            let (said, real, values) = real_loops(setup, effort, grain, interval, *processes)?;
            tables.push(real);
            notes.push(format!(
                "The real loop: one rank on each processor, about {} µs of work and an Allreduce; \
                 a machine with {processes} idle processes more; medians of ratios, round by \
                 round.",
                grain.as_micros()
            ));
            data.insert("real".into(), values);
            said
        }
    };
    let (table, chart, values) =
        modelled(&said, grain, interval, matches!(source, Source::Given { .. }), effort);
    tables.insert(0, table);
    notes.push(format!(
        "Modelled: grain {} µs, a sample every {} ms on every node; each interruption takes its \
         length (CPU time of the whole monitor for a sample) and, in step, its skew from those \
         measured. One moment of its own for each node when not in step.",
        grain.as_micros(),
        interval.as_millis()
    ));
    notes.push(
        "Closed form: 1 + nodes × cost / interval; it holds while few interruptions fall into one \
         loop, and no loop is longer than a grain and an interruption."
            .into(),
    );
    data.insert("model".into(), values);
    Ok(Measured { tables, notes, data: data.into(), chart: Some(chart) })
}

/// Runs the real loop beside each way to sample and without a monitor, in turn.
fn real_loops(
    setup: &Setup,
    effort: Effort,
    grain: Duration,
    interval: Duration,
    processes: usize,
) -> anyhow::Result<(Vec<Said>, Table, serde_json::Value)> {
    let length = if effort.quick { 1.0 } else { 3.0 };
    let loops = ((length / grain.as_secs_f64()) as u64).max(10);
    let program = Allreduce::calibrate(setup, grain, loops)?;
    let _crowd = Crowd::start(processes, 1)?;
    let folder = tempfile::tempdir()?;
    let mut alone = Vec::new();
    let mut beside: Vec<Vec<f64>> = vec![Vec::new(); WAYS.len()];
    let mut said: Vec<Said> = vec![Said::default(); WAYS.len()];
    for round in 0..effort.rounds {
        crate::progress(&format!("eyrie-bench: round {} of {}", round + 1, effort.rounds));
        alone.push(program.run()?);
        for (at, way) in WAYS.iter().enumerate() {
            let mut options = vec!["--interval".to_string(), format!("{}us", interval.as_micros())];
            options.extend(way.options.split(' ').filter(|o| !o.is_empty()).map(String::from));
            let monitor = Monitor::start(&setup.eyrie, &options, folder.path().join("samples"))?;
            beside[at].push(program.run()?);
            let new = monitor.end()?;
            said[at].costs.extend(new.costs);
            said[at].whole.extend(new.whole);
            said[at].skews.extend(new.skews);
            said[at].reader = new.reader;
        }
    }
    let mut table = Table::new(
        &format!("A real Allreduce loop on {} ranks, to the same without a monitor", program.ranks),
        &[
            "monitor",
            "reader",
            "sample, µs",
            "whole monitor, µs",
            "late, µs",
            "time of the loop",
            "closed form",
        ],
    );
    let mut values = Vec::new();
    for (at, way) in WAYS.iter().enumerate() {
        let us = |all: &[f64]| Spread::of(all.iter().map(|s| s * 1e6));
        let ratio = Spread::of_ratios(&beside[at], &alone);
        let (costs, whole, skews) = (us(&said[at].costs), us(&said[at].whole), us(&said[at].skews));
        // There is one node here, which the ranks share.
        let form = whole.map_or(1.0, |w| closed_form(1, w.median / 1e6, interval.as_secs_f64()));
        table.rows.push(vec![
            way.name.into(),
            said[at].reader.clone(),
            cell(costs, crate::report::digits),
            cell(whole, crate::report::digits),
            cell(skews, crate::report::digits),
            cell(ratio, |r| format!("{r:.4}×")),
            format!("{form:.4}×"),
        ]);
        values.push(json!({
            "monitor": way.name, "reader": said[at].reader, "cost_us": costs, "whole_us": whole,
            "late_us": skews, "ratio": ratio,
        }));
    }
    Ok((said, table, json!(values)))
}

fn modelled(
    said: &[Said],
    grain: Duration,
    interval: Duration,
    given: bool,
    effort: Effort,
) -> (Table, Chart, serde_json::Value) {
    let grain = grain.as_secs_f64();
    let interval = interval.as_secs_f64();
    let ways: Vec<(&str, &Said, bool)> = if given {
        vec![("in step", &said[0], true), ("not in step", &said[0], false)]
    } else {
        WAYS.iter().zip(said).map(|(way, said)| (way.name, said, way.in_step)).collect()
    };
    let mut header = vec!["nodes"];
    header.extend(ways.iter().map(|(name, ..)| *name));
    header.push("closed form");
    let mut table = Table::new("Modelled slowdown", &header);
    let mut series: Vec<Series> = ways
        .iter()
        .map(|(name, ..)| Series { name: name.to_string(), points: Vec::new(), paper: false })
        .collect();
    let mut closed = Series { name: "closed form".into(), points: Vec::new(), paper: true };
    let mut values = Vec::new();
    for nodes in NODES {
        let mut row = vec![nodes.to_string()];
        for (at, (_, said, in_step)) in ways.iter().enumerate() {
            let job = Job {
                nodes,
                grain,
                interval,
                costs: &said.whole,
                skews: in_step.then_some(&said.skews[..]),
            };
            // Rare long interruptions need many intervals where there are few nodes.
            let intervals = (200_000 / nodes).clamp(if effort.quick { 4 } else { 12 }, 2000);
            let factor = slowdown(&job, intervals, SEED);
            row.push(factor_text(factor));
            series[at].points.push((nodes as f64, factor));
        }
        // The closed form is about the first way that is not in step.
        let (_, said, _) = ways.iter().find(|(.., in_step)| !in_step).expect("there is one");
        let mean = said.whole.iter().sum::<f64>() / said.whole.len() as f64;
        let form = closed_form(nodes, mean, interval);
        row.push(factor_text(form));
        closed.points.push((nodes as f64, form));
        values.push(json!({
            "nodes": nodes,
            "slowdown": series.iter().map(|s| s.points.last().map(|p| p.1)).collect::<Vec<_>>(),
            "closed_form": form,
        }));
        table.rows.push(row);
    }
    series.push(closed);
    let chart = Chart::Growth {
        title: format!("Modelled slowdown of a job that synchronizes every {:.0} µs", grain * 1e6),
        x: "nodes".into(),
        y: "time with samples / without".into(),
        series,
    };
    (
        table,
        chart,
        json!({"ways": ways.iter().map(|w| w.0).collect::<Vec<_>>(), "by_nodes": values}),
    )
}

/// Enough digits to distinguish 1.0002 from 1.
pub fn factor_text(factor: f64) -> String {
    match factor {
        f if f < 1.1 => format!("{f:.4}×"),
        f if f < 10.0 => format!("{f:.2}×"),
        f => format!("{f:.0}×"),
    }
}
