//! `eyrie migrate`: moves ranks of a running job to another node.

use super::moving::ask_and_show;
use super::{node_named, JobPlace};
use eyrie_controller::runtime::jobdir;
use eyrie_interface::{IfSlow, Manner, Request, Way};
use eyrie_units::duration;
use eyrie_wire::Rank;
use std::time::Duration;

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
    manner: MannerArgs,
    #[command(flatten)]
    place: JobPlace,
}

/// How ranks are to move.
#[derive(clap::Args)]
pub struct MannerArgs {
    /// When a round takes no longer, the rank stands still for the next one, which is the last
    #[arg(long, default_value = "50ms", value_parser = duration, value_name = "TIME")]
    pause_budget: Duration,
    /// What to do with a rank that writes so fast that its rounds do not get that short
    #[arg(long, default_value = "accept", value_name = "WHAT")]
    if_slow: IfSlow,
    /// How its memory goes over
    #[arg(long, default_value = "live", value_name = "WAY")]
    way: Way,
}

impl MannerArgs {
    pub fn manner(&self) -> Manner {
        Manner { pause_budget: self.pause_budget, if_slow: self.if_slow, way: self.way }
    }
}

pub fn run(args: MigrateArgs) -> anyhow::Result<i32> {
    let dir = jobdir::find(&args.place.base()?, &args.job)?;
    let to = args.to.map(|name| node_named(&dir, &name)).transpose()?;
    let manner = args.manner.manner();
    ask_and_show(&dir, &Request::Migrate { ranks: args.ranks, to, manner })?;
    Ok(0)
}
