//! `eyrie migrate`: moves ranks of a running job to another node.

use super::moving::ask_and_show;
use super::{node_named, JobPlace};
use eyrie_interface::{Manner, Request};
use eyrie_wire::Rank;

/// Move ranks of a running job to another node, and wait until they run there.
///
/// Its memory goes ahead while it computes, in rounds: each brings what was written since the one
/// before. For the last one it stands still, and goes on elsewhere where it was; all others compute
/// on. A rank that cannot be imaged stays where it is.
#[derive(clap::Args)]
pub struct MigrateArgs {
    /// Name of the job (see `eyrie status`)
    job: String,
    /// The ranks: 3 or 3,4,7
    #[arg(value_delimiter = ',', required = true, value_name = "RANK[,RANK]")]
    ranks: Vec<Rank>,
    /// The node, by its number or the name of its host [default: a spare, else the one with the
    /// fewest ranks]
    #[arg(long, value_name = "NODE")]
    to: Option<String>,
    #[command(flatten)]
    manner: Manner,
    #[command(flatten)]
    place: JobPlace,
}

pub fn run(args: &MigrateArgs) -> anyhow::Result<i32> {
    args.place.at(&args.job, |dir| {
        let to = args.to.as_ref().map(|name| node_named(dir, name)).transpose()?;
        let ranks = args.ranks.clone();
        ask_and_show(dir, &Request::Migrate { ranks, to, manner: args.manner })?;
        Ok(0)
    })
}
