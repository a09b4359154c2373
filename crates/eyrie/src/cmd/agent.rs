//! `eyrie agent`: a node; hidden, started by `eyrie run`.

use anyhow::Context;
use eyrie_controller::runtime::{self, SLURM_NODE};
use eyrie_host::enough;
use eyrie_interface::options;
use eyrie_transport::role;
use eyrie_wire::role_address::Addr;
use eyrie_wire::NodeId;
use std::ffi::OsString;
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
    /// Nodes whose agents this one starts on their hosts, as NODE=HOST
    #[arg(long, value_delimiter = ',', value_parser = led, requires = "node")]
    lead: Vec<(u32, String)>,
    /// The command for that, which takes ssh's arguments
    #[arg(long, default_value = options::LAUNCHER_EXEC)]
    ssh: OsString,
    /// A directory with files that were sent along; it is removed at the end
    #[arg(long)]
    sent: Option<PathBuf>,
    /// Where the controller listens; the job's secret comes on standard input
    #[arg(long)]
    connect: Addr,
}

fn led(text: &str) -> Result<(u32, String), String> {
    let (node, host) = text.split_once('=').ok_or("it is no NODE=HOST")?;
    Ok((node.parse().map_err(|e| format!("{e}"))?, host.into()))
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
    // How many ranks it will have is not known yet.
    enough::for_a_job(1).map_err(anyhow::Error::msg)?;
    let secret = role::read_secret(&mut std::io::stdin().lock())?;
    for (node, host) in &args.lead {
        runtime::lead(NodeId(*node), host, &args.ssh, (&args.connect, &secret), log.as_deref())
            .with_context(|| format!("cannot start an agent on {host}"))?;
    }
    eyrie_agent::run(&eyrie_agent::AgentConfig {
        node: NodeId(node),
        controller: args.connect,
        secret,
        sent: args.sent,
        log,
    })?;
    Ok(0)
}
