//! `eyrie checkpoint`: a checkpoint now.

use super::JobPlace;
use eyrie_cli::out;
use eyrie_controller::machine::answer::Outcome;
use eyrie_controller::runtime::jobdir;
use eyrie_controller::runtime::users::{ask, Request};

/// Take a checkpoint of a running job now, and wait until the images are stored.
///
/// Prints a line for each rank. Ends with 1 when a rank has got no checkpoint: it goes on with its
/// last one.
#[derive(clap::Args)]
pub struct CheckpointArgs {
    /// Name of the job (see `eyrie status`)
    job: String,
    /// The rank; without it, all
    rank: Option<u32>,
    /// Print what became of each rank as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: JobPlace,
}

pub fn run(args: &CheckpointArgs) -> anyhow::Result<i32> {
    let dir = jobdir::find(&args.place.base()?, &args.job)?;
    let answer = ask(&dir, &Request::Checkpoint { rank: args.rank })?;
    let outcomes: Vec<Outcome> = serde_json::from_value(answer["checkpoints"].clone())?;
    if args.json {
        out::line(&answer)?;
    } else {
        outcomes.iter().try_for_each(out::line)?;
    }
    let failed = outcomes.iter().any(|outcome| matches!(outcome, Outcome::Failed { .. }));
    Ok(failed.into())
}
