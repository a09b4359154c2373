//! `eyrie monitor`: watch nodes and processes without slowing the job. Arguments and output; the
//! work is in eyrie-monitor.

mod args;
mod conduct;
mod dump;
mod plain;
mod rules;
mod skew;
mod table;
mod view;
mod watch;

use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};

/// Watch nodes and processes without slowing the job.
///
/// Samples every process and the node at the same moment on all nodes, as cheaply as the node
/// allows, and says with each sample what it cost and how late it was. On a terminal it shows a
/// live table (keys: c m t p n sort, k kernel threads, q ends); otherwise a line for each sample.
/// Runs as any user; better readers need capabilities, see docs/monitor.md.
#[derive(Args)]
#[command(after_long_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct MonitorArgs {
    #[command(subcommand)]
    command: Option<MonitorCommand>,
    #[command(flatten)]
    watch: watch::WatchArgs,
}

const EXAMPLES: &str = "Examples:
  What is going on here?
      eyrie monitor
  Record every process for an hour, at most 0.05 % of a core:
      eyrie monitor --json samples.jsonl --budget 0.05% --for 1h
  For Prometheus, on this machine only, and what happened before an accident:
      eyrie monitor --listen 9464 &
      eyrie monitor dump >before.jsonl
  Several nodes in one table:
      eyrie monitor --from node1:9464,node2:9464
  Will it disturb a job on 4096 nodes?
      eyrie-bench monitor slowdown --plot slowdown.svg";

#[derive(Subcommand)]
enum MonitorCommand {
    /// Write the ring of recent samples of a running monitor, as JSON lines
    Dump(dump::DumpArgs),
    /// Send ticks and the time to monitors that run with --sync once or always
    Conduct(conduct::ConductArgs),
    /// How far apart several nodes took the same samples, from their JSON lines
    Skew(skew::SkewArgs),
    /// Print the health rules, or check a file of rules
    Rules(rules::RulesArgs),
}

/// Where monitors of this user have their sockets: `$XDG_RUNTIME_DIR/eyrie`, else `/tmp/eyrie-UID`.
fn sockets() -> anyhow::Result<PathBuf> {
    let uid = rustix::process::getuid().as_raw();
    let dir = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if Path::new(&dir).is_dir() => Path::new(&dir).join("eyrie"),
        _ => PathBuf::from(format!("/tmp/eyrie-{uid}")),
    };
    eyrie_controller::runtime::jobdir::private(&dir)?;
    Ok(dir)
}

pub fn run(args: MonitorArgs) -> anyhow::Result<i32> {
    match args.command {
        None => watch::run(args.watch),
        Some(MonitorCommand::Dump(args)) => dump::run(&args),
        Some(MonitorCommand::Conduct(args)) => conduct::run(&args),
        Some(MonitorCommand::Skew(args)) => skew::run(&args),
        Some(MonitorCommand::Rules(args)) => rules::run(&args),
    }
}
