//! The cost of moving ranks: live, in rounds while they compute, and stopped for all of their
//! memory, as in systems that stop, copy and restart.

use crate::job::{in_turn, run, Contender, Event, Job, Program, What};
use crate::plot::{Chart, Series};
use crate::report::{cell, digits, percent, times, Measured, Table};
use crate::statistics::Spread;
use crate::{Effort, Setup};
use anyhow::Context;
use eyrie_wire::Rank;
use serde_json::{json, Value};
use std::time::{Duration, Instant};

/// How long one step of a measurement may take.
const LIMIT: Duration = Duration::from_secs(120);
const TWO_NODES: &str = "--checkpoint-every off --nodes 2 --spares 1";
const WAYS: [&str; 2] = ["live", "stop"];
/// The rank that moves.
const MOVES: Rank = Rank(1);

/// A rank of a size that writes a part of its memory in each step, and how often it moves.
struct Case {
    mib: u64,
    percent: u64,
    /// How long it computes in a step.
    step_ms: u64,
    moves: u64,
}

const CASES: [Case; 3] = [
    Case { mib: 64, percent: 1, step_ms: 10, moves: 1 },
    Case { mib: 256, percent: 1, step_ms: 25, moves: 1 },
    Case { mib: 256, percent: 1, step_ms: 25, moves: 3 },
];
/// How long a job computes, however often it moves.
const JOB_MS: u64 = 6000;
/// Steps after which each rank has all of its memory.
const FILLED: u64 = 10;

impl Case {
    fn label(&self) -> String {
        let Case { mib, percent, step_ms, moves } = self;
        let written = mib * percent * 10 / step_ms;
        let times = if *moves == 1 { String::new() } else { format!(", {moves} times") };
        format!("{mib} MiB, {written} MiB/s written{times}")
    }

    fn program(&self, setup: &Setup) -> Program {
        let Case { mib, percent, step_ms, .. } = self;
        let size = format!("--rank {MOVES} --mb {mib} --percent {percent}");
        let steps = JOB_MS / step_ms;
        let spin = step_ms * 1_000_000;
        let args = format!("{size} --steps {steps} --spin {spin} --gaps 1 --every {FILLED}");
        Program::new(2, setup.example("memory"), &args)
    }
}

/// One job: without a move, or with moves of one way.
struct Turn<'a> {
    case: &'a Case,
    way: Option<&'static str>,
}

/// The results of a job; times in seconds.
struct Taken {
    job: f64,
    /// Longest time between two messages that the other rank received.
    gap: f64,
    moves: Vec<Moved>,
}

/// One move.
struct Moved {
    /// From the command to its answer.
    total: f64,
    /// How long the rank stood still.
    pause: f64,
    /// Time and bytes of each round.
    rounds: Vec<(f64, u64)>,
}

pub fn measure(setup: &Setup, effort: Effort) -> anyhow::Result<Measured> {
    let cases = if effort.quick { &CASES[..1] } else { &CASES[..] };
    let ways = || [None].into_iter().chain(WAYS.map(Some));
    let turns: Vec<Turn> =
        cases.iter().flat_map(|case| ways().map(move |way| Turn { case, way })).collect();
    let label = |t: &Turn| format!("{}, {}", t.case.label(), t.way.unwrap_or("no move"));
    let runs = in_turn(effort, &turns, label, |turn| take(setup, turn))?;
    let mut table = Table::new(
        "A rank moves",
        &[
            "rank",
            "way",
            "rounds",
            "in all, s",
            "stood still, ms",
            "to live",
            "longest gap of its peer, ms",
            "run time to no move",
        ],
    );
    let mut rows = Vec::new();
    let mut series = Vec::new();
    for (case, of_case) in cases.iter().zip(runs.chunks(1 + WAYS.len())) {
        let [none, ways @ ..] = of_case else { continue };
        for (way, taken) in WAYS.iter().zip(ways) {
            rows.push(describe(case, way, taken, (none, &ways[0]), &mut table));
        }
        series.extend(rounds(case, &ways[0]));
    }
    let title = "Rounds of a rank that moves live";
    let x = "seconds since the order";
    Ok(Measured {
        tables: vec![table],
        notes: vec![
            "Each rank of \"memory\" computes for some time in a step, writes a part of its \
             memory, and sends to the other one; it has no image before its first move. \"stop\": \
             it stands still from its image's beginning until it runs elsewhere."
                .into(),
            "PPMR (8 ranks of NPB off a node, 16 Gbps InfiniBand): all ranks of the job stand \
             still for all of it; run time with migrations +5.1 %, and +9.2 % to +38 % by way of \
             files."
                .into(),
        ],
        data: json!({ "moves": rows }),
        chart: Some(Chart::Lines {
            title: title.into(),
            x: x.into(),
            y: "MiB brought in the round".into(),
            sizes: false,
            series,
        }),
    })
}

