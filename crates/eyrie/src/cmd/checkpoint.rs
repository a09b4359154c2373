//! `eyrie checkpoint`: a checkpoint now.

use super::JobPlace;
use eyrie_cli::out;
use eyrie_controller::runtime::users::ask;
use eyrie_interface::answer::{Checkpoints, Outcome};
use eyrie_interface::Request;
use eyrie_wire::Rank;
use std::path::Path;

/// Take a checkpoint of a running job now, and wait until the images are stored.
///
/// Prints a line for each rank. Ends with 1 when a rank has got no checkpoint: it goes on with its
/// last one.
#[derive(clap::Args)]
pub struct CheckpointArgs {
    /// Name of the job (see `eyrie status`)
    job: String,
    /// The rank; without it, all
    rank: Option<Rank>,
    /// Print what became of each rank as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: JobPlace,
}

pub fn run(args: &CheckpointArgs) -> anyhow::Result<i32> {
    args.place.at(&args.job, |dir| take(dir, args))
}

fn take(dir: &Path, args: &CheckpointArgs) -> anyhow::Result<i32> {
    let answer: Checkpoints = ask(dir, &Request::Checkpoint { rank: args.rank })?;
    if args.json {
        out::line(serde_json::to_string(&answer)?)?;
    } else {
        answer.checkpoints.iter().try_for_each(out::line)?;
    }
    let failed = answer.checkpoints.iter().any(|outcome| matches!(outcome, Outcome::Failed { .. }));
    Ok(failed.into())
}
