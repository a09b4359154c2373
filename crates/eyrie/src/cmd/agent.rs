//! `eyrie agent`: a node; hidden, started by `eyrie run`.

use eyrie_transport::{role, Addr};

#[derive(clap::Args)]
pub struct AgentArgs {
    /// Number of the node
    #[arg(long)]
    node: u32,
    /// Where the controller listens; the job's secret comes on standard input
    #[arg(long)]
    connect: Addr,
}

impl AgentArgs {
    pub fn node(&self) -> u32 {
        self.node
    }
}

pub fn run(args: AgentArgs) -> anyhow::Result<i32> {
    let AgentArgs { node, connect: controller } = args;
    let secret = role::read_secret(&mut std::io::stdin().lock())?;
    eyrie_agent::run(&eyrie_agent::AgentConfig { node, controller, secret })?;
    Ok(0)
}
