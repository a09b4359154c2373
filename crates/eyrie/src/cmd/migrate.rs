//! `eyrie migrate`: moves ranks of a running job to another node.

use super::moving::ask_and_show;
use super::{node_named, JobPlace};
use eyrie_controller::machine::{IfSlow, Manner, Way};
use eyrie_controller::runtime::jobdir;
use eyrie_controller::runtime::users::Request;
use eyrie_units::duration;
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
    ranks: Vec<u32>,
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
    if_slow: IfSlowArg,
    /// How its memory goes over
    #[arg(long, default_value = "live", value_name = "WAY")]
    way: WayArg,
}

impl MannerArgs {
    pub fn manner(&self) -> Manner {
        let if_slow = match self.if_slow {
            IfSlowArg::Accept => IfSlow::Accept,
            IfSlowArg::SlowDown => IfSlow::SlowDown,
            IfSlowArg::GiveUp => IfSlow::GiveUp,
        };
        let way = match self.way {
            WayArg::Live => Way::Live,
            WayArg::Stop => Way::Stop,
        };
        Manner { pause_budget: self.pause_budget, if_slow, way }
    }
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum WayArg {
    /// In rounds, while the rank computes
    Live,
    /// The rank stands still for all of it: for one that writes nearly all of its memory in each
    /// step, whose rounds would bring all of it again and again
    Stop,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum IfSlowArg {
    /// It moves all the same, and stands still for longer
    Accept,
    /// It is slowed step by step, at most to a fifth of its speed, until they do; if they never do,
    /// it moves all the same
    SlowDown,
    /// It stays where it is
    GiveUp,
}

pub fn run(args: MigrateArgs) -> anyhow::Result<i32> {
    let dir = jobdir::find(&args.place.base()?, &args.job)?;
    let to = args.to.map(|name| node_named(&dir, &name)).transpose()?;
    let manner = args.manner.manner();
    ask_and_show(&dir, &Request::Migrate { ranks: args.ranks, to, manner })?;
    Ok(0)
}
