//! `eyrie resume`: another controller for a job whose controller has died.

use super::domains::Line;
use super::run::placement;
use super::telemetry;
use eyrie_controller::runtime::{self, Beginning, ControllerRuns, FromOutside, Resume, Running};
use eyrie_telemetry::Telemetry;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, Receiver};

/// Go on with a job whose `eyrie run` has died, or that was saved
///
/// The ranks of a job whose roles run on the nodes (`eyrie run --roles`) compute on without `eyrie
/// run`, for as long as its --orphan-timeout. This command takes its place: on the same host, or on
/// another one that has a copy of the job's journal. Output, options and exit code are as they
/// would have been.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct ResumeArgs {
    /// Name of the job; or the directory in which it was saved, with a `/` in it: then the job
    /// starts from there on the hosts that it had
    #[arg(required_unless_present = "at")]
    job: Option<String>,
    /// The job's directory; given by the process that has the job saved
    #[arg(long, value_name = "DIR", conflicts_with_all = ["job", "dir"], hide = true)]
    at: Option<PathBuf>,
    /// Where jobs have their directories, as given to `eyrie run`
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Go on though most of the nodes cannot be reached: they must not run any more
    #[arg(long)]
    force: bool,
    /// Do not go on with it but save it in its --images directory, and end it. Its output from then
    /// on is shown by who goes on with what was saved
    #[arg(long)]
    save: bool,
    /// It is well if a controller of the job runs; given by the `eyrie run` of another domain
    #[arg(long, conflicts_with = "save", hide = true)]
    if_dead: bool,
}

const EXAMPLES: &str = "Examples:
  The host of `eyrie run` still works:
      eyrie resume myjob
  It does not: on one of the hosts that had a copy of the journal (the last words of `eyrie status`):
      ssh b eyrie resume myjob
  After --orphan-timeout a job with --images was saved there:
      eyrie resume $HOME/images/solver";

/// `log`: where agents write what they do.
pub fn run(args: ResumeArgs, log: Option<PathBuf>) -> anyhow::Result<i32> {
    let images = args.job.as_ref().filter(|job| job.contains('/'));
    if let Some(images) = images {
        anyhow::ensure!(!args.save, "{images} is where it is saved already");
        let mut told = None;
        let begun = |running: Running| told = telemetry::start_again(&running);
        let code = runtime::go_on(Path::new(images), placement, begun);
        finish(told);
        return code;
    }
    let log = log.map(std::path::absolute).transpose()?;
    let ResumeArgs { job, at, dir, force, save, if_dead } = args;
    let job = job.unwrap_or_default();
    let resume = Resume { job, dir, at, force, log, save };
    let from_outside = if_dead.then(watched).transpose()?;
    let placing = |beginning: &Beginning| placement(&beginning.options);
    let mut told = None;
    let begun = |running: Running| {
        if !save {
            told = telemetry::start_again(&running);
        }
    };
    let resumed = runtime::resume(&resume, placing, from_outside, begun);
    finish(told);
    match resumed {
        Err(e) if if_dead && e.is::<ControllerRuns>() => Ok(0),
        resumed => resumed,
    }
}

/// What is told of the job is told to its end.
fn finish(told: Option<Telemetry>) {
    if let Some(told) = told {
        told.finish();
    }
}

/// What the `eyrie run` tells that has this command started over ssh, and sees its end.
fn watched() -> anyhow::Result<Receiver<FromOutside>> {
    let (job, from_outside) = channel();
    Line::take_stdin()?.listen(job);
    Ok(from_outside)
}
