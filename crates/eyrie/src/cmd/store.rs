//! `eyrie store`: the store of a job in a process of its own; hidden, started by `eyrie run`.

use eyrie_wire::control::Claim;
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct StoreArgs {
    /// The job's directory, with its socket and its secret
    #[arg(long)]
    job_dir: PathBuf,
}

pub fn run(args: &StoreArgs) -> anyhow::Result<i32> {
    let secret = eyrie_agent::read_secret(&args.job_dir)?;
    let stream = eyrie_agent::connect(&args.job_dir, &secret, &Claim::Store)?;
    eyrie_store::role::serve(stream, secret)?;
    Ok(0)
}
