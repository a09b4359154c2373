//! How long a rank stands still for a checkpoint, by the size of its image.

use crate::job::{in_turn, Checkpoint, Contender, Job, Program, What};
use crate::report::{cell, digits, Table};
use crate::statistics::Spread;
use crate::{Effort, Setup};
use anyhow::Context;
use eyrie_wire::Rank;
use serde_json::{json, Value};
use std::time::Duration;

/// Checkpoints in one turn.
const CHECKPOINTS: usize = 4;
/// How long one may take.
const LIMIT: Duration = Duration::from_secs(120);

/// A rank of a size, and how it is captured.
struct Turn {
    mib: u64,
    pages: &'static str,
    mode: &'static str,
    images: &'static str,
    contender: Contender,
}

/// The table, the notes for it, and the same for programs.
pub fn measure(setup: &Setup, effort: Effort) -> anyhow::Result<(Table, String, Value)> {
    let sizes: &[u64] = if effort.quick { &[100, 1024] } else { &[1, 10, 100, 1024] };
    let mut turns = Vec::new();
    for &mib in sizes {
        let eyrie = |mode: &'static str| {
            Contender::eyrie("Eyrie", &format!("--checkpoint-every off --checkpoint-mode {mode}"))
        };
        let small = eyrie("async").with_env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0");
        let of = |pages, mode, contender: Contender| {
            let full = contender.clone().with_full_images();
            [("incremental", contender), ("full", full)].map(|(images, contender)| Turn {
                mib,
                pages,
                mode,
                images,
                contender,
            })
        };
        turns.extend(of("large", "async", eyrie("async")));
        turns.extend(of("4 KiB", "async", small));
        turns.extend(of("large", "sync", eyrie("sync")));
    }
    let name = |t: &Turn| {
        format!("pause at {} MiB, {}, {} pages, {} images", t.mib, t.mode, t.pages, t.images)
    };
    let runs = in_turn(effort, &turns, name, |t| checkpoints(setup, t))?;
    let mut table = Table::new(
        "How long a rank stands still for a checkpoint",
        &[
            "memory",
            "pages",
            "mode",
            "images",
            "image, MB",
            "stands still, ms",
            "stored after, ms",
            "Eagle",
        ],
    );
    let mut rows = Vec::new();
    for (turn, runs) in turns.iter().zip(&runs) {
        let all = || runs.iter().flatten();
        let pause = Spread::of(all().map(|t| t.pause * 1e3));
        let total = Spread::of(all().map(|t| t.total * 1e3));
        let length = Spread::of(all().map(|t| t.bytes as f64 / 1e6));
        table.rows.push(vec![
            eyrie_units::bytes(turn.mib << 20),
            turn.pages.into(),
            turn.mode.into(),
            turn.images.into(),
            cell(length, digits),
            cell(pause, digits),
            cell(total, digits),
            "not reported".into(),
        ]);
        rows.push(json!({
            "mib": turn.mib, "pages": turn.pages, "mode": turn.mode, "images": turn.images,
            "mb": length,
            "pause_ms": pause, "stored_ms": total,
        }));
    }
    let note = format!(
        "Stands still: from the agent's order to the rank's going on, as the rank measures it; \
         {CHECKPOINTS} checkpoints in each round, behind a first one, a twentieth of the pages \
         changed in each step. Large pages are what `eyrie run` asks of malloc by default. Image: \
         what it restores, of which an incremental one takes what has not changed from the one \
         before."
    );
    Ok((table, note, rows.into()))
}

/// Orders checkpoints of a rank that has all of its memory, one after the other.
fn checkpoints(setup: &Setup, turn: &Turn) -> anyhow::Result<Vec<Checkpoint>> {
    // More steps than are ever needed: the job is ended when enough is measured.
    let args = format!("--mb {} --rank 0 --percent 5 --spin 2000000 --steps 100000000", turn.mib);
    let program = Program::new(2, setup.example("memory"), &args);
    let mut job = Job::start(setup, &turn.contender, &program)?;
    job.await_event("rank 0", LIMIT, |e| {
        matches!(e.what, What::Connected { rank: Rank(0) }).then_some(())
    })?;
    // The first image has none to build on.
    job.checkpoint(Rank(0), turn.mib, LIMIT)?;
    let taken = (0..CHECKPOINTS).map(|_| job.checkpoint(Rank(0), turn.mib, LIMIT));
    taken.collect::<anyhow::Result<_>>().context("measuring the pause")
}
