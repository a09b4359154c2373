//! How long it takes to move all ranks of a node to another one, phase by phase, by each way, and
//! how much memory and how many bytes that needs. All ranks stand still meanwhile, except in the
//! live way.

use anyhow::Context;
use serde_json::{json, Value};

use crate::job::in_turn;
use crate::plot::Chart;
use crate::ppmr::driver::{carry_out, Done, Undisturbed};
use crate::ppmr::kinds::Kind;
use crate::ppmr::live::{LiveMove, LiveRuns};
use crate::ppmr::options::Options;
use crate::ppmr::pace::Pace;
use crate::ppmr::task::{Task, Way, Work};
use crate::report::{cell, digits, times, Measured, Table};
use crate::statistics::Spread;
use crate::Effort;

/// A way, and whether its files must be on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct How {
    pub way: Way,
    pub synced: bool,
}

impl How {
    pub fn name(self) -> String {
        match (self.way.has_files(), self.synced) {
            (true, true) => format!("{}, synced", self.way.name()),
            _ => self.way.name().into(),
        }
    }

    /// The label below a bar.
    pub fn short(self) -> &'static str {
        match (self.way, self.synced) {
            (Way::Local, false) => "local",
            (Way::Local, true) => "local+sync",
            (Way::Shared, false) => "shared",
            (Way::Shared, true) => "shared+sync",
            (Way::RdmaLocal, false) => "rdma-local",
            (Way::RdmaLocal, true) => "rdma-l.+sync",
            (Way::Pipeline, _) => "pipeline",
            (Way::RdmaPipeline, _) => "rdma-pipel.",
            (Way::Live, _) => "live",
        }
    }

    fn all(ways: &[Way]) -> Vec<How> {
        let both = |way: &Way| {
            let synced: &[bool] = if way.has_files() { &[true, false] } else { &[false] };
            synced.iter().map(|&synced| How { way: *way, synced }).collect::<Vec<_>>()
        };
        ways.iter().flat_map(both).collect()
    }
}

/// The time of one migration in seconds, and what it needed.
#[derive(Clone, Copy, Debug)]
struct Taken {
    /// From the order until all images were written, until all were pulled, until all ranks ran.
    /// With files one follows the other; in a pipeline they run at the same time. The live way has
    /// only the last.
    imaged: f64,
    pulled: f64,
    running: f64,
    /// The longest time that a rank stood still.
    still: f64,
    moved_bytes: u64,
    file_bytes: u64,
    /// The most memory of both nodes, without ranks; not known for a job.
    memory_kib: Option<u64>,
}

impl Taken {
    fn of(task: &Task, Done { source, target }: &Done) -> Taken {
        // Ranks may run before the end of the processes that they were is noticed.
        let since =
            |ns: u64| ns.min(target.running_ns).saturating_sub(source.ordered_ns) as f64 / 1e9;
        let copies = match task.way {
            Way::Local | Way::RdmaLocal => 2,
            Way::Shared => 1,
            Way::Pipeline | Way::RdmaPipeline | Way::Live => 0,
        };
        Taken {
            imaged: since(source.imaged_ns),
            pulled: since(target.pulled_ns.max(source.imaged_ns)),
            running: since(target.running_ns),
            still: since(target.running_ns),
            moved_bytes: target.pulled_bytes,
            file_bytes: copies * source.image_bytes,
            memory_kib: Some(source.memory_kib + target.memory_kib),
        }
    }

    fn of_live(moved: &LiveMove) -> Taken {
        let LiveMove { total, still, bytes } = *moved;
        let imaged = total;
        let pulled = total;
        let running = total;
        Taken {
            imaged,
            pulled,
            running,
            still,
            moved_bytes: bytes,
            file_bytes: 0,
            memory_kib: None,
        }
    }

    /// Image, transfer and restore, as parts of the whole.
    fn phases(&self) -> [f64; 3] {
        [self.imaged, self.pulled - self.imaged, self.running - self.pulled]
    }
}

/// One kind of program with this much memory, moved in one way.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Turn {
    kind: Kind,
    mib: u64,
    how: How,
}

