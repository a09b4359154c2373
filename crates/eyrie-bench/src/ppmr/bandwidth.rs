//! The speed of gathering images, of pulling chunks, and of both together, by what PPMR varied.

use anyhow::{ensure, Context};
use serde_json::{json, Value};

use crate::job::in_turn;
use crate::plot::{Chart, Series};
use crate::ppmr::driver::{carry_out, Done};
use crate::ppmr::kinds::Kind;
use crate::ppmr::options::Options;
use crate::ppmr::task::{Feed, Sink, Task, Way, Work};
use crate::report::{cell, digits, Measured, Table};
use crate::statistics::Spread;
use crate::Effort;

/// Memory of all writers together, in MiB.
const TOTAL_MIB: u64 = 512;
/// Most bytes that are pulled in one turn; below it, the most chunks.
const PULLED: u64 = 1 << 30;
const CHUNKS: u64 = 8192;

/// A turn: the task, its position on the x axis, and its line.
struct Turn {
    task: Task,
    x: u64,
    line: String,
}

/// The texts of a figure.
struct Words {
    title: &'static str,
    /// The name of the first column, and of the x axis.
    x: &'static str,
    /// Whether that is a size in bytes.
    sizes: bool,
    /// The paper's figures, each as a line.
    paper: Vec<Series>,
    notes: Vec<String>,
}

/// Gathers images in the pool of their node, by number of writers and size of chunks.
pub fn aggregation(options: &Options, effort: Effort) -> anyhow::Result<Measured> {
    let place = options.place()?;
    let (writers, chunks): (&[u32], &[usize]) = if effort.quick {
        (&[1, 4], &[128])
    } else {
        (&[1, 2, 4, 8, 16], &[16, 64, 128, 512, 1024])
    };
    let mut turns = Vec::new();
    for &ranks in writers {
        for &kib in chunks {
            let work = filled(total(effort) / u64::from(ranks));
            let task = options.task(Way::Pipeline, work, place.path());
            let task = Task { sink: Sink::Stay, ranks, chunk: kib << 10, ..task };
            turns.push(Turn { task, x: u64::from(ranks), line: format!("chunks of {kib} KiB") });
        }
    }
    let speed =
        |done: &Done| (done.source.image_bytes, done.source.imaged_ns - done.source.ordered_ns);
    let paper = vec![Series {
        name: "PPMR, 8 to 16 writers: about 800 MB/s (limited by FUSE)".into(),
        points: vec![(8.0, 800.0), (16.0, 800.0)],
        paper: true,
    }];
    let note = format!(
        "Aggregation: processes with {} MiB together take images of themselves at once, which are \
         gathered in chunks in a pool of {} and dropped there. PPMR: about 800 MB/s at 8 to 16 \
         writers, limited by FUSE.",
        total(effort),
        eyrie_units::bytes(options.pool as u64)
    );
    let title = "Aggregation: images gathered in the pool, MB/s";
    let words = Words { title, x: "writers", sizes: false, paper, notes: vec![note] };
    measure(effort, &turns, speed, words)
}

/// Pulls chunks from one node to the other, by their size.
pub fn network(options: &Options, effort: Effort) -> anyhow::Result<Measured> {
    let place = options.place()?;
    let sizes: &[u64] = if effort.quick { &[16, 128] } else { &[4, 16, 64, 128, 256, 512, 1024] };
    let streams = options.streams;
    let mut turns = Vec::new();
    for &kib in sizes {
        let bytes = (CHUNKS * (kib << 10)).min(PULLED) / if effort.quick { 16 } else { 1 };
        let mut add = |way, streams, line: String| {
            let task = options.task(way, filled(1), place.path());
            let feed = Feed::Memory(bytes);
            let chunk = (kib << 10) as usize;
            let task = Task { feed, sink: Sink::Drop, chunk, streams, ..task };
            turns.push(Turn { task, x: kib << 10, line });
        };
        add(Way::Pipeline, 1, "TCP, 1 connection".into());
        add(Way::Pipeline, streams, format!("TCP, {streams} connections"));
        if options.ways.iter().any(|way| way.is_rdma()) {
            let provider = &options.rdma.provider;
            let line = format!("reads of remote memory, provider {provider}, {streams} under way");
            add(Way::RdmaPipeline, streams, line);
        }
    }
    let speed =
        |done: &Done| (done.source.image_bytes, done.target.pulled_ns - done.source.ordered_ns);
    let paper = vec![Series {
        name: "PPMR: 1450 MB/s at most, from 16 KiB up (16 Gbps InfiniBand)".into(),
        points: vec![(16384.0, 1450.0), (1048576.0, 1450.0)],
        paper: true,
    }];
    let note = "Network: the source's buffers are pulled again and again, from process to process \
                of one machine, and dropped. PPMR: 1450 MB/s at most on 16 Gbps InfiniBand, best \
                from 16 KiB up; 128 KiB chosen."
        .into();
    let title = "Network: chunks pulled by the other node, MB/s";
    let words = Words { title, x: "chunk", sizes: true, paper, notes: vec![note] };
    measure(effort, &turns, speed, words)
}

