//! `eyrie monitor skew`: how well nodes kept together.

use anyhow::{bail, Context};
use clap::Args;
use eyrie_cli::out;
use eyrie_monitor::skew::{between_nodes, Histogram, Taken};
use eyrie_units::nanoseconds;
use serde_json::{json, Value};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

/// How far apart several nodes took the same samples, from their JSON lines.
#[derive(Args)]
pub struct SkewArgs {
    /// Recordings, as --json or dump wrote them
    #[arg(required = true, value_name = "FILE.jsonl")]
    files: Vec<PathBuf>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &SkewArgs) -> anyhow::Result<i32> {
    let mut taken = Vec::new();
    let mut interval_ns = 0;
    for path in &args.files {
        let file =
            std::fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        for (at, line) in BufReader::new(file).lines().enumerate() {
            let line: Value = serde_json::from_str(&line?)
                .with_context(|| format!("{} line {}: not a sample", path.display(), at + 1))?;
            let (Some(intended_ns), Some(skew_ns)) =
                (line["intended_ns"].as_u64(), line["skew_ns"].as_i64())
            else {
                bail!("{} line {}: not a sample", path.display(), at + 1);
            };
            interval_ns = line["interval_ns"].as_u64().unwrap_or(0).max(interval_ns);
            // One node may have been recorded into several files, and several under one name.
            let node = format!("{} in {}", line["node"].as_str().unwrap_or(""), path.display());
            taken.push(Taken { node, intended_ns, skew_ns });
        }
    }
    let mut own = Histogram::default();
    let mut apart = Histogram::default();
    taken.iter().for_each(|t| own.add(t.skew_ns));
    between_nodes(&taken, interval_ns).iter().for_each(|ns| apart.add(*ns as i64));
    let (own, apart) = (own.summary(), apart.summary());
    if args.json {
        out::line(json!({ "late": own, "apart": apart }))?;
        return Ok(0);
    }
    let show = |what: &str, s: eyrie_monitor::skew::Summary| {
        out::line(format_args!(
            "{what} {} samples: median {}, 99 % within {}, at most {}",
            s.count,
            nanoseconds(s.median_ns),
            nanoseconds(s.p99_ns),
            nanoseconds(s.largest_ns as f64)
        ))
    };
    show("late    ", own)?;
    show("apart   ", apart)?;
    if apart.count == 0 {
        out::line("no moment was taken by two of these recordings")?;
    }
    Ok(0)
}