/// Moves all ranks by each way, for each kind and each size of memory, in turn.
pub fn measure(options: &Options, effort: Effort) -> anyhow::Result<Measured> {
    let hows = How::all(&options.ways);
    let sizes = options.kinds.iter().flat_map(|kind| options.mib.iter().map(|mib| (*kind, *mib)));
    let turns: Vec<Turn> = sizes
        .flat_map(|(kind, mib)| hows.iter().map(move |how| Turn { kind, mib, how: *how }))
        .collect();
    let label = |Turn { kind, mib, how }: &Turn| {
        format!("{} × {mib} MiB of {}, {}", options.ranks, kind.name(), how.name())
    };
    let mut undisturbed = Undisturbed::default();
    let mut live = LiveRuns::default();
    let mut pace = Pace::new(options.ranks, effort);
    let runs = in_turn(effort, &turns, label, |turn| {
        let work = Work { kind: turn.kind, mib: turn.mib, steps: 2, moves: 1 };
        if turn.how.way == Way::Live {
            // A live move takes longer, and so does its run.
            let steps = pace.live_steps(turn.kind, turn.mib);
            let ran = live.run(options, Work { steps, ..work })?;
            return Ok(Taken::of_live(ran.moves.first().context("nothing moved")?));
        }
        let place = options.place()?;
        let synced = turn.how.synced;
        let task = Task { synced, ..options.task(turn.how.way, work, place.path()) };
        let ran = carry_out(&task)?;
        undisturbed.check(&task, &ran)?;
        Ok(Taken::of(&task, ran.moves.first().context("nothing moved")?))
    })?;
    let of_kind = |kind: Kind| {
        let of_kind = turns.iter().zip(&runs).filter(move |(turn, _)| turn.kind == kind);
        of_kind.map(|(turn, taken)| (*turn, &taken[..])).collect::<Vec<_>>()
    };
    let mut rows = Vec::new();
    let tables = options.kinds.iter().map(|kind| table(options, *kind, &of_kind(*kind), &mut rows));
    let tables = tables.collect();
    let chart = options.kinds.first().and_then(|kind| chart(options, *kind, &of_kind(*kind)));
    Ok(Measured { tables, notes: notes(), data: Value::from(rows), chart })
}

/// The rows of one kind, and those for programs.
fn table(
    options: &Options,
    kind: Kind,
    turns: &[(Turn, &[Taken])],
    rows: &mut Vec<Value>,
) -> Table {
    let mut table = Table::new(
        &format!("{} ranks of kind {} leave a node", options.ranks, kind.name().to_uppercase()),
        &[
            "memory of a rank",
            "way",
            "image, s",
            "transfer, s",
            "restore, s",
            "in all, s",
            "a rank stood still, s",
            "to the pipeline",
            "sent, MiB",
            "files, MiB",
            "memory of the nodes, MiB",
        ],
    );
    for (turn, taken) in turns {
        let same = |t: &&(Turn, &[Taken])| t.0.mib == turn.mib && t.0.how.way == Way::Pipeline;
        let pipeline = turns.iter().find(same).map(|t| t.1).unwrap_or_default();
        rows.push(row(turn, taken, pipeline, &mut table));
    }
    table
}

/// A row for people, and one for programs.
fn row(turn: &Turn, taken: &[Taken], pipeline: &[Taken], table: &mut Table) -> Value {
    let Turn { kind, mib, how } = turn;
    let all = |of: &[Taken]| -> Vec<f64> { of.iter().map(|t| t.running).collect() };
    let phase = |i: usize| {
        let parts = taken.iter().map(|t| t.phases()[i]);
        if how.way == Way::Live {
            None
        } else {
            Spread::of(parts)
        }
    };
    let [image, transfer, restore] = [phase(0), phase(1), phase(2)];
    let total = Spread::of(all(taken));
    let still = Spread::of(taken.iter().map(|t| t.still));
    let ratio = Spread::of_ratios(&all(taken), &all(pipeline));
    let of_mib = |bytes: fn(&Taken) -> Option<u64>| {
        Spread::of(taken.iter().filter_map(bytes).map(|bytes| bytes as f64 / f64::from(1 << 20)))
    };
    let sent = of_mib(|t| Some(t.moved_bytes));
    let files = of_mib(|t| Some(t.file_bytes));
    let memory = of_mib(|t| Some(t.memory_kib? << 10));
    let median = |s: Option<Spread>| s.map_or("-".into(), |s| format!("{:.0}", s.median));
    table.rows.push(vec![
        format!("{mib} MiB"),
        how.name(),
        cell(image, digits),
        cell(transfer, digits),
        cell(restore, digits),
        cell(total, digits),
        cell(still, digits),
        cell(ratio, times),
        median(sent),
        median(files),
        median(memory),
    ]);
    json!({
        "kind": kind.name(), "mib": mib, "way": how.way.name(), "synced": how.synced,
        "image_s": image,
        "transfer_s": transfer, "restore_s": restore, "total_s": total, "still_s": still,
        "to_pipeline": ratio,
        "sent_mib": sent, "files_mib": files, "memory_mib": memory,
    })
}

