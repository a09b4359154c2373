//! `eyrie router` and `eyrie store`: a role of a job in a process of its own. They are hidden: the
//! agents of a job start them.

use eyrie_transport::role::{self, Follow};
use eyrie_transport::Stream;
use eyrie_wire::auth::Secret;
use eyrie_wire::control::{Claim, Role, RoleKind};
use eyrie_wire::role_address::Addr;
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct RoleArgs {
    /// Number of the role among those of its kind
    #[arg(long)]
    id: u32,
    /// How many roles of its kind have had this number before
    #[arg(long)]
    generation: u32,
    /// Where the controller listens; the job's secret comes on standard input
    #[arg(long)]
    connect: Addr,
    /// A file that says where the controller listens, in case that another one goes on with the job
    #[arg(long)]
    follow: Option<PathBuf>,
}

impl RoleArgs {
    pub fn id(&self) -> u32 {
        self.id
    }
}

/// What a role does from its connection to the controller until that ends.
type Serve = fn((Stream, Addr), Option<Follow>, Secret) -> std::io::Result<()>;

pub fn run(kind: RoleKind, args: &RoleArgs, serve: Serve) -> anyhow::Result<i32> {
    let secret = role::read_secret(&mut std::io::stdin().lock())?;
    let RoleArgs { id, generation, ref connect, ref follow } = *args;
    let claim = Claim::Role(Role { kind, id, generation });
    let stream = role::connect(connect, &secret, &claim)?;
    let known = secret.clone();
    let follow = follow.clone().map(|file| Follow { file, secret: known, claim });
    serve((stream, connect.clone()), follow, secret)?;
    Ok(0)
}
