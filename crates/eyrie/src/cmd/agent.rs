//! `eyrie agent`: a node; hidden, started by `eyrie run`.

use anyhow::Context;
use eyrie_controller::runtime::SLURM_NODE;
use eyrie_transport::{role, Addr};
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct AgentArgs {
    /// Number of the node
    #[arg(long, required_unless_present = "among")]
    node: Option<u32>,
    /// Names of all nodes, of which this host is the one that Slurm says
    #[arg(long, value_delimiter = ',', conflicts_with = "node")]
    among: Vec<String>,
    /// Number of the first of them
    #[arg(long, default_value_t = 0)]
    first: u32,
    /// A directory with files that were sent along; it is removed at the end
    #[arg(long)]
    sent: Option<PathBuf>,
    /// Where the controller listens; the job's secret comes on standard input
    #[arg(long)]
    connect: Addr,
}

impl AgentArgs {
    /// Number of the node, when it can be known.
    pub fn node(&self) -> Option<u32> {
        let of_slurm = || {
            let own = std::env::var(SLURM_NODE).ok()?;
            Some(self.first + self.among.iter().position(|name| *name == own)? as u32)
        };
        self.node.or_else(of_slurm)
    }
}

pub fn run(args: AgentArgs, log: Option<PathBuf>) -> anyhow::Result<i32> {
    let node = args.node().with_context(|| {
        format!("{SLURM_NODE} names none of the nodes {}: is this Slurm?", args.among.join(","))
    })?;
    let secret = role::read_secret(&mut std::io::stdin().lock())?;
    eyrie_agent::run(&eyrie_agent::AgentConfig {
        node,
        controller: args.connect,
        secret,
        sent: args.sent,
        log,
    })?;
    Ok(0)
}
