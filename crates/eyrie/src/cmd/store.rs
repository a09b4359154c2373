//! `eyrie store`: the store of a job in a process of its own; hidden, started by `eyrie run`.

use eyrie_transport::role::{self, Follow};
use eyrie_transport::Addr;
use eyrie_wire::control::{Claim, Role};
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct StoreArgs {
    /// Number of the store
    #[arg(long)]
    id: u32,
    /// Where the controller listens; the job's secret comes on standard input
    #[arg(long)]
    connect: Addr,
    /// A file that says where the controller listens, in case that another one goes on with the job
    #[arg(long)]
    follow: Option<PathBuf>,
}

pub fn run(args: &StoreArgs) -> anyhow::Result<i32> {
    let secret = role::read_secret(&mut std::io::stdin().lock())?;
    let claim = Claim::Role(Role::Store { id: args.id });
    let stream = role::connect(&args.connect, &secret, &claim)?;
    let (file, known) = (args.follow.clone(), secret.clone());
    let follow = file.map(|file| Follow { file, secret: known, claim });
    eyrie_store::role::serving::serve((stream, args.connect.clone()), follow, secret)?;
    Ok(0)
}
