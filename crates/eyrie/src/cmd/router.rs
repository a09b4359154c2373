//! `eyrie router`: a router of a job in a process of its own; hidden, started by `eyrie run`.

use eyrie_transport::role::{self, Follow};
use eyrie_transport::Addr;
use eyrie_wire::control::{Claim, Role};
use std::path::PathBuf;

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
    /// A file that says where the controller listens, in case that another one goes on with the job
    #[arg(long)]
    follow: Option<PathBuf>,
}

impl RouterArgs {
    pub fn id(&self) -> u32 {
        self.id
    }
}

pub fn run(args: &RouterArgs) -> anyhow::Result<i32> {
    let secret = role::read_secret(&mut std::io::stdin().lock())?;
    let role = Role::Router { id: args.id, generation: args.generation };
    let claim = Claim::Role(role);
    let stream = role::connect(&args.connect, &secret, &claim)?;
    let (file, known) = (args.follow.clone(), secret.clone());
    let follow = file.map(|file| Follow { file, secret: known, claim });
    eyrie_router::role::serve((stream, args.connect.clone()), follow, secret)?;
    Ok(0)
}
