//! What moves cost a program: its run time when its ranks never move, move once and three times, by
//! way and kind of program.

use serde_json::{json, Value};

use crate::job::in_turn;
use crate::plot::Chart;
use crate::ppmr::driver::{carry_out, Undisturbed};
use crate::ppmr::kinds::Kind;
use crate::ppmr::live::LiveRuns;
use crate::ppmr::options::Options;
use crate::ppmr::pace::Pace;
use crate::ppmr::task::{Task, Way, Work};
use crate::ppmr::ways::How;
use crate::report::{cell, digits, percent, Measured, Table};
use crate::statistics::Spread;
use crate::Effort;

/// How often ranks move.
const MOVES: [u32; 2] = [1, 3];

/// A run. `how`: processes that move in this way, or would; for the live one, ranks of a job.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Turn {
    kind: Kind,
    how: How,
    moves: u32,
}

/// Runs each kind of program with the middle one of the given sizes of memory.
pub fn measure(options: &Options, effort: Effort) -> anyhow::Result<Measured> {
    let mib = middle(&options.mib);
    let turns: Vec<Turn> =
        options.kinds.iter().flat_map(|kind| turns(*kind, &options.ways)).collect();
    let label =
        |turn: &Turn| format!("{}, {}, {} moves", turn.kind.name(), turn.how.name(), turn.moves);
    let mut undisturbed = Undisturbed::default();
    let mut live = LiveRuns::default();
    let mut pace = Pace::new(options.ranks, effort);
    let runs = in_turn(effort, &turns, label, |turn| {
        let Turn { kind, how, moves } = *turn;
        let work = |steps| Work { kind, mib, steps, moves };
        if how.way == Way::Live {
            let work = work(pace.live_steps(kind, mib));
            return Ok(live.run(options, work)?.took.as_secs_f64());
        }
        let work = work(pace.steps(kind, mib));
        let place = options.place()?;
        let task = Task { synced: how.synced, ..options.task(how.way, work, place.path()) };
        let ran = carry_out(&task)?;
        undisturbed.check(&task, &ran)?;
        Ok(ran.took.as_secs_f64())
    })?;
    Ok(describe(options, mib, &turns, &runs))
}

fn middle(mib: &[u64]) -> u64 {
    let mut sorted = mib.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

/// Runs without moves are the same for all ways, except for the live one, whose ranks are a job's.
fn turns(kind: Kind, ways: &[Way]) -> Vec<Turn> {
    let of =
        |way: &Way, moves| Turn { kind, how: How { way: *way, synced: way.has_files() }, moves };
    let processes: Vec<&Way> = ways.iter().filter(|way| **way != Way::Live).collect();
    let jobs: Vec<&Way> = ways.iter().filter(|way| **way == Way::Live).collect();
    let with_base = |ways: Vec<&Way>| {
        let base = ways.first().map(|way| of(way, 0));
        let moved = ways.into_iter().flat_map(|way| MOVES.map(|moves| of(way, moves)));
        base.into_iter().chain(moved).collect::<Vec<_>>()
    };
    [with_base(processes), with_base(jobs)].concat()
}

/// The turn without moves with which this one is compared.
fn base(turn: &Turn, turns: &[Turn]) -> Option<usize> {
    let live = |turn: &Turn| turn.how.way == Way::Live;
    turns.iter().position(|t| t.kind == turn.kind && t.moves == 0 && live(t) == live(turn))
}

fn describe(options: &Options, mib: u64, turns: &[Turn], runs: &[Vec<f64>]) -> Measured {
    let mut table = Table::new(
        &format!("Run time of {} ranks of {mib} MiB", options.ranks),
        &["kind", "way", "moves", "run time, s", "to no move", "a move costs, s"],
    );
    let mut rows = Vec::new();
    let mut bars = Vec::new();
    let kind = options.kinds.first();
    for (turn, took) in turns.iter().zip(runs) {
        let Some(none) = base(turn, turns).map(|at| &runs[at]) else { continue };
        let run = Spread::of(took.iter().copied());
        let each = took.iter().zip(none).map(|(t, none)| (t - none) / f64::from(turn.moves));
        let (ratio, cost) = match turn.moves {
            0 => (None, None),
            _ => (Spread::of_ratios(took, none), Spread::of(each)),
        };
        let way = match (turn.moves, turn.how.way) {
            (0, Way::Live) => "none, as a job".into(),
            (0, _) => "none".into(),
            _ => turn.how.name(),
        };
        let drawn = turn.moves == MOVES[MOVES.len() - 1] && Some(&turn.kind) == kind;
        if let (Some(cost), true) = (cost, drawn) {
            bars.push((turn.how.short().to_string(), vec![cost.median]));
        }
        table.rows.push(vec![
            turn.kind.name().to_uppercase(),
            way,
            turn.moves.to_string(),
            cell(run, digits),
            cell(ratio, percent),
            cell(cost, digits),
        ]);
        rows.push(json!({
            "kind": turn.kind.name(), "mib": mib, "way": turn.how.way.name(),
            "synced": turn.how.synced,
            "moves": turn.moves, "run_s": run, "to_none": ratio, "move_costs_s": cost,
        }));
    }
    Measured {
        tables: vec![table],
        notes: notes(),
        data: Value::from(rows),
        chart: Some(Chart::Bars {
            title: format!(
                "What each of three moves costs: {} ranks of kind {} of {mib} MiB",
                options.ranks,
                kind.map_or("", |kind| kind.name()).to_uppercase()
            ),
            y: "seconds".into(),
            parts: vec!["run time".into()],
            bars,
        }),
    }
}

fn notes() -> Vec<String> {
    vec![
        "All ranks move from node to node, at equal parts of the run; files are on the disk before \
         ranks go on. Run time: from the start of the nodes to the last result, which is that of \
         ranks that never move. live: a job of Eyrie whose ranks exchange faces in each step, \
         several times as long so that a move ends before the next one, against the same job \
         without moves; launching it is part of its time."
            .into(),
        "PPMR: +5.1 % of run time with migrations through its pipeline, +9.2 % to +38 % by way of \
         files.".into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_is_compared_with_its_own_kind_without_moves() {
        let all: Vec<Turn> =
            Kind::ALL.into_iter().flat_map(|kind| turns(kind, &Way::ALL)).collect();
        assert_eq!(all.len(), Kind::ALL.len() * (2 + Way::ALL.len() * MOVES.len()));
        for turn in &all {
            let base = all[base(turn, &all).unwrap()];
            assert_eq!((base.kind, base.moves), (turn.kind, 0));
            assert_eq!(base.how.way == Way::Live, turn.how.way == Way::Live);
        }
        assert_eq!(turns(Kind::Lu, &[Way::Live]).len(), 1 + MOVES.len());
        assert_eq!(middle(&[64, 8, 32]), 32);
    }
}
