//! `eyrie migrate-domain`: all ranks of a domain go to another one.

use super::JobPlace;
use eyrie_controller::runtime::jobdir;
use eyrie_controller::runtime::users::ask;
use eyrie_interface::answer::Accepted;
use eyrie_interface::{Request, Way};

/// Move all ranks of this site's domain to another domain, and wait until they run there.
///
/// Type it at the site that the ranks are to leave. Images of them go ahead while they compute; for
/// the last ones they stand still. Until these are at the other site whatever fails makes the ranks
/// stay and compute on, and so does --cancel.
#[derive(clap::Args)]
pub struct MigrateDomainArgs {
    /// Name of the job (see `eyrie status`)
    job: String,
    /// The domain that they are to go to, by its name in the file of domains
    #[arg(long, value_name = "DOMAIN", required_unless_present = "cancel")]
    to: Option<String>,
    /// How their memory goes over
    #[arg(long, value_enum, default_value_t, value_name = "WAY")]
    way: Way,
    /// The ranks are to stay after all, if they have not gone yet
    #[arg(long, conflicts_with = "to")]
    cancel: bool,
    #[command(flatten)]
    place: JobPlace,
}

pub fn run(args: MigrateDomainArgs) -> anyhow::Result<i32> {
    let dir = jobdir::find(&args.place.base()?, &args.job)?;
    let request = Request::MigrateDomain { to: args.to, way: args.way };
    ask::<Accepted>(&dir, &request)?;
    Ok(0)
}
