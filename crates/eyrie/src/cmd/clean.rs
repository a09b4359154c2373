//! `eyrie clean`: what jobs left whose launcher was killed.

use super::Place;
use eyrie_cli::out;
use eyrie_controller::runtime::jobdir;

/// Remove what jobs left whose launcher was killed: their directories with images and logs, and
/// MPICH's files in /dev/shm.
///
/// The next `eyrie run` in the same directory does the same. Jobs that run, and what is not a job's
/// or not yours, stay as they are.
#[derive(clap::Args)]
pub struct CleanArgs {
    #[command(flatten)]
    place: Place,
    /// Say what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
}

pub fn run(args: &CleanArgs) -> anyhow::Result<i32> {
    let base = args.place.base()?;
    let mut found = Vec::new();
    let mut failed = 0;
    for job in jobdir::dead_jobs(&base) {
        let name = job.name.clone();
        let amount = job.amount;
        if !args.dry_run {
            if let Err(e) = job.remove() {
                out::say(format_args!("eyrie: cannot remove what {name} left: {e}"));
                failed = 1;
                continue;
            }
        }
        found.push((name, amount));
    }
    for one in &found {
        out::line(format_args!("{}: {}", one.0, jobdir::in_words(std::slice::from_ref(one))))?;
    }
    let verb = if args.dry_run { "to remove" } else { "removed" };
    match found.len() {
        0 if failed == 0 => out::line(format_args!("nothing to remove in {}", base.display()))?,
        _ => out::line(format_args!("{verb}: {}", jobdir::in_words(&found)))?,
    }
    Ok(failed)
}
