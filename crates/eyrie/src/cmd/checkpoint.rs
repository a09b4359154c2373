//! `eyrie checkpoint`: a checkpoint now.

use super::JobPlace;
use eyrie_controller::runtime::jobdir;
use eyrie_controller::runtime::users::{ask, Request};

/// Take a checkpoint of a running job now.
#[derive(clap::Args)]
pub struct CheckpointArgs {
    /// Name of the job (see `eyrie status`)
    job: String,
    /// The rank; without it, all
    rank: Option<u32>,
    #[command(flatten)]
    place: JobPlace,
}

pub fn run(args: &CheckpointArgs) -> anyhow::Result<i32> {
    let dir = jobdir::find(&args.place.base()?, &args.job)?;
    ask(&dir, &Request::Checkpoint { rank: args.rank })?;
    Ok(0)
}
