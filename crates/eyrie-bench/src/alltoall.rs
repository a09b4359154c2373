//! MPI_Alltoall with more and more ranks at one router.

use crate::job::{in_turn, run, Contender, Program};
use crate::kernel::{self, BySize};
use crate::plot::{Chart, Series};
use crate::report::{cell, digits, times, Measured, Table};
use crate::statistics::Spread;
use crate::{Effort, Setup};
use serde_json::{json, Value};

/// Sizes in the table; the figure has all of them.
const SHOWN: [u64; 5] = [8, 256, 4 << 10, 32 << 10, 256 << 10];

pub fn measure(setup: &Setup, effort: Effort) -> anyhow::Result<Measured> {
    let ranks: &[u32] = if effort.quick { &[2, 4] } else { &[2, 4, 8] };
    let (budget_ms, largest) = if effort.quick { (30, 32 << 10) } else { (80, 256 << 10) };
    let args = format!("--max {largest} --repetitions 1000 --budget-ms {budget_ms}");
    let eyrie = Contender::eyrie("Eyrie", "--checkpoint-every off --log-memory 8GiB");
    let turns: Vec<(u32, Contender)> =
        ranks.iter().flat_map(|n| [(*n, Contender::direct()), (*n, eyrie.clone())]).collect();
    let runs = in_turn(
        effort,
        &turns,
        |(n, c)| format!("{n} ranks, {}", c.name),
        |(n, c)| {
            let program = Program::new(*n, setup.example("alltoall"), &args);
            kernel::parse(&run(setup, c, &program)?.stdout)
        },
    )?;
    let mut table = Table::new(
        "MPI_Alltoall over all ranks, one router",
        &["ranks", "message", "MPICH over tcp, µs", "Eyrie, µs", "ratio", "Eagle (n + 1)"],
    );
    let mut rows = Vec::new();
    let mut series = Vec::new();
    let mut papers = Vec::new();
    for (n, pair) in ranks.iter().zip(runs.chunks(2)) {
        let points = by_size(*n, &pair[0], &pair[1], &mut table, &mut rows);
        let ends = [points.first(), points.last()].into_iter().flatten();
        let eagle = ends.map(|p| (p.0, f64::from(n + 1))).collect();
        series.push(Series { name: format!("Eyrie, {n} ranks"), points, paper: false });
        series.push(Series {
            name: format!("Eagle, {n} ranks (n + 1)"),
            points: eagle,
            paper: true,
        });
    }
    series.append(&mut papers);
    Ok(Measured {
        tables: vec![table],
        notes: vec![
            "n ranks at one router; `--checkpoint-every off`, the log in memory.".into(),
            "More ranks than cores: MPICH's tcp provider polls without sleeping, Eyrie's ranks \
             sleep while they wait, so its ratios fall below those of a machine with a core for \
             each rank."
                .into(),
        ],
        data: json!({ "alltoall": rows }),
        chart: Some(Chart::Lines {
            title: "MPI_Alltoall, n ranks at one router, relative to the same MPICH over tcp"
                .into(),
            x: "bytes from each rank to each".into(),
            y: "times MPICH over tcp".into(),
            sizes: true,
            series,
        }),
    })
}

/// Adds the rows of one number of ranks; returns the ratios by size.
fn by_size(
    n: u32,
    direct: &[BySize],
    eyrie: &[BySize],
    table: &mut Table,
    rows: &mut Vec<Value>,
) -> Vec<(f64, f64)> {
    let mut points = Vec::new();
    for &bytes in direct[0].keys() {
        let (theirs, ours) = (kernel::at(direct, bytes), kernel::at(eyrie, bytes));
        let ratio = Spread::of_ratios(&ours, &theirs);
        let (theirs, ours) = (Spread::of(theirs), Spread::of(ours));
        points.extend(ratio.map(|r| (bytes as f64, r.median)));
        if SHOWN.contains(&bytes) {
            table.rows.push(vec![
                n.to_string(),
                eyrie_units::bytes(bytes),
                cell(theirs, digits),
                cell(ours, digits),
                cell(ratio, times),
                format!("{}×", n + 1),
            ]);
        }
        rows.push(json!({
            "ranks_per_router": n, "bytes": bytes, "direct_us": theirs, "eyrie_us": ours,
            "ratio": ratio,
            "eagle_ratio": n + 1,
        }));
    }
    points
}