fn notes() -> Vec<String> {
    vec![
        "Files: image, transfer and restore follow each other. Pipelines: they run at the same \
         time; what stands under \"transfer\" and \"restore\" is what is left when the phase \
         before has ended. Every rank that was moved went on and printed what one prints that \
         stays."
            .into(),
        "Files are in the page cache, or (synced) each is on the disk before ranks go on. Both \
         nodes are processes of one machine, and all directories are on its one disk. Memory of \
         the nodes: the most that both needed besides the ranks; files in the page cache come on \
         top."
            .into(),
        "live: `eyrie migrate` of all ranks of a job to another node, which compute and exchange \
         messages meanwhile; what is sent is sent in rounds. A rank stood still: the longest of \
         them; for all other ways all ranks stand still all the time."
            .into(),
        "PPMR (8 ranks of a node, NPB LU, BT and SP, 16 Gbps InfiniBand, disks): 10.7 times faster \
         than the slowest way with files, 4.3 and 2.3 times faster than the others."
            .into(),
    ]
}

/// The phases of each way, for the largest memory.
fn chart(options: &Options, kind: Kind, turns: &[(Turn, &[Taken])]) -> Option<Chart> {
    let largest = *options.mib.iter().max()?;
    let of_largest = turns.iter().filter(|(turn, _)| turn.mib == largest);
    let bars = of_largest.map(|(Turn { how, .. }, taken)| {
        let parts = |t: &Taken| match (how.way, t.phases()) {
            (Way::Live, _) => [t.running - t.still, t.still, 0.0, 0.0],
            (_, [image, transfer, restore]) => [0.0, image, transfer, restore],
        };
        let median = |i: usize| Spread::of(taken.iter().map(|t| parts(t)[i]));
        let heights = (0..4).filter_map(|i| Some(median(i)?.median)).collect();
        (how.short().to_string(), heights)
    });
    let name = kind.name().to_uppercase();
    Some(Chart::Bars {
        title: format!("{} ranks of kind {name} of {largest} MiB leave a node", options.ranks),
        y: "seconds".into(),
        parts: ["rounds, computing", "image (live: still)", "transfer", "restore"]
            .map(String::from)
            .to_vec(),
        bars: bars.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ppmr::task::{SourceReport, TargetReport};

    #[test]
    fn phases_add_up_to_the_whole() {
        let source =
            SourceReport { ordered_ns: 10, imaged_ns: 1_000_000_010, ..Default::default() };
        let target = TargetReport {
            pulled_ns: 3_000_000_010,
            running_ns: 3_500_000_010,
            ..Default::default()
        };
        let work = Work { kind: Kind::Lu, mib: 1, steps: 2, moves: 1 };
        let task = crate::ppmr::options::tests::some().task(Way::Local, work, "/".as_ref());
        let taken = Taken::of(&task, &Done { source, target });
        assert_eq!((taken.phases(), taken.running), ([1.0, 2.0, 0.5], 3.5));
    }

    #[test]
    fn only_files_can_be_synced() {
        let names: Vec<String> =
            How::all(&[Way::Local, Way::Pipeline]).into_iter().map(How::name).collect();
        assert_eq!(names, ["local, synced", "local", "pipeline"]);
    }
}
