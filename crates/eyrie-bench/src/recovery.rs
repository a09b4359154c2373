//! The cost of a recovery, by phase, image size and length of the log.

use crate::job::{in_turn, run, Contender, Job, Phases, Program, What};
use crate::plot::Chart;
use crate::report::{cell, digits, percent, Measured, Table};
use crate::statistics::Spread;
use crate::{Effort, Setup};
use anyhow::Context;
use eyrie_wire::Rank;
use serde_json::{json, Value};
use std::time::{Duration, Instant};

/// How long one step of a measurement may take.
const LIMIT: Duration = Duration::from_secs(120);
const PHASES: [&str; 5] = ["detected", "placed", "fetched", "restored", "replayed"];

/// A rank of a size that dies some time after its checkpoint.
struct Case {
    label: &'static str,
    mib: u64,
    log_s: f64,
    /// The arguments of the program for arithmetic and steps.
    work: &'static str,
    failure: &'static str,
    options: &'static str,
}

const COMPUTES: &str = "--spin 1000000 --steps 2200";
const TALKS: &str = "--spin 0 --percent 0 --steps 60000";
const ONE_NODE: &str = "--checkpoint-every off";
const TWO_NODES: &str = "--checkpoint-every off --nodes 2 --spares 1";

const CASES: [Case; 7] = [
    Case {
        label: "1 MiB",
        mib: 1,
        log_s: 1.0,
        work: COMPUTES,
        failure: "kill-rank=1",
        options: ONE_NODE,
    },
    Case {
        label: "100 MiB",
        mib: 100,
        log_s: 1.0,
        work: COMPUTES,
        failure: "kill-rank=1",
        options: ONE_NODE,
    },
    Case {
        label: "1 GiB",
        mib: 1024,
        log_s: 1.0,
        work: COMPUTES,
        failure: "kill-rank=1",
        options: ONE_NODE,
    },
    Case {
        label: "100 MiB, short log",
        mib: 100,
        log_s: 0.25,
        work: COMPUTES,
        failure: "kill-rank=1",
        options: ONE_NODE,
    },
    Case {
        label: "100 MiB, long log",
        mib: 100,
        log_s: 2.0,
        work: COMPUTES,
        failure: "kill-rank=1",
        options: ONE_NODE,
    },
    Case {
        label: "100 MiB, only messages",
        mib: 100,
        log_s: 0.5,
        work: TALKS,
        failure: "kill-rank=1",
        options: ONE_NODE,
    },
    Case {
        label: "100 MiB, node dies",
        mib: 100,
        log_s: 1.0,
        work: COMPUTES,
        failure: "kill-node=1",
        options: TWO_NODES,
    },
];

/// One recovery.
struct Recovered {
    /// From the checkpoint's beginning to the death, in seconds.
    log: f64,
    messages: u64,
    phases: [f64; 5],
    total: f64,
    /// Seconds of the whole job with the failure, and of the same under MPICH without one.
    job: f64,
    direct: f64,
}

pub fn measure(setup: &Setup, effort: Effort) -> anyhow::Result<Measured> {
    let cases = if effort.quick { &CASES[..2] } else { &CASES[..] };
    let runs =
        in_turn(effort, cases, |c| format!("recovery: {}", c.label), |case| turn(setup, case))?;
    let mut header = vec!["rank", "log, s", "messages"];
    header.extend(PHASES.map(|p| p));
    header.extend(["in all", "job with failure to MPICH without", "Eagle"]);
    let mut table = Table::new("A recovery by phase, in ms", &header);
    let mut rows = Vec::new();
    let mut bars = Vec::new();
    for (case, runs) in cases.iter().zip(&runs) {
        let phases = std::array::from_fn(|i| Spread::of(runs.iter().map(|r| r.phases[i] * 1e3)));
        rows.push(describe(case, runs, &phases, &mut table));
        bars.push((
            case.label.replace("100 MiB, ", ""),
            phases.iter().map(|p| p.map_or(0.0, |p| p.median)).collect(),
        ));
    }
    Ok(Measured {
        tables: vec![table],
        notes: vec![
            "Two ranks, of which one dies; the log is what happened between the beginning of its \
             last checkpoint and its death. A rank that computes all the time needs as long again \
             for what it computes again: replay saves only the waiting for others."
                .into(),
            "The phases are those of the `recovered` event. Job with failure: the whole job under \
             Eyrie, one checkpoint and one failure included, against the same MPICH over tcp \
             without either; after a failure MPICH ends, and the job would have to be run again \
             from its beginning."
                .into(),
        ],
        data: json!({ "recovery": rows }),
        chart: Some(Chart::Bars {
            title: "A recovery by phase".into(),
            y: "ms".into(),
            parts: PHASES.map(str::to_string).into(),
            bars,
        }),
    })
}

