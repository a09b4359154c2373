//! `eyrie router`: a router of a job in a process of its own; hidden, started by `eyrie run`.

use eyrie_wire::control::Claim;
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct RouterArgs {
    /// Number of the router
    #[arg(long)]
    id: u32,
    /// The job's directory, with its socket and its secret
    #[arg(long)]
    job_dir: PathBuf,
}

impl RouterArgs {
    pub fn id(&self) -> u32 {
        self.id
    }
}

pub fn run(args: &RouterArgs) -> anyhow::Result<i32> {
    let secret = eyrie_agent::read_secret(&args.job_dir)?;
    let stream = eyrie_agent::connect(&args.job_dir, &secret, &Claim::Router { id: args.id })?;
    eyrie_router::role::serve(stream, secret)?;
    Ok(0)
}
