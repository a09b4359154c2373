//! How long it takes to bring all ranks of a node to another one, phase by phase, by each way, and
//! what memory and bytes that needs. All ranks stand still for all of it.

use serde_json::{json, Value};

use crate::job::in_turn;
use crate::plot::Chart;
use crate::ppmr::driver::{carry_out, Done, Undisturbed};
use crate::ppmr::options::Options;
use crate::ppmr::task::{Task, Way};
use crate::report::{cell, digits, times, Measured, Table};
use crate::statistics::Spread;
use crate::Effort;

/// A way, and whether its files must be on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct How {
    way: Way,
    synced: bool,
}

impl How {
    fn name(self) -> String {
        match (self.way.has_files(), self.synced) {
            (true, true) => format!("{}, synced", self.way.name()),
            _ => self.way.name().into(),
        }
    }

    /// For below a bar.
    fn short(self) -> &'static str {
        match (self.way, self.synced) {
            (Way::Local, false) => "local",
            (Way::Local, true) => "local+sync",
            (Way::Shared, false) => "shared",
            (Way::Shared, true) => "shared+sync",
            (Way::RdmaLocal, false) => "rdma-local",
            (Way::RdmaLocal, true) => "rdma-l.+sync",
            (Way::Pipeline, _) => "pipeline",
            (Way::RdmaPipeline, _) => "rdma-pipel.",
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

/// What one migration took, seconds, and what it needed.
#[derive(Clone, Copy, Debug)]
struct Taken {
    /// From the order until all images were written, until all had been pulled, until all ranks
    /// ran: one after the other for files, at the same time in a pipeline.
    imaged: f64,
    pulled: f64,
    running: f64,
    moved_bytes: u64,
    file_bytes: u64,
    /// The most of both nodes, without ranks.
    memory_kib: u64,
}

impl Taken {
    fn of(task: &Task, Done { source, target }: &Done) -> Taken {
        let since = |ns: u64| ns.saturating_sub(source.ordered_ns) as f64 / 1e9;
        let copies = match task.way {
            Way::Local | Way::RdmaLocal => 2,
            Way::Shared => 1,
            Way::Pipeline | Way::RdmaPipeline => 0,
        };
        Taken {
            imaged: since(source.imaged_ns),
            pulled: since(target.pulled_ns.max(source.imaged_ns)),
            running: since(target.running_ns),
            moved_bytes: target.pulled_bytes,
            file_bytes: copies * source.image_bytes,
            memory_kib: source.memory_kib + target.memory_kib,
        }
    }

    /// Image, transfer and restore, as parts of the whole.
    fn phases(&self) -> [f64; 3] {
        [self.imaged, self.pulled - self.imaged, self.running - self.pulled]
    }
}

/// Moves all ranks by each way, for each size of memory, in turn about.
pub fn measure(options: &Options, effort: Effort) -> anyhow::Result<Measured> {
    let hows = How::all(&options.ways);
    let turns: Vec<(u64, How)> =
        options.mib.iter().flat_map(|mib| hows.iter().map(|how| (*mib, *how))).collect();
    let label = |(mib, how): &(u64, How)| format!("{} × {mib} MiB, {}", options.ranks, how.name());
    let mut undisturbed = Undisturbed::default();
    let runs = in_turn(effort, &turns, label, |(mib, how)| {
        let place = options.place()?;
        let task = Task { synced: how.synced, ..options.task(how.way, *mib, place.path()) };
        let done = carry_out(&task)?;
        undisturbed.check(&task, &done)?;
        Ok(Taken::of(&task, &done))
    })?;
    Ok(describe(options, &turns, &runs))
}

fn describe(options: &Options, turns: &[(u64, How)], runs: &[Vec<Taken>]) -> Measured {
    let mut table = Table::new(
        &format!("{} ranks leave a node", options.ranks),
        &[
            "memory of a rank",
            "way",
            "image, s",
            "transfer, s",
            "restore, s",
            "in all, s",
            "to the pipeline",
            "sent, MiB",
            "files, MiB",
            "memory of the nodes, MiB",
        ],
    );
    let mut rows = Vec::new();
    for ((mib, how), taken) in turns.iter().zip(runs) {
        let in_pipeline = turns.iter().position(|t| t.0 == *mib && t.1.way == Way::Pipeline);
        let pipeline = in_pipeline.map(|at| &runs[at][..]).unwrap_or_default();
        rows.push(row(*mib, *how, taken, pipeline, &mut table));
    }
    Measured {
        tables: vec![table],
        notes: notes(),
        data: Value::from(rows),
        chart: chart(options, turns, runs),
    }
}

/// A row for people, and one for programs.
fn row(mib: u64, how: How, taken: &[Taken], pipeline: &[Taken], table: &mut Table) -> Value {
    let all = |of: &[Taken]| -> Vec<f64> { of.iter().map(|t| t.running).collect() };
    let phase = |i: usize| Spread::of(taken.iter().map(|t| t.phases()[i]));
    let [image, transfer, restore] = [phase(0), phase(1), phase(2)];
    let total = Spread::of(all(taken));
    let ratio = Spread::of_ratios(&all(taken), &all(pipeline));
    let of_mib = |bytes: fn(&Taken) -> u64| {
        Spread::of(taken.iter().map(|t| bytes(t) as f64 / f64::from(1 << 20)))
    };
    let sent = of_mib(|t| t.moved_bytes);
    let files = of_mib(|t| t.file_bytes);
    let memory = of_mib(|t| t.memory_kib << 10);
    let median = |s: Option<Spread>| s.map_or("-".into(), |s| format!("{:.0}", s.median));
    table.rows.push(vec![
        format!("{mib} MiB"),
        how.name(),
        cell(image, digits),
        cell(transfer, digits),
        cell(restore, digits),
        cell(total, digits),
        cell(ratio, times),
        median(sent),
        median(files),
        median(memory),
    ]);
    json!({
        "mib": mib, "way": how.way.name(), "synced": how.synced, "image_s": image, "transfer_s": transfer,
        "restore_s": restore, "total_s": total, "to_pipeline": ratio, "sent_mib": sent, "files_mib": files,
        "memory_mib": memory,
    })
}

fn notes() -> Vec<String> {
    vec![
        "Files: image, transfer and restore follow each other. Pipelines: they run at the same time; what stands under \
         \"transfer\" and \"restore\" is what is left when the phase before has ended. Every rank that was moved went on \
         and printed what one prints that stays."
            .into(),
        "Files are in the page cache, or (synced) each is on the disk before anybody goes on. Both nodes are processes of \
         one machine, and all directories are on its one disk. Memory of the nodes: the most that both needed besides the ranks; \
         files in the page cache come on top."
            .into(),
        "PPMR (8 ranks of a node, NPB LU, BT and SP, 16 Gbps InfiniBand, disks): 10.7 times faster than the slowest way \
         with files, 4.3 and 2.3 times faster than the others."
            .into(),
    ]
}

/// The phases of each way, of the largest memory.
fn chart(options: &Options, turns: &[(u64, How)], runs: &[Vec<Taken>]) -> Option<Chart> {
    let largest = *options.mib.iter().max()?;
    let of_largest = turns.iter().zip(runs).filter(|((mib, _), _)| *mib == largest);
    let bars = of_largest.map(|((_, how), taken)| {
        let median = |i: usize| Spread::of(taken.iter().map(|t| t.phases()[i]));
        let heights = (0..3).filter_map(|i| Some(median(i)?.median)).collect();
        (how.short().to_string(), heights)
    });
    Some(Chart::Bars {
        title: format!("{} ranks of {largest} MiB leave a node", options.ranks),
        y: "seconds".into(),
        parts: ["image", "transfer", "restore"].map(String::from).to_vec(),
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
        let rdma = crate::ppmr::task::Rdma { library: "".into(), provider: "".into() };
        let options = Options {
            ways: vec![],
            ranks: 1,
            mib: vec![],
            pool: 1,
            chunk: 1,
            streams: 1,
            dir: None,
            rdma,
            address: String::new(),
            rate: None,
        };
        let task = options.task(Way::Local, 1, std::path::Path::new("/"));
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
