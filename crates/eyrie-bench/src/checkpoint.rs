//! The cost of checkpoints: Eagle's six strategies by number of checkpoints, and the pause by size
//! of the image.

use crate::job::{in_turn, run, Contender, Program, What};
use crate::pause;
use crate::plot::{Chart, Series};
use crate::report::{cell, digits, percent, times, Measured, Table};
use crate::statistics::Spread;
use crate::{Effort, Setup};
use serde_json::json;

/// Eagle's names, our options, and what Eagle's figure 6 shows for each. The last two are those
/// that cost it most and least, with images that have all of the memory each time, as its own had.
const STRATEGIES: [(&str, &str, &str); 8] = [
    (
        "sync, sequential",
        "--checkpoint-mode sync --checkpoint-order sequential",
        "SC/SR: between the other SC",
    ),
    ("sync, batch", "--checkpoint-mode sync --checkpoint-order batch", "SC/BR: costs most"),
    (
        "sync, self-timed",
        "--checkpoint-mode sync --checkpoint-order self-timed",
        "SC/ST: least of SC at many",
    ),
    (
        "async, sequential",
        "--checkpoint-mode async --checkpoint-order sequential",
        "AC/SR: far below every SC",
    ),
    ("async, batch", "--checkpoint-mode async --checkpoint-order batch", "AC/BR: costs least"),
    (
        "async, self-timed",
        "--checkpoint-mode async --checkpoint-order self-timed",
        "AC/ST: far below every SC",
    ),
    ("sync, batch, full", "--checkpoint-mode sync --checkpoint-order batch", "SC/BR: costs most"),
    (
        "async, batch, full",
        "--checkpoint-mode async --checkpoint-order batch",
        "AC/BR: costs least",
    ),
];
/// From this one on images are full ones.
const FULL: usize = 6;

/// One line of the figure at one number of checkpoints.
struct Turn {
    strategy: Option<usize>,
    wanted: u32,
    contender: Contender,
}

/// How long a turn took, and how many checkpoints each rank had.
struct Taken {
    seconds: f64,
    checkpoints: f64,
}

pub fn measure(setup: &Setup, effort: Effort) -> anyhow::Result<Measured> {
    let mut measured = strategies(setup, effort)?;
    let (table, note, rows) = pause::measure(setup, effort)?;
    measured.tables.push(table);
    measured.notes.push(note);
    measured.data["pause"] = rows;
    Ok(measured)
}

/// Four ranks that change a twentieth of their memory in each step.
fn program(setup: &Setup, effort: Effort) -> (Program, u64) {
    let (mb, steps) = if effort.quick { (16, 400) } else { (64, 800) };
    let args = format!("--mb {mb} --percent 5 --steps {steps} --spin 1000000");
    (Program::new(4, setup.example("memory"), &args), mb)
}

fn strategies(setup: &Setup, effort: Effort) -> anyhow::Result<Measured> {
    let (program, mb) = program(setup, effort);
    let counts: &[u32] = if effort.quick { &[2] } else { &[1, 3, 6] };
    let without = Contender::eyrie("Eyrie without checkpoints", "--checkpoint-every off");
    crate::progress("a first run, to know how long one takes");
    let length = run(setup, &without, &program)?.elapsed;
    let mut turns = vec![
        Turn { strategy: None, wanted: 0, contender: Contender::direct() },
        Turn { strategy: None, wanted: 0, contender: without },
    ];
    for &wanted in counts {
        for (i, (name, options, _)) in STRATEGIES.iter().enumerate() {
            let every_ms = length.as_secs_f64() * 1e3 / (f64::from(wanted) + 0.5);
            let options = format!("{options} --checkpoint-every {every_ms:.0}ms");
            let contender = Contender::eyrie(name, &options);
            let contender = match i {
                FULL.. => contender.with_full_images(),
                _ => contender,
            };
            turns.push(Turn { strategy: Some(i), wanted, contender });
        }
    }
    let runs = in_turn(
        effort,
        &turns,
        |t| format!("{}, {}", t.contender.name, t.wanted),
        |t| {
            let finished = run(setup, &t.contender, &program)?;
            let taken =
                finished.events.iter().filter(|e| matches!(e.what, What::Checkpoint { .. }));
            let checkpoints = taken.count() as f64 / f64::from(program.ranks);
            Ok(Taken { seconds: finished.elapsed.as_secs_f64(), checkpoints })
        },
    )?;
    Ok(report(&turns, &runs, mb))
}

fn report(turns: &[Turn], runs: &[Vec<Taken>], mb: u64) -> Measured {
    let seconds = |i: usize| -> Vec<f64> { runs[i].iter().map(|t| t.seconds).collect() };
    let (direct, without) = (seconds(0), seconds(1));
    let mut table = Table::new(
        &format!("Checkpoints of 4 ranks of {mb} MiB that change 5 % of it in each step"),
        &[
            "strategy",
            "checkpoints of a rank",
            "time, s",
            "more than without",
            "to MPICH over tcp",
            "Eagle, figure 6",
        ],
    );
    let mut rows = Vec::new();
    let mut series: Vec<Series> = STRATEGIES
        .iter()
        .map(|(name, _, _)| Series {
            name: name.to_string(),
            points: vec![(0.0, 0.0)],
            paper: false,
        })
        .collect();
    for (i, turn) in turns.iter().enumerate().skip(1) {
        let ours = seconds(i);
        let checkpoints = Spread::of(runs[i].iter().map(|t| t.checkpoints));
        let (overhead, ratio) =
            (Spread::of_ratios(&ours, &without), Spread::of_ratios(&ours, &direct));
        let eagle = turn.strategy.map_or("-", |s| STRATEGIES[s].2);
        table.rows.push(vec![
            turn.contender.name.into(),
            checkpoints.map_or("-".into(), |c| digits(c.median)),
            cell(Spread::of(ours.iter().copied()), digits),
            turn.strategy.map_or("-".into(), |_| cell(overhead, percent)),
            cell(ratio, times),
            eagle.into(),
        ]);
        rows.push(json!({
            "strategy": turn.contender.name, "wanted": turn.wanted,
            "checkpoints_per_rank": checkpoints,
            "seconds": Spread::of(ours), "overhead_ratio": overhead, "direct_ratio": ratio,
            "eagle": eagle,
        }));
        if let (Some(strategy), Some(c), Some(o)) = (turn.strategy, checkpoints, overhead) {
            series[strategy].points.push((c.median, (o.median - 1.0) * 100.0));
        }
    }
    for s in &mut series {
        s.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    Measured {
        tables: vec![table],
        notes: vec![
            "More than without: against Eyrie without checkpoints in the same round. The number of \
             checkpoints is counted in the event stream; a slower run has more of them at the same \
             interval. Full: each image has all of the memory (EYRIE_IMAGES=full), else what was \
             written since the last one."
                .into(),
        ],
        data: json!({ "direct_s": Spread::of(direct), "strategies": rows }),
        chart: Some(Chart::Lines {
            title: "Overhead by number of checkpoints (Eagle's figure 6)".into(),
            x: "checkpoints of a rank".into(),
            y: "percent more than without checkpoints".into(),
            sizes: false,
            series,
        }),
    }
}
