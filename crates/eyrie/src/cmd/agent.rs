//! `eyrie agent`: a node; hidden, started by `eyrie run`.

use std::path::PathBuf;

#[derive(clap::Args)]
pub struct AgentArgs {
    /// Number of the node
    #[arg(long)]
    node: u32,
    /// The job's directory, with its socket and its secret
    #[arg(long)]
    job_dir: PathBuf,
}

impl AgentArgs {
    pub fn node(&self) -> u32 {
        self.node
    }
}

pub fn run(args: AgentArgs) -> anyhow::Result<i32> {
    let config = eyrie_agent::AgentConfig { dir: args.job_dir, node: args.node };
    eyrie_agent::run(&config)?;
    Ok(0)
}
