//! `eyrie migrate-domain`: all ranks of a domain go to another one.

use super::JobPlace;
use eyrie_controller::runtime::users::ask;
use eyrie_interface::answer::Accepted;
use eyrie_interface::{Request, Way};

/// Move all ranks of this site's domain to another domain, and wait until they run there.
///
/// Type it at the site that the ranks are to leave, or name it with --domain. Images of them go
/// ahead while they compute; for the last ones they stand still. Until these are at the other site
/// whatever fails makes the ranks stay and compute on, and so does --cancel.
///
/// A site that all ranks have left ends, and its hosts can be switched off. Only the site of `eyrie
/// run` stays, because it shows what all ranks print; with --leave it ends, too.
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
    /// The site of `eyrie run` ends as well, and `eyrie run` with it: the other site shows what
    /// ranks print from then on, in files that it names
    #[arg(long, requires = "to")]
    leave: bool,
    /// The ranks are to stay after all, if they have not gone yet
    #[arg(long, conflicts_with = "to")]
    cancel: bool,
    #[command(flatten)]
    place: JobPlace,
}

pub fn run(args: &MigrateDomainArgs) -> anyhow::Result<i32> {
    args.place.at(&args.job, |dir| {
        let MigrateDomainArgs { ref to, way, leave, .. } = *args;
        let request = Request::MigrateDomain { to: to.clone(), way, leave };
        ask::<Accepted>(dir, &request)?;
        Ok(0)
    })
}
