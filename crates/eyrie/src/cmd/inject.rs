//! `eyrie inject`: a failure in a running job.

use super::JobPlace;
use eyrie_controller::runtime::users::ask;
use eyrie_interface::answer::Accepted;
use eyrie_interface::Request;

/// Let a failure happen in a running job.
#[derive(clap::Args)]
pub struct InjectArgs {
    /// Name of the job (see `eyrie status`)
    job: String,
    /// The failure, as for `eyrie run --inject`; times count from now
    spec: String,
    #[command(flatten)]
    place: JobPlace,
}

pub fn run(args: &InjectArgs) -> anyhow::Result<i32> {
    args.place.at(&args.job, |dir| {
        let injection = args.spec.parse().map_err(anyhow::Error::new)?;
        ask::<Accepted>(dir, &Request::Inject { injection })?;
        Ok(0)
    })
}
