//! `eyrie status`: the running jobs, or one of them.

mod domains;

use super::JobPlace;
use eyrie_cli::out;
use eyrie_cli::table::align;
use eyrie_controller::runtime::jobdir;
use eyrie_controller::runtime::users::ask;
use eyrie_interface::status::OverdueStatus;
use eyrie_interface::{Request, Status};
use eyrie_units::plain;
use eyrie_wire::{NodeId, Rank, RouterId};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

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
    let Some(job) = &args.job else {
        return all(&args.place.base()?, args.json);
    };
    args.place.at(job, |dir| {
        let status: Status = ask(dir, &Request::Status)?;
        if args.json {
            out::line(serde_json::to_string(&status)?)?;
        } else {
            out::text(&in_full(&status)?)?;
        }
        Ok(0)
    })
}

/// All jobs. One that does not answer is said, and holds up no other.
fn all(base: &Path, json: bool) -> anyhow::Result<i32> {
    let living = jobdir::living_jobs(base);
    let answers: Vec<anyhow::Result<Status>> = std::thread::scope(|scope| {
        let asked = living.iter().map(|(_, dir)| scope.spawn(move || ask(dir, &Request::Status)));
        let asked: Vec<_> = asked.collect();
        let answer = |a: std::thread::ScopedJoinHandle<_>| a.join().expect("a panic ends us");
        asked.into_iter().map(answer).collect()
    });
    let mut jobs = Vec::new();
    let mut code = 0;
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
        out::line(serde_json::to_string(&jobs)?)?;
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

fn seconds(time: Duration) -> String {
    // In a table of jobs all have the same unit.
    format!("{:.1} s", time.as_secs_f64())
}

/// A job in a line.
fn row(status: &Status) -> Vec<String> {
    let summary = &status.summary;
    let lost = match summary.nodes_lost {
        0 => String::new(),
        1 => " (1 node)".into(),
        n => format!(" ({n} nodes)"),
    };
    vec![
        status.job.clone(),
        summary.ranks.to_string(),
        seconds(summary.elapsed),
        format!("{}{lost}", summary.rank_failures),
        summary.recoveries.to_string(),
        status.program.clone(),
    ]
}

/// How much a router has logged, in parentheses; nothing for other roles.
fn log_of(status: &Status, role: &str) -> String {
    // The gateway comes after all routers.
    let gateway = status.logs.last().filter(|_| role == "gateway");
    let router = role.strip_prefix("router ").and_then(|number| number.parse().ok());
    let log = router
        .and_then(|router: u32| status.logs.iter().find(|log| log.router == RouterId(router)))
        .or(gateway);
    let held = log.map(|log| eyrie_units::bytes(log.memory_bytes + log.disk_bytes));
    held.map_or(String::new(), |held| format!(" (log {held})"))
}

/// In how many stores the newest images of the ranks are: "of 3 ranks in 2 stores, of 1 in none".
fn images(status: &Status) -> String {
    let mut ranks_by_copies = BTreeMap::<usize, usize>::new();
    for rank in &status.ranks {
        let copies = rank.image.as_ref().map_or(0, |image| image.copies);
        *ranks_by_copies.entry(copies).or_default() += 1;
    }
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let words = ranks_by_copies.into_iter().rev().map(|(copies, ranks)| {
        let ranks = format!("of {ranks} rank{}", plural(ranks));
        match copies {
            0 => format!("{ranks} none yet"),
            _ => format!("{ranks} in {copies} store{}", plural(copies)),
        }
    });
    let words = words.collect::<Vec<_>>().join(", ");
    let newest = || status.ranks.iter().filter_map(|rank| rank.image.as_ref());
    match newest().map(|image| image.file_bytes).sum() {
        0 => words,
        files => {
            let all = newest().map(|image| image.bytes).sum();
            let [files, all] = [files, all].map(eyrie_units::bytes);
            format!("{words}; {all}, with {files} of mapped files")
        }
    }
}

/// Ranks that have had no new image for too long, and for how long, by the reason.
fn overdue(status: &Status) -> BTreeMap<&str, String> {
    let mut by_cause = BTreeMap::<&str, Vec<(Rank, f64)>>::new();
    for rank in &status.ranks {
        if let Some(OverdueStatus { seconds, cause }) = &rank.overdue {
            by_cause.entry(cause).or_default().push((rank.instance.rank, *seconds));
        }
    }
    let words = by_cause.into_iter().map(|(cause, ranks)| {
        let longest = ranks.iter().map(|(_, seconds)| *seconds).fold(0.0, f64::max);
        let plural = if ranks.len() == 1 { "" } else { "s" };
        let ranks: Vec<Rank> = ranks.into_iter().map(|(rank, _)| rank).collect();
        (cause, format!("of rank{plural} {} for {longest:.0} s", list(&ranks)))
    });
    words.collect()
}

/// `1, 2`.
fn list(ranks: &[Rank]) -> String {
    ranks.iter().map(Rank::to_string).collect::<Vec<_>>().join(", ")
}

fn in_full(status: &Status) -> Result<String, std::fmt::Error> {
    let size = eyrie_units::bytes;
    let summary = &status.summary;
    let mut out = String::new();
    writeln!(out, "job         {}", status.job)?;
    writeln!(out, "program     {}", plain::line(&status.program))?;
    writeln!(out, "elapsed     {}", seconds(summary.elapsed))?;
    writeln!(out, "checkpoints {}", summary.checkpoints)?;
    writeln!(
        out,
        "log         {} in memory, {} on disk",
        size(status.log_memory_bytes),
        size(status.log_disk_bytes)
    )?;
    writeln!(out, "store       {}", size(status.store_bytes))?;
    writeln!(out, "images      {}", images(status))?;
    for (cause, ranks) in overdue(status) {
        writeln!(out, "no image    {ranks}: {cause}")?;
    }
    writeln!(
        out,
        "failures    {} of ranks, {} of nodes",
        summary.rank_failures, summary.nodes_lost
    )?;
    writeln!(
        out,
        "recoveries  {}, the longest {}",
        summary.recoveries,
        seconds(summary.longest_recovery)
    )?;
    if let Some(cut_off) = status.cut_off {
        writeln!(out, "cut off     for {cut_off:.1} s: no node on another host answers")?;
    }
    if !status.unprotected.is_empty() {
        writeln!(out, "unprotected ranks {}", list(&status.unprotected))?;
    }
    for line in domains::lines(status) {
        writeln!(out, "{line}")?;
    }
    for missing in &status.copies_missing {
        writeln!(out, "kept once   {}", missing.cause)?;
    }
    for moving in &status.moves {
        writeln!(out, "{}", super::moving::of_one(moving))?;
    }
    if !status.journal.is_empty() {
        let host = |node: &NodeId| match status.hosts.get(node.index()) {
            None => format!("node {node}"),
            Some(name) => name.clone(),
        };
        let hosts: Vec<String> = status.journal.iter().map(host).collect();
        writeln!(out, "journal     on {}", hosts.join(", "))?;
    }
    for (node, is_up) in (0..).zip(&status.nodes_up) {
        let ranks = status.ranks.iter().filter(|rank| rank.node == NodeId(node));
        let ranks = ranks.map(|rank| format!("{} ({})", rank.instance.rank, rank.state));
        let roles = status.roles.iter().filter(|role| role.node == NodeId(node));
        let roles = roles.map(|role| format!("{}{}", role.role, log_of(status, &role.role)));
        let there: Vec<String> = ranks.chain(roles).collect();
        let up = if !is_up {
            "lost"
        } else if status.drained.contains(&NodeId(node)) {
            "drained"
        } else {
            "up  "
        };
        let host = status.hosts.get(node as usize);
        let host = host.map_or(String::new(), |host| format!("{host:<12} "));
        writeln!(out, "node {node:<6} {host}{up} {}", there.join(", "))?;
    }
    Ok(out)
}
