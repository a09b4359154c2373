//! `eyrie sweep`: what removes the rest of an agent that was killed; hidden, started by each agent.

use eyrie_controller::runtime::Elsewhere;
use eyrie_supervision::{sweep, Wait};
use std::path::PathBuf;
use std::time::Duration;

#[derive(clap::Args)]
pub struct SweepArgs {
    /// The job's directory on this host
    dir: PathBuf,
    /// How long another controller may take to come; standard output is the directory's lock
    #[arg(long)]
    wait_ms: Option<u64>,
    /// When none has come, save the job
    #[arg(long, requires = "wait_ms")]
    save: bool,
}

pub fn run(args: &SweepArgs) -> anyhow::Result<i32> {
    // Its controller lives still, and says where agents are until its end.
    let mut elsewhere = None;
    let goes_on = || {
        let known = elsewhere.get_or_insert_with(|| Elsewhere::new(&args.dir));
        known.as_mut().is_some_and(Elsewhere::goes_on)
    };
    let wait = |ms| Wait { timeout: Duration::from_millis(ms), save: args.save, goes_on, let_go };
    let wait = args.wait_ms.map(wait);
    sweep(&args.dir, std::io::stdin().lock(), wait);
    Ok(0)
}

/// Closes the lock.
fn let_go() {
    let nothing = std::fs::File::open("/dev/null");
    let closed = nothing.and_then(|nothing| Ok(rustix::stdio::dup2_stdout(nothing)?));
    if let Err(e) = closed {
        eyrie_cli::out::say(format_args!("eyrie: {e}"));
    }
}
