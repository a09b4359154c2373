//! `eyrie trace`: what a rank did last.

use super::JobPlace;
use eyrie_cli::out;
use eyrie_controller::runtime::users::ask;
use eyrie_interface::answer::Traced;
use eyrie_interface::Request;
use eyrie_wire::Rank;

/// Show what a rank of a running job did last: messages, clocks, connections, images
///
/// A rank keeps its last thousand steps, in order. Of a rank that ends by an error of Eyrie they
/// are written to a file; the job says where.
#[derive(clap::Args)]
pub struct TraceArgs {
    /// Name of the job (see `eyrie status`)
    job: String,
    /// The rank
    rank: Rank,
    /// Print them as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: JobPlace,
}

pub fn run(args: &TraceArgs) -> anyhow::Result<i32> {
    args.place.at(&args.job, |dir| {
        let traced: Traced = ask(dir, &Request::Trace { rank: args.rank })?;
        if args.json {
            out::line(serde_json::to_string(&traced)?)?;
        } else {
            traced.trace.iter().try_for_each(out::line)?;
        }
        Ok(0)
    })
}
