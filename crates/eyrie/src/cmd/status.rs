//! `eyrie status`: the running jobs, or one of them.

use super::JobPlace;
use eyrie_cli::out;
use eyrie_cli::table::align;
use eyrie_controller::runtime::jobdir;
use eyrie_controller::runtime::users::{ask, Request};
use eyrie_units::plain;
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;

/// Show the running jobs, or one of them.
#[derive(clap::Args)]
pub struct StatusArgs {
    /// Name of the job; without it, a line for each
    job: Option<String>,
    #[command(flatten)]
    place: JobPlace,
    /// As JSON: an object, or without a name an array of them
    #[arg(long)]
    json: bool,
}

pub fn run(args: &StatusArgs) -> anyhow::Result<i32> {
    let base = args.place.base()?;
    let Some(job) = &args.job else {
        return all(&base, args.json);
    };
    let status = ask(&jobdir::find(&base, job)?, &Request::Status)?;
    if args.json {
        out::line(&status)?;
    } else {
        out::text(&in_full(&status)?)?;
    }
    Ok(0)
}

/// All jobs. One that does not answer is said, and holds up no other.
fn all(base: &Path, json: bool) -> anyhow::Result<i32> {
    let living = jobdir::living_jobs(base);
    let answers: Vec<anyhow::Result<Value>> = std::thread::scope(|scope| {
        let asked = living.iter().map(|(_, dir)| scope.spawn(move || ask(dir, &Request::Status)));
        let asked: Vec<_> = asked.collect();
        let answer = |a: std::thread::ScopedJoinHandle<_>| a.join().expect("a panic ends us");
        asked.into_iter().map(answer).collect()
    });
    let (mut jobs, mut code) = (Vec::new(), 0);
    for ((name, _), answer) in living.iter().zip(answers) {
        match answer {
            Ok(status) => jobs.push(status),
            // It has ended meanwhile.
            Err(_) if jobdir::find(base, name).is_err() => {}
            Err(e) => {
                out::say(format_args!("eyrie: job {name}: {e:#}"));
                code = 1;
            }
        }
    }
    if json {
        out::line(Value::from(jobs))?;
    } else if jobs.is_empty() && code == 0 {
        out::line(format_args!("no job is running in {}", base.display()))?;
    } else {
        let header = ["job", "ranks", "elapsed", "failures", "recoveries", "program"];
        let mut rows = vec![header.map(String::from).to_vec()];
        rows.extend(jobs.iter().map(row));
        out::text(&align(&rows))?;
    }
    Ok(code)
}

fn seconds(v: &Value) -> String {
    // In a table of jobs all have the same unit.
    format!("{:.1} s", v.as_f64().unwrap_or(0.0))
}

fn text(v: &Value) -> &str {
    v.as_str().unwrap_or_default()
}

/// A job in a line.
fn row(status: &Value) -> Vec<String> {
    let summary = &status["summary"];
    let lost = match summary["nodes_lost"].as_u64() {
        None | Some(0) => String::new(),
        Some(1) => " (1 node)".into(),
        Some(n) => format!(" ({n} nodes)"),
    };
    vec![
        text(&status["job"]).into(),
        summary["ranks"].to_string(),
        seconds(&summary["elapsed"]),
        format!("{}{lost}", summary["rank_failures"]),
        summary["recoveries"].to_string(),
        text(&status["program"]).into(),
    ]
}

/// How much a router has logged, in parentheses; nothing for other roles.
fn log_of(status: &Value, role: &str) -> String {
    let router = role.strip_prefix("router ").and_then(|number| number.parse::<u64>().ok());
    let logs = status["logs"].as_array().into_iter().flatten();
    let Some(log) = router.and_then(|r| logs.clone().find(|l| l["router"].as_u64() == Some(r)))
    else {
        return String::new();
    };
    let held = ["memory_bytes", "disk_bytes"].map(|part| log[part].as_u64().unwrap_or(0));
    format!(" (log {})", eyrie_units::bytes(held.iter().sum()))
}

/// In how many stores the newest images of the ranks are: "of 3 ranks in 2 stores, of 1 in none".
fn images(status: &Value) -> String {
    let mut ranks_by_copies = std::collections::BTreeMap::<u64, usize>::new();
    for rank in status["ranks"].as_array().into_iter().flatten() {
        *ranks_by_copies.entry(rank["image"]["copies"].as_u64().unwrap_or(0)).or_default() += 1;
    }
    let plural = |count: u64| if count == 1 { "" } else { "s" };
    let words = ranks_by_copies.into_iter().rev().map(|(copies, ranks)| {
        let ranks = format!("of {ranks} rank{}", plural(ranks as u64));
        match copies {
            0 => format!("{ranks} none yet"),
            _ => format!("{ranks} in {copies} store{}", plural(copies)),
        }
    });
    words.collect::<Vec<_>>().join(", ")
}

