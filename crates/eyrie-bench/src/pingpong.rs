//! Half round trips between two ranks, by message size.

use crate::job::{in_turn, run, Contender, Program};
use crate::plot::{Chart, Series};
use crate::report::{cell, digits, times, Measured, Table};
use crate::statistics::Spread;
use crate::{kernel, Effort, Setup};
use serde_json::json;

/// "ping-pong takes about 2× the time of the unprotected library at every size".
const EAGLE: f64 = 2.0;

/// A log that stays in memory, whose pages are reused after checkpoints, as in a job that has run
/// for a while.
const IN_MEMORY: &str = "--checkpoint-every 300ms --log-memory 6GiB";
/// MiB sent before the measurement, so that the log of [`IN_MEMORY`] has its pages.
const BEFORE_MIB: u32 = 2048;
/// A checkpoint of each rank every second, and the defaults otherwise.
const DEFAULTS: &str = "--checkpoint-every 1s";

pub fn measure(setup: &Setup, effort: Effort) -> anyhow::Result<Measured> {
    let budget_ms = if effort.quick { 30 } else { 150 };
    let args = format!("--repetitions 2000 --budget-ms {budget_ms} --before {BEFORE_MIB}");
    let program = Program::new(2, setup.example("pingpong"), &args);
    let contenders = [
        Contender::direct(),
        Contender::eyrie("Eyrie, log in memory", IN_MEMORY),
        Contender::eyrie("Eyrie, defaults", DEFAULTS),
    ];
    let runs = in_turn(
        effort,
        &contenders,
        |c| c.name.into(),
        |c| kernel::parse(&run(setup, c, &program)?.stdout),
    )?;
    let mut table = Table::new(
        "Half round trip between two ranks",
        &[
            "message",
            "MPICH over tcp, µs",
            "Eyrie, log in memory, µs",
            "ratio",
            "Eyrie, defaults, µs",
            "ratio",
            "Eagle",
        ],
    );
    let mut rows = Vec::new();
    let mut lines = [Vec::new(), Vec::new()];
    for &bytes in runs[0][0].keys() {
        let [direct, memory, defaults] = [0, 1, 2].map(|i| kernel::at(&runs[i], bytes));
        let (of_memory, of_defaults) =
            (Spread::of_ratios(&memory, &direct), Spread::of_ratios(&defaults, &direct));
        for (line, ratio) in lines.iter_mut().zip([of_memory, of_defaults]) {
            line.extend(ratio.map(|r| (bytes as f64, r.median)));
        }
        let [direct, memory, defaults] = [direct, memory, defaults].map(Spread::of);
        table.rows.push(vec![
            eyrie_units::bytes(bytes),
            cell(direct, digits),
            cell(memory, digits),
            cell(of_memory, times),
            cell(defaults, digits),
            cell(of_defaults, times),
            format!("about {EAGLE}×"),
        ]);
        rows.push(json!({
            "bytes": bytes, "direct_us": direct, "memory_us": memory, "memory_ratio": of_memory,
            "defaults_us": defaults, "defaults_ratio": of_defaults, "eagle_ratio": EAGLE,
        }));
    }
    let [memory, defaults] = lines;
    let ends = [memory.first(), memory.last()].into_iter().flatten();
    let paper = ends.map(|p| (p.0, EAGLE)).collect();
    let line = |name: &str, points, paper| Series { name: name.into(), points, paper };
    Ok(Measured {
        tables: vec![table],
        notes: vec![
            format!(
                "Log in memory: `eyrie run {IN_MEMORY}`: nothing goes to disk, and the log's pages \
                 are used again after checkpoints; {BEFORE_MIB} MiB were sent before anything was \
                 measured, so that the kernel had given them."
            ),
            format!(
                "Defaults: `eyrie run {DEFAULTS}`: what of the log exceeds the memory for it goes \
                 to disk until two checkpoints have made it superfluous; messages of more than \
                 about 100 KiB, sent without a pause, are measured at the speed of the disk."
            ),
        ],
        data: json!({ "pingpong": rows }),
        chart: Some(Chart::Lines {
            title: "Half round trip, relative to the same MPICH over tcp".into(),
            x: "message".into(),
            y: "times MPICH over tcp".into(),
            sizes: true,
            series: vec![
                line("Eyrie, log in memory", memory, false),
                line("Eyrie, defaults, a checkpoint every second", defaults, false),
                line("Eagle (about 2×)", paper, true),
            ],
        }),
    })
}
