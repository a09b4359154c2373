//! The experiments of Kamoshida and Taura (2010) with today's parts: their monitor and their
//! remedies, alone and together, beside a real Allreduce loop with a monitor on each processor, and
//! modelled for their numbers of nodes.

use super::allreduce::Allreduce;
use super::crowd::Crowd;
use super::model::{slowdown, Job};
use super::process::{Monitor, Running, Said};
use super::setup::{Setup, SEED};
use super::slowdown::factor_text;
use crate::plot::{Chart, Series};
use crate::report::{cell, digits, Measured, Table};
use crate::statistics::Spread;
use crate::Effort;
use eyrie_monitor::skew::between_nodes;
use serde_json::json;
use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

/// One of their experiments.
struct Experiment {
    name: &'static str,
    options: &'static str,
    /// Their result.
    theirs: &'static str,
}

const EXPERIMENTS: [Experiment; 11] = [
    Experiment {
        name: "baseline",
        options: "--reader proc --sync off",
        theirs: "7× at 256 nodes; 15–20 ms a sample",
    },
    Experiment {
        name: "nice",
        options: "--reader proc --sync off --nice 19",
        theirs: "helps little",
    },
    Experiment {
        name: "SYNC_ONCE",
        options: "--reader proc --sync once",
        theirs: "6 % on the solver at 64 nodes",
    },
    Experiment { name: "SYNC_ALWAYS", options: "--reader proc --sync always", theirs: "-" },
    Experiment {
        name: "OPT1",
        options: "--reader proc --sync off --adapt busy",
        theirs: "1.8× at 32 nodes; 2–3 ms, 20–30 ms when full",
    },
    Experiment {
        name: "OPT2",
        options: "--reader taskstats --sync off",
        theirs: "1–3 ms a sample",
    },
    Experiment {
        name: "OPT1 + OPT2",
        options: "--reader taskstats --sync off --adapt busy",
        theirs: "-",
    },
    Experiment {
        name: "SYNC_ONCE + OPT1",
        options: "--reader proc --sync once --adapt busy",
        theirs: "at most about 1.2×",
    },
    Experiment {
        name: "SYNC_ONCE + OPT2",
        options: "--reader taskstats --sync once",
        theirs: "at most about 1.2×",
    },
    Experiment {
        name: "SYNC_ALWAYS + OPT2",
        options: "--reader taskstats --sync always",
        theirs: "at most about 1.2×",
    },
    Experiment { name: "eyrie's defaults", options: "", theirs: "-" },
];

/// Their grain, as far as it is known (the figures in the text disagree; this one fits), and their
/// interval.
const GRAIN: Duration = Duration::from_micros(2500);
const INTERVAL: Duration = Duration::from_millis(500);
/// Their sample: 15 to 20 ms of CPU time for 200 processes.
const THEIR_COST: f64 = 17e-3;
const NODES: [usize; 6] = [8, 16, 32, 64, 128, 256];

#[derive(Default)]
struct Found {
    seconds: Vec<f64>,
    said: Said,
    /// Skew between the nodes, in seconds.
    apart: Vec<f64>,
}

pub fn measure(setup: &Setup, effort: Effort, processes: usize) -> anyhow::Result<Measured> {
    let length = if effort.quick { 0.5 } else { 2.0 };
    let program = Allreduce::calibrate(setup, GRAIN, (length / GRAIN.as_secs_f64()) as u64)?;
    let _crowd = Crowd::start(processes, 1)?;
    let mut alone = Vec::new();
    let mut found: Vec<Found> = EXPERIMENTS.iter().map(|_| Found::default()).collect();
    for round in 0..effort.rounds {
        crate::progress(&format!("eyrie-bench: round {} of {}", round + 1, effort.rounds));
        alone.push(program.run()?);
        for (experiment, found) in EXPERIMENTS.iter().zip(&mut found) {
            run(setup, experiment, &program, found)?;
        }
    }
    let (measured, measured_values) = measured_table(&found, &alone, program.ranks);
    let (modelled, chart, modelled_values) = modelled_table(&found);
    let notes = vec![
        format!(
            "Measured: {} ranks, each on a processor of its own, as two nodes: a monitor is bound \
             to each processor; {processes} idle processes; {} ms of work between Allreduces, a \
             sample every {} ms of all processes; ratio to no monitor, round by round.",
            program.ranks,
            GRAIN.as_micros() as f64 / 1e3,
            INTERVAL.as_millis()
        ),
        "Both monitors read the processes of the whole machine, and the conductor runs on it \
         too; on their cluster each had a node."
            .into(),
        format!(
            "Modelled with the CPU time of the whole monitor for a sample, and with how late it \
             was, as measured here. \"Their sample\" is one of {} ms.",
            THEIR_COST * 1e3
        ),
    ];
    let data = json!({"measured": measured_values, "modelled": modelled_values});
    Ok(Measured { tables: vec![measured, modelled], notes, data, chart: Some(chart) })
}

