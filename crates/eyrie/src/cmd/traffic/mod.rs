//! `eyrie traffic`: what the ranks of a running job send each other. The job counts; here it is
//! asked, shown and written to files.

use super::JobPlace;
use anyhow::Context;
use eyrie_cli::out;
use eyrie_controller::runtime::jobdir;
use eyrie_controller::runtime::users::ask;
use eyrie_interface::traffic::Traffic;
use eyrie_interface::{Request, Status};
use eyrie_units::positive_duration;
use std::path::{Path, PathBuf};
use std::time::Duration;

mod blocks;
mod matrix;
mod picture;
mod table;

/// Show what the ranks of a running job send each other: messages and bytes for each pair.
///
/// All messages count that the MPI library gives to libfabric: those of the program, and those that
/// the library makes of collective and one-sided operations. What ranks send again after a failure
/// counts once. It costs the job nothing.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    eyrie traffic melt\n  \
    eyrie traffic melt --window 10s --svg melt.svg\n  \
    eyrie traffic melt --matrix melt.txt; eyrie plan --network torus:4x4 --traffic matrix:melt.txt --failed 1,1")]
pub struct TrafficArgs {
    /// Name of the job (see `eyrie status`)
    job: String,
    /// Only what is sent from now on in so much time; without it, all since the job began
    #[arg(long, value_name = "TIME", value_parser = positive_duration)]
    window: Option<Duration>,
    /// Print one JSON object: each pair as [from, to, messages, bytes]
    #[arg(long)]
    json: bool,
    /// Also write a picture of it to this file, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Also write it to this file as `eyrie plan --traffic matrix:FILE` reads it
    #[arg(long, value_name = "FILE")]
    matrix: Option<PathBuf>,
    #[command(flatten)]
    place: JobPlace,
}

pub fn run(args: &TrafficArgs) -> anyhow::Result<i32> {
    let dir = jobdir::find(&args.place.base()?, &args.job)?;
    let now = || ask::<Traffic>(&dir, &Request::Traffic);
    let traffic = match args.window {
        None => now()?,
        Some(window) => {
            let before = now()?;
            std::thread::sleep(window);
            now()?.since(&before)
        }
    };
    if let Some(file) = &args.matrix {
        write(file, &matrix::text(&traffic)?)?;
    }
    if !args.json || args.svg.is_some() {
        let status: Status = ask(&dir, &Request::Status)?;
        let nodes = status.ranks.iter().map(|rank| rank.node).collect::<Vec<_>>();
        if let Some(file) = &args.svg {
            write(file, &picture::svg(&traffic, &nodes))?;
        }
        if !args.json {
            out::text(&table::in_full(&traffic, &nodes, args.window.is_some()))?;
        }
    }
    if args.json {
        out::line(serde_json::to_string(&traffic)?)?;
    }
    Ok(0)
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}
