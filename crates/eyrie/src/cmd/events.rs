//! `eyrie events`: the events of a running job, as they happen.

use super::JobPlace;
use eyrie_cli::out;
use eyrie_controller::runtime::users::Subscription;
use eyrie_interface::FirstEvent;

/// Print the events of a running job as JSON lines, until the job ends (docs/events.md)
///
/// Begins with the oldest event that is kept, which is the first one of the job with `eyrie run
/// --events FILE`.
#[derive(clap::Args)]
pub struct EventsArgs {
    /// Name of the job (see `eyrie status`)
    job: String,
    /// Begin with the event of this number; fails when it is not kept any more
    #[arg(long, value_name = "SEQ", conflicts_with = "new")]
    from: Option<u64>,
    /// Only the events to come
    #[arg(long)]
    new: bool,
    #[command(flatten)]
    place: JobPlace,
}

pub fn run(args: &EventsArgs) -> anyhow::Result<i32> {
    let from = match args.from {
        Some(seq) => FirstEvent::At(seq),
        None if args.new => FirstEvent::New,
        None => FirstEvent::Oldest,
    };
    args.place.at(&args.job, |dir| {
        Subscription::begin(dir, from)?.hear(&mut |line| {
            out::line(line)?;
            Ok(true)
        })?;
        Ok(0)
    })
}
