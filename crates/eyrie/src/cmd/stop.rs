//! `eyrie stop`: saves a job and ends it.

use super::JobPlace;
use eyrie_controller::runtime::users::ask;
use eyrie_interface::answer::Accepted;
use eyrie_interface::Request;

/// Save a running job and end it, so that `eyrie run --resume-from DIR` goes on with it.
///
/// The job must have been started with --images. Its ranks are imaged, then they stop, and what the
/// routers hold is saved; returns when the job is saved. A job that cannot be saved goes on.
#[derive(clap::Args)]
pub struct StopArgs {
    /// Name of the job (see `eyrie status`)
    job: String,
    #[command(flatten)]
    place: JobPlace,
}

pub fn run(args: &StopArgs) -> anyhow::Result<i32> {
    args.place.at(&args.job, |dir| {
        ask::<Accepted>(dir, &Request::Stop)?;
        Ok(0)
    })
}