/// Ranks that have had no new image for too long, and for how long, by the reason.
fn overdue(status: &Value) -> std::collections::BTreeMap<&str, String> {
    let mut by_cause = std::collections::BTreeMap::<&str, Vec<(String, f64)>>::new();
    for rank in status["ranks"].as_array().into_iter().flatten() {
        if let Some(seconds) = rank["overdue"]["seconds"].as_f64() {
            let ranks = by_cause.entry(text(&rank["overdue"]["cause"])).or_default();
            ranks.push((rank["rank"].to_string(), seconds));
        }
    }
    let words = by_cause.into_iter().map(|(cause, ranks)| {
        let longest = ranks.iter().map(|(_, seconds)| *seconds).fold(0.0, f64::max);
        let plural = if ranks.len() == 1 { "" } else { "s" };
        let ranks = ranks.into_iter().map(|(rank, _)| rank).collect::<Vec<_>>().join(", ");
        (cause, format!("of rank{plural} {ranks} for {longest:.0} s"))
    });
    words.collect()
}

fn in_full(status: &Value) -> Result<String, std::fmt::Error> {
    let size = |v: &Value| eyrie_units::bytes(v.as_u64().unwrap_or(0));
    let (summary, mut out) = (&status["summary"], String::new());
    writeln!(out, "job         {}", text(&status["job"]))?;
    writeln!(out, "program     {}", plain::line(text(&status["program"])))?;
    writeln!(out, "elapsed     {}", seconds(&summary["elapsed"]))?;
    writeln!(out, "checkpoints {}", summary["checkpoints"])?;
    writeln!(
        out,
        "log         {} in memory, {} on disk",
        size(&status["log_memory_bytes"]),
        size(&status["log_disk_bytes"])
    )?;
    writeln!(out, "store       {}", size(&status["store_bytes"]))?;
    writeln!(out, "images      {}", images(status))?;
    for (cause, ranks) in overdue(status) {
        writeln!(out, "no image    {ranks}: {cause}")?;
    }
    writeln!(
        out,
        "failures    {} of ranks, {} of nodes",
        summary["rank_failures"], summary["nodes_lost"]
    )?;
    writeln!(
        out,
        "recoveries  {}, the longest {}",
        summary["recoveries"],
        seconds(&summary["longest_recovery"])
    )?;
    if status["cut_off"].is_number() {
        let time = seconds(&status["cut_off"]);
        writeln!(out, "cut off     for {time}: no node on another host answers")?;
    }
    let unprotected = status["unprotected"].as_array().map(Vec::as_slice).unwrap_or_default();
    if !unprotected.is_empty() {
        let ranks: Vec<String> = unprotected.iter().map(Value::to_string).collect();
        writeln!(out, "unprotected ranks {}", ranks.join(", "))?;
    }
    for missing in status["copies_missing"].as_array().into_iter().flatten() {
        writeln!(out, "kept once   {}", text(&missing["cause"]))?;
    }
    for moving in status["moves"].as_array().into_iter().flatten() {
        writeln!(out, "{}", super::moving::of_one(moving))?;
    }
    let journal = status["journal"].as_array().map(Vec::as_slice).unwrap_or_default();
    if !journal.is_empty() {
        let host = |node: &Value| match text(&status["hosts"][node.as_u64().unwrap_or(0) as usize])
        {
            "" => format!("node {node}"),
            name => name.to_string(),
        };
        let hosts: Vec<String> = journal.iter().map(host).collect();
        writeln!(out, "journal     on {}", hosts.join(", "))?;
    }
    let nodes = status["nodes_up"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (node, up) in nodes.iter().enumerate() {
        let ranks = (status["ranks"].as_array().into_iter().flatten())
            .filter(|r| r["node"].as_u64() == Some(node as u64))
            .map(|r| format!("{} ({})", r["rank"], text(&r["state"])));
        let roles = (status["roles"].as_array().into_iter().flatten())
            .filter(|r| r["node"].as_u64() == Some(node as u64))
            .map(|r| format!("{}{}", text(&r["role"]), log_of(status, text(&r["role"]))));
        let there: Vec<String> = ranks.chain(roles).collect();
        let drained = status["drained"].as_array().into_iter().flatten();
        let up = match up.as_bool() == Some(true) {
            true if drained.clone().any(|n| n.as_u64() == Some(node as u64)) => "drained",
            true => "up  ",
            false => "lost",
        };
        let host = text(&status["hosts"][node]);
        let host = if host.is_empty() { String::new() } else { format!("{host:<12} ") };
        writeln!(out, "node {node:<6} {host}{up} {}", there.join(", "))?;
    }
    Ok(out)
}