fn take(setup: &Setup, turn: &Turn) -> anyhow::Result<Taken> {
    let program = turn.case.program(setup);
    let contender = Contender::eyrie("Eyrie", TWO_NODES);
    let mut moves = Vec::new();
    let finished = match turn.way {
        None => run(setup, &contender, &program)?,
        Some(way) => {
            let mut job = Job::start(setup, &contender, &program)?;
            job.await_output(&format!("step {FILLED}\n"), LIMIT)?;
            for _ in 0..turn.case.moves {
                moves.push(one_move(&mut job, way)?);
            }
            job.finish()?
        }
    };
    let said = finished.stdout.lines().find(|line| line.starts_with('{'));
    let said: Value = serde_json::from_str(said.context("the program has not said its gaps")?)?;
    let gap = said["longest_s"].as_f64().context("the program's gaps are no number")?;
    Ok(Taken { job: finished.elapsed.as_secs_f64(), gap, moves })
}

/// Orders a move and waits for its end.
fn one_move(job: &mut Job, way: &str) -> anyhow::Result<Moved> {
    let begun = Instant::now();
    job.order("migrate", &[&MOVES.to_string(), "--way", way])?;
    let total = begun.elapsed().as_secs_f64();
    let mut rounds = Vec::new();
    let pause = job.await_event("the move", LIMIT, |Event { what, .. }| match what {
        What::MoveRound { rank: MOVES, bytes, took } => {
            rounds.push((*took, *bytes));
            None
        }
        What::RankMoved { rank: MOVES, pause } => Some(*pause),
        _ => None,
    })?;
    Ok(Moved { total, pause, rounds })
}

/// A row for people, and one for programs. `none`: without a move, `live`: with live moves.
fn describe(
    case: &Case,
    way: &str,
    taken: &[Taken],
    (none, live): (&[Taken], &[Taken]),
    table: &mut Table,
) -> Value {
    let jobs = |of: &[Taken]| -> Vec<f64> { of.iter().map(|t| t.job).collect() };
    let pauses =
        |of: &[Taken]| -> Vec<f64> { of.iter().flat_map(|t| &t.moves).map(|m| m.pause).collect() };
    let moves = || taken.iter().flat_map(|t| &t.moves);
    let rounds = Spread::of(moves().map(|m| m.rounds.len() as f64));
    let total = Spread::of(moves().map(|m| m.total));
    let pause = Spread::of(pauses(taken).into_iter().map(|p| p * 1e3));
    let to_live = Spread::of_ratios(&pauses(taken), &pauses(live));
    let gap = Spread::of(taken.iter().map(|t| t.gap * 1e3));
    let gap_none = Spread::of(none.iter().map(|t| t.gap * 1e3));
    let job = Spread::of_ratios(&jobs(taken), &jobs(none));
    table.rows.push(vec![
        case.label(),
        way.into(),
        rounds.map_or("-".into(), |r| digits(r.median)),
        cell(total, digits),
        cell(pause, digits),
        cell(to_live, times),
        format!("{}; no move: {}", cell(gap, digits), cell(gap_none, digits)),
        cell(job, percent),
    ]);
    let each: Vec<Value> = moves()
        .map(|m| json!({ "total_s": m.total, "pause_s": m.pause, "rounds": m.rounds }))
        .collect();
    json!({
        "mib": case.mib, "percent_per_step": case.percent, "step_ms": case.step_ms,
        "moves_per_job": case.moves, "way": way,
        "total_s": total, "pause_ms": pause, "pause_to_live": to_live, "peer_gap_ms": gap,
        "peer_gap_without_ms": gap_none, "job_ratio": job, "each": each,
    })
}

/// The bytes of each round of the first move, by the time when it was over.
fn rounds(case: &Case, live: &[Taken]) -> Option<Series> {
    let moved = live.first()?.moves.first()?;
    let mut at = 0.0;
    let point = |(took, bytes): &(f64, u64)| {
        at += took;
        (at, *bytes as f64 / f64::from(1 << 20))
    };
    let points = moved.rounds.iter().map(point).collect();
    Some(Series { name: case.label(), points, paper: false })
}