/// Gathers and pulls images, which are dropped at the target, by size of the pool.
pub fn pipeline(options: &Options, effort: Effort) -> anyhow::Result<Measured> {
    let place = options.place()?;
    let sizes: &[usize] = if effort.quick { &[1, 8] } else { &[1, 2, 4, 8, 16, 32] };
    let mut turns = Vec::new();
    for &mib in sizes {
        for way in [Way::Pipeline, Way::RdmaPipeline] {
            if way.is_rdma() && !options.ways.iter().any(|way| way.is_rdma()) {
                continue;
            }
            let memory = total(effort) / u64::from(options.ranks);
            let task = options.task(way, filled(memory.max(1)), place.path());
            let task = Task { sink: Sink::Drop, pool: mib << 20, ..task };
            turns.push(Turn { task, x: (mib << 20) as u64, line: way.name().into() });
        }
    }
    let speed =
        |done: &Done| (done.source.image_bytes, done.target.pulled_ns - done.source.ordered_ns);
    let note = format!(
        "Pipeline: images of {} processes with {} MiB together, gathered in chunks of {}, pulled, \
         and dropped at the target. PPMR: limited by the aggregation (about 800 MB/s), insensitive \
         to the size of the pool.",
        options.ranks,
        total(effort),
        eyrie_units::bytes(options.chunk as u64)
    );
    let title = "Pipeline: images gathered and pulled, MB/s";
    let words = Words { title, x: "pool", sizes: true, paper: vec![], notes: vec![note] };
    measure(effort, &turns, speed, words)
}

/// The work of ranks that have filled their memory and stand still after a step.
fn filled(mib: u64) -> Work {
    Work { kind: Kind::Lu, mib, steps: 2, moves: 1 }
}

fn total(effort: Effort) -> u64 {
    if effort.quick {
        TOTAL_MIB / 16
    } else {
        TOTAL_MIB
    }
}

/// Bytes in nanoseconds as megabytes (of a million) in a second.
fn mb_per_s((bytes, ns): (u64, u64)) -> f64 {
    bytes as f64 * 1e3 / ns.max(1) as f64
}

fn measure(
    effort: Effort,
    turns: &[Turn],
    speed: impl Fn(&Done) -> (u64, u64),
    words: Words,
) -> anyhow::Result<Measured> {
    let shown = |x: u64| if words.sizes { eyrie_units::bytes(x) } else { x.to_string() };
    let name = |turn: &Turn| format!("{} {}, {}", words.x, shown(turn.x), turn.line);
    let runs = in_turn(effort, turns, name, |turn| {
        let moved = carry_out(&turn.task)?.moves.pop().context("nothing moved")?;
        if turn.task.sink == Sink::Drop {
            ensure!(moved.target.pulled_bytes == moved.source.image_bytes, "bytes were lost");
        }
        Ok(mb_per_s(speed(&moved)))
    })?;
    let mut lines: Vec<&str> = Vec::new();
    let mut xs: Vec<u64> = Vec::new();
    for turn in turns {
        if !lines.contains(&turn.line.as_str()) {
            lines.push(&turn.line);
        }
        if !xs.contains(&turn.x) {
            xs.push(turn.x);
        }
    }
    let spread = |x: u64, line: &str| {
        let at = turns.iter().position(|turn| turn.x == x && turn.line == line)?;
        Spread::of(runs[at].iter().copied())
    };
    let header: Vec<&str> = [words.x].into_iter().chain(lines.iter().copied()).collect();
    let mut table = Table::new(words.title, &header);
    for &x in &xs {
        let cells = lines.iter().map(|line| cell(spread(x, line), digits));
        table.rows.push([shown(x)].into_iter().chain(cells).collect());
    }
    let series = lines.iter().map(|line| Series {
        name: line.to_string(),
        points: xs.iter().filter_map(|&x| Some((x as f64, spread(x, line)?.median))).collect(),
        paper: false,
    });
    let series = series.chain(words.paper).collect();
    let data: Vec<Value> = (turns.iter().zip(&runs))
        .map(|(turn, speeds)| {
            let speed = Spread::of(speeds.iter().copied());
            json!({ (words.x): turn.x, "line": turn.line, "mb_per_s": speed })
        })
        .collect();
    let chart = Chart::Lines {
        title: words.title.into(),
        x: words.x.into(),
        y: "MB/s".into(),
        sizes: words.sizes,
        series,
    };
    Ok(Measured { tables: vec![table], notes: words.notes, data: data.into(), chart: Some(chart) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_megabyte_is_a_million_bytes() {
        assert_eq!(mb_per_s((800_000_000, 1_000_000_000)), 800.0);
        assert!(mb_per_s((1, 0)).is_finite());
    }
}
