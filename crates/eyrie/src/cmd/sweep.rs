//! `eyrie sweep`: what removes the rest of an agent that was killed; hidden, started by each agent.

use std::path::PathBuf;

#[derive(clap::Args)]
pub struct SweepArgs {
    /// The job's directory on this host
    dir: PathBuf,
}

pub fn run(args: &SweepArgs) -> anyhow::Result<i32> {
    eyrie_agent::sweep(&args.dir, std::io::stdin().lock());
    Ok(0)
}