/// Runs the loop beside a monitor on each processor.
fn run(
    setup: &Setup,
    experiment: &Experiment,
    program: &Allreduce,
    found: &mut Found,
) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let interval = format!("{}ms", INTERVAL.as_millis());
    let conducted = experiment.options.contains("once") || experiment.options.contains("always");
    let address = UdpSocket::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let conductor = conducted
        .then(|| {
            Running::start(Command::new(&setup.eyrie).args([
                "monitor",
                "conduct",
                "--interval",
                &interval,
                "--listen",
                &address,
            ]))
        })
        .transpose()?;
    let start = |cpu: usize| {
        let mut options: Vec<String> =
            ["--interval", &interval, "--pin", &cpu.to_string()].map(String::from).into();
        options.extend(experiment.options.split(' ').filter(|o| !o.is_empty()).map(String::from));
        if conducted {
            options.extend(["--with".to_string(), address.clone()]);
        }
        Monitor::start(&setup.eyrie, &options, folder.path().join(cpu.to_string()))
    };
    let monitors = (0..program.ranks).map(start).collect::<anyhow::Result<Vec<_>>>()?;
    found.seconds.push(program.run()?);
    let mut taken = Vec::new();
    for monitor in monitors {
        let said = monitor.end()?;
        taken.extend(said.taken);
        found.said.costs.extend(said.costs);
        found.said.whole.extend(said.whole);
        found.said.skews.extend(said.skews);
    }
    found.apart.extend(
        between_nodes(&taken, INTERVAL.as_nanos() as u64).iter().map(|ns| *ns as f64 / 1e9),
    );
    drop(conductor);
    Ok(())
}

fn measured_table(found: &[Found], alone: &[f64], ranks: usize) -> (Table, serde_json::Value) {
    let title =
        format!("Measured: an Allreduce loop on {ranks} processors, to the same without a monitor");
    let mut table = Table::new(
        &title,
        &["experiment", "sample, µs", "late, µs", "nodes apart, µs", "time of the loop", "theirs"],
    );
    let mut values = Vec::new();
    for (experiment, f) in EXPERIMENTS.iter().zip(found) {
        let us = |all: &[f64]| Spread::of(all.iter().map(|s| s * 1e6));
        let cost = us(&f.said.costs);
        let late = us(&f.said.skews);
        let ratio = Spread::of_ratios(&f.seconds, alone);
        // Without agreement the skew of nodes is any part of the interval.
        let apart = if experiment.options.contains("--sync off") { None } else { us(&f.apart) };
        table.rows.push(vec![
            experiment.name.into(),
            cell(cost, digits),
            cell(late, digits),
            cell(apart, digits),
            cell(ratio, |r| format!("{r:.4}×")),
            experiment.theirs.into(),
        ]);
        values.push(json!({
            "experiment": experiment.name, "cost_us": cost, "late_us": late, "apart_us": apart,
            "ratio": ratio,
        }));
    }
    (table, json!(values))
}

fn modelled_table(found: &[Found]) -> (Table, Chart, serde_json::Value) {
    let mut header = vec!["experiment".to_string()];
    header.extend(NODES.map(|n| format!("{n} nodes")));
    let mut table = Table {
        title: "Modelled slowdown at their numbers of nodes".into(),
        header,
        rows: Vec::new(),
    };
    let mut series = Vec::new();
    let mut add = |name: &str, costs: &[f64], skews: Option<&[f64]>, paper: bool| {
        let at = |nodes: usize| {
            let job = Job {
                nodes,
                grain: GRAIN.as_secs_f64(),
                interval: INTERVAL.as_secs_f64(),
                costs,
                skews,
            };
            slowdown(&job, (100_000 / nodes).clamp(40, 2000), SEED)
        };
        let points: Vec<(f64, f64)> = NODES.iter().map(|n| (*n as f64, at(*n))).collect();
        let mut row = vec![name.to_string()];
        row.extend(points.iter().map(|p| factor_text(p.1)));
        table.rows.push(row);
        series.push(Series { name: name.into(), points, paper });
    };
    add("their sample, not in step", &[THEIR_COST], None, true);
    add(
        "their sample, in step within 1 ms",
        &[THEIR_COST],
        Some(&[0.0, 0.25e-3, 0.5e-3, 0.75e-3, 1e-3]),
        true,
    );
    for (experiment, f) in EXPERIMENTS.iter().zip(found) {
        let in_step = !experiment.options.contains("--sync off");
        add(experiment.name, &f.said.whole, in_step.then_some(&f.said.skews[..]), false);
    }
    let values = series
        .iter()
        .map(|s| json!({"experiment": s.name, "slowdown": s.points}))
        .collect::<Vec<_>>();
    // Lines that hardly differ overlap: only the informative ones are drawn.
    let drawn = [
        "their sample, not in step",
        "their sample, in step within 1 ms",
        "baseline",
        "SYNC_ONCE",
        "OPT2",
        "SYNC_ONCE + OPT2",
        "eyrie's defaults",
    ];
    series.retain(|s| drawn.contains(&s.name.as_str()));
    let chart = Chart::Growth {
        title: "Modelled slowdown, 2.5 ms of work between Allreduces".into(),
        x: "nodes".into(),
        y: "time with samples / without".into(),
        series,
    };
    (table, chart, json!(values))
}
