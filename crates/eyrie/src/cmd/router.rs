//! `eyrie router`: a router of a job in a process of its own; hidden, started by `eyrie run`.

use eyrie_transport::{role, Addr};
use eyrie_wire::control::{Claim, Role};

#[derive(clap::Args)]
pub struct RouterArgs {
    /// Number of the router
    #[arg(long)]
    id: u32,
    /// How many routers have had this number before
    #[arg(long)]
    generation: u32,
    /// Where the controller listens; the job's secret comes on standard input
    #[arg(long)]
    connect: Addr,
}

impl RouterArgs {
    pub fn id(&self) -> u32 {
        self.id
    }
}

pub fn run(args: &RouterArgs) -> anyhow::Result<i32> {
    let secret = role::read_secret(&mut std::io::stdin().lock())?;
    let role = Role::Router { id: args.id, generation: args.generation };
    let stream = role::connect(&args.connect, &secret, &Claim::Role(role))?;
    eyrie_router::role::serve(stream, secret)?;
    Ok(0)
}
