//! Whole programs, from their start to their end, without a failure.

use crate::job::{in_turn, run, Contender, Finished, Program};
use crate::report::{cell, digits, percent, Measured, Table};
use crate::statistics::Spread;
use crate::{Effort, Setup};
use anyhow::{ensure, Context};
use serde_json::json;
use std::time::Duration;

/// A program.
struct App {
    name: &'static str,
    program: Program,
    /// The file with its result; `None`: the result is its output.
    result: Option<&'static str>,
    /// Eagle's figure for the nearest program of its own.
    eagle: &'static str,
}

/// LAMMPS's input, which is a text of ours.
const MELT: &str = include_str!("../../../examples/lammps/in.melt");

/// Eagle was measured with one router per rank and without checkpoints.
const UNDISTURBED: &str = "--checkpoint-every off";
const CHECKPOINTED: &str = "--checkpoint-every 2s";

pub fn measure(setup: &Setup, effort: Effort) -> anyhow::Result<Measured> {
    let inputs = tempfile::tempdir()?;
    let melt = inputs.path().join("in.melt");
    std::fs::write(&melt, MELT)?;
    let scale = if effort.quick { 1 } else { 3 };
    let mut apps = Vec::new();
    for ranks in [2, 4] {
        let example = |name: &str, args: &str| Program::new(ranks, setup.example(name), args);
        let lammps = format!("-in {} -log none -nocite -var steps {}", melt.display(), 40 * scale);
        let app = |name, program, result, eagle| App { name, program, result, eagle };
        apps.extend([
            app("start and end only", example("memory", "--mb 1 --steps 1 --spin 0"), None, "-"),
            app(
                "LAMMPS, melt",
                Program::new(ranks, setup.lammps(), &lammps),
                Some("melt.txt"),
                "+19.9 % (BT)",
            ),
            app(
                "isort",
                example("isort", &format!("--iterations {}", 30 * scale)),
                None,
                "+63.4 % (IS)",
            ),
            app(
                "cg",
                example("cg", &format!("--n 64 --solves {}", 2 * scale)),
                None,
                "+29.9 % (SP)",
            ),
            app("heat2d", example("heat2d", &format!("--steps {}", 500 * scale)), None, "-"),
        ]);
    }
    let contenders = [
        Contender::direct(),
        Contender::eyrie("Eyrie", UNDISTURBED),
        Contender::eyrie("Eyrie with checkpoints", CHECKPOINTED),
    ];
    let mut table = Table::new(
        "Whole programs",
        &[
            "program",
            "ranks",
            "MPICH over tcp, s",
            "Eyrie, s",
            "more",
            "with checkpoints, s",
            "more",
            "Eagle, more",
        ],
    );
    let mut rows = Vec::new();
    for app in &apps {
        let name = |c: &Contender| format!("{}, {} ranks, {}", app.name, app.program.ranks, c.name);
        let runs = in_turn(effort, &contenders, name, |c| {
            let finished = run(setup, c, &app.program)?;
            Ok((finished.elapsed, result(app, &finished)?))
        })?;
        let expected = &runs[0][0].1;
        for (contender, runs) in contenders.iter().zip(&runs) {
            ensure!(
                runs.iter().all(|(_, result)| result == expected),
                "{}: the result under {} is not that under MPICH over tcp",
                app.name,
                contender.name
            );
        }
        let seconds = |i: usize| -> Vec<f64> {
            runs[i].iter().map(|(t, _)| Duration::as_secs_f64(t)).collect()
        };
        let [direct, plain, checkpointed] = [0, 1, 2].map(seconds);
        let ratios = [&plain, &checkpointed].map(|ours| Spread::of_ratios(ours, &direct));
        let [direct, plain, checkpointed] = [direct, plain, checkpointed].map(Spread::of);
        table.rows.push(vec![
            app.name.into(),
            app.program.ranks.to_string(),
            cell(direct, digits),
            cell(plain, digits),
            cell(ratios[0], percent),
            cell(checkpointed, digits),
            cell(ratios[1], percent),
            app.eagle.into(),
        ]);
        rows.push(json!({
            "program": app.name, "ranks": app.program.ranks, "direct_s": direct,
            "eyrie_s": plain, "ratio": ratios[0],
            "checkpointed_s": checkpointed, "checkpointed_ratio": ratios[1], "eagle": app.eagle,
        }));
    }
    Ok(Measured {
        tables: vec![table],
        notes: vec![
            format!(
                "Eyrie: `eyrie run {UNDISTURBED}`, as Eagle was measured; with checkpoints: \
                 `{CHECKPOINTED}`. Start and end are part of every time."
            ),
            "Every result is compared with that of MPICH over tcp: equal byte for byte.".into(),
            "Eagle had one router and a node of its own for each rank; here ranks and router share \
             the cores.".into(),
        ],
        data: json!({ "apps": rows }),
        chart: None,
    })
}

fn result(app: &App, finished: &Finished) -> anyhow::Result<String> {
    match app.result {
        Some(file) => {
            let path = finished.dir.path().join(file);
            std::fs::read_to_string(path).with_context(|| format!("{} wrote no {file}", app.name))
        }
        None => Ok(finished.stdout.clone()),
    }
}
