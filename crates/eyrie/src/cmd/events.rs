//! `eyrie events`: the events of a running job, as they happen.

use super::JobPlace;
use eyrie_cli::out;
use eyrie_controller::runtime::jobdir;
use eyrie_controller::runtime::users::subscribe;

/// Print the events of a running job as JSON lines, until the job ends (docs/events.md)
#[derive(clap::Args)]
pub struct EventsArgs {
    /// Name of the job (see `eyrie status`)
    job: String,
    /// The number of the first event
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    from: u64,
    #[command(flatten)]
    place: JobPlace,
}

pub fn run(args: &EventsArgs) -> anyhow::Result<i32> {
    let dir = jobdir::find(&args.place.base()?, &args.job)?;
    subscribe(&dir, Some(args.from), &mut |line| {
        out::line(line)?;
        Ok(true)
    })?;
    Ok(0)
}
