//! `eyrie store`: the store of a job in a process of its own; hidden, started by `eyrie run`.

use eyrie_transport::{role, Addr};
use eyrie_wire::control::{Claim, Role};

#[derive(clap::Args)]
pub struct StoreArgs {
    /// Number of the store
    #[arg(long)]
    id: u32,
    /// Where the controller listens; the job's secret comes on standard input
    #[arg(long)]
    connect: Addr,
}

pub fn run(args: &StoreArgs) -> anyhow::Result<i32> {
    let secret = role::read_secret(&mut std::io::stdin().lock())?;
    let stream = role::connect(&args.connect, &secret, &Claim::Role(Role::Store { id: args.id }))?;
    eyrie_store::role::serve(stream, secret)?;
    Ok(0)
}