fn describe(
    case: &Case,
    runs: &[Recovered],
    phases: &[Option<Spread>; 5],
    table: &mut Table,
) -> Value {
    let of = |f: fn(&Recovered) -> f64| Spread::of(runs.iter().map(f));
    let log = of(|r| r.log);
    let total = of(|r| r.total * 1e3);
    let ratio = of(|r| r.job / r.direct);
    let messages = of(|r| r.messages as f64);
    let mut row = vec![
        case.label.to_string(),
        log.map_or("-".into(), |s| digits(s.median)),
        messages.map_or("-".into(), |s| format!("{:.0}", s.median)),
    ];
    row.extend(phases.iter().map(|p| p.map_or("-".into(), |p| digits(p.median))));
    row.extend([cell(total, digits), cell(ratio, percent), "not measured".into()]);
    table.rows.push(row);
    let by_phase: serde_json::Map<String, Value> =
        PHASES.iter().zip(phases).map(|(name, p)| (format!("{name}_ms"), json!(p))).collect();
    json!({
        "case": case.label, "mib": case.mib, "failure": case.failure, "log_s": log,
        "messages": messages,
        "phases": by_phase, "total_ms": total, "job_ratio": ratio,
    })
}

/// A job under Eyrie with a failure, and the same under MPICH without one.
fn turn(setup: &Setup, case: &Case) -> anyhow::Result<Recovered> {
    let args = format!("--mb {} --rank 1 --percent 1 {}", case.mib, case.work);
    let program = Program::new(2, setup.example("memory"), &args);
    let direct = run(setup, &Contender::direct(), &program)?;
    let eyrie = Contender::eyrie("Eyrie", case.options);
    let mut recovered = recover(case, Job::start(setup, &eyrie, &program)?)
        .with_context(|| format!("{} with {}", case.label, case.failure))?;
    recovered.direct = direct.elapsed.as_secs_f64();
    Ok(recovered)
}

fn recover(case: &Case, mut job: Job) -> anyhow::Result<Recovered> {
    job.await_event("rank 1", LIMIT, |e| {
        matches!(e.what, What::Connected { rank: Rank(1) }).then_some(())
    })?;
    let checkpoint = job.checkpoint(Rank(1), case.mib, LIMIT)?;
    // The log grows for as long as the case wants it.
    let until = checkpoint.begun + Duration::from_secs_f64(case.log_s);
    while Instant::now() < until {
        job.event(until)?;
    }
    job.order("inject", &[&format!("{}@0s", case.failure)])?;
    let failed_at = job.await_event("the death of rank 1", LIMIT, |e| {
        matches!(e.what, What::RankFailed { rank: Rank(1) }).then_some(e.time)
    })?;
    let (messages, phases, total) = job.await_event("a recovery", LIMIT, |e| match e.what {
        What::Recovered { rank: Rank(1), messages, phases, total } => {
            Some((messages, phases, total))
        }
        _ => None,
    })?;
    let Phases { detected, placed, fetched, restored, replayed } = phases;
    let phases = [detected, placed, fetched, restored, replayed];
    let job = job.finish()?.elapsed.as_secs_f64();
    let log = failed_at - checkpoint.begun_at;
    Ok(Recovered { log, messages, phases, total, job, direct: 0.0 })
}
