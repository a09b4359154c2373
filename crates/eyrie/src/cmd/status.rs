//! `eyrie status`: the running jobs, or one of them.

use super::JobPlace;
use eyrie_controller::runtime::jobdir;
use eyrie_controller::runtime::users::{ask, Request};
use serde_json::Value;

/// Show the running jobs, or one of them.
#[derive(clap::Args)]
pub struct StatusArgs {
    /// Name of the job; without it, the names of all
    job: Option<String>,
    #[command(flatten)]
    place: JobPlace,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &StatusArgs) -> anyhow::Result<i32> {
    let base = args.place.base()?;
    let Some(job) = &args.job else {
        let names = jobdir::living_jobs(&base);
        if args.json {
            println!("{}", serde_json::json!({ "jobs": names }));
        } else if names.is_empty() {
            println!("no job is running in {}", base.display());
        } else {
            names.iter().for_each(|name| println!("{name}"));
        }
        return Ok(0);
    };
    let status = ask(&jobdir::find(&base, job)?, &Request::Status)?;
    if args.json {
        println!("{status}");
    } else {
        print(&status);
    }
    Ok(0)
}

fn print(status: &Value) {
    let number = |v: &Value| v.as_f64().unwrap_or(0.0);
    let mib = |v: &Value| number(v) / f64::from(1 << 20);
    let summary = &status["summary"];
    println!("job         {}", status["job"].as_str().unwrap_or(""));
    println!("program     {}", status["program"].as_str().unwrap_or(""));
    println!("elapsed     {:.1} s", number(&summary["elapsed"]));
    println!("checkpoints {}", summary["checkpoints"]);
    println!(
        "log         {:.1} MiB in memory, {:.1} MiB on disk",
        mib(&status["log_memory_bytes"]),
        mib(&status["log_disk_bytes"])
    );
    println!("store       {:.1} MiB", mib(&status["store_bytes"]));
    println!(
        "failures    {} of ranks, {} of nodes",
        summary["rank_failures"], summary["nodes_lost"]
    );
    println!(
        "recoveries  {}, the longest {:.3} s",
        summary["recoveries"],
        number(&summary["longest_recovery"])
    );
    let nodes = status["nodes_up"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (node, up) in nodes.iter().enumerate() {
        let ranks: Vec<String> = (status["ranks"].as_array().into_iter().flatten())
            .filter(|r| r["node"].as_u64() == Some(node as u64))
            .map(|r| format!("{} ({})", r["rank"], r["state"].as_str().unwrap_or("")))
            .collect();
        let standing = if up.as_bool() == Some(true) { "up  " } else { "lost" };
        println!("node {node:<6} {standing} {}", ranks.join(", "));
    }
}
