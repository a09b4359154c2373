//! A small job on this host, of the MPI library that was found: its ranks reach the end of MPI_Init
//! and exchange messages; one is captured, killed and restored from its image. What an MPI library
//! does in a rank (files that it leaves open, threads that it starts) shows nowhere else. Nothing
//! of it stays.

use super::trials::TRIALS;
use eyrie_controller::runtime::jobdir;
use eyrie_controller::runtime::users::ask;
use eyrie_host::trial::CONNECTED;
use eyrie_host::Finding;
use eyrie_interface::answer::{Accepted, Checkpoints, Outcome};
use eyrie_interface::inject::{Fault, Injection, When};
use eyrie_interface::{Request, Status, Summary};
use eyrie_supervision::end;
use eyrie_wire::Rank;
use serde::de::DeserializeOwned;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SUBJECT: &str = "rank";
const REMEDY: &str = "run the same program with `eyrie run -v` to see all that is said; without \
                      images ranks that die start from their beginning";
/// Longest that the job may take: half a second on an idle host.
const LONGEST: Duration = Duration::from_secs(90);
/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(2);
/// The rank that is killed.
const VICTIM: u32 = 1;

/// What the ranks are to find: the library, and where it finds others.
pub struct Found {
    pub library: PathBuf,
    pub library_path: OsString,
}

/// Tries it. `base` is where jobs have their directories, `scratch` a directory for the trial's own
/// files, which the caller removes.
pub fn look(found: &Found, base: &Path, scratch: &Path) -> Finding {
    match SmallJob::start(found, base, scratch).and_then(SmallJob::run) {
        Ok(text) => Finding::ok(SUBJECT, text),
        Err(why) => Finding::fail(SUBJECT, why, REMEDY),
    }
}

struct SmallJob {
    process: Child,
    base: PathBuf,
    name: String,
    stdout: PathBuf,
    stderr: PathBuf,
    /// Made when the ranks are to end.
    end: PathBuf,
    until: Instant,
}

impl SmallJob {
    fn start(found: &Found, base: &Path, scratch: &Path) -> Result<SmallJob, String> {
        let name = format!("check-{}", std::process::id());
        let [stdout, stderr, end] = ["stdout", "stderr", "end"].map(|file| scratch.join(file));
        let start = || {
            let this = std::env::current_exe()?;
            let mut command = Command::new(&this);
            command.args(["run", "-n", "2", "--nodes", "1", "--checkpoint-every", "off", "--dir"]);
            command.arg(base).args(["--job", &name, "--"]).arg(&this).args(TRIALS.words);
            command.arg("rank").arg(&found.library).arg(&end);
            command.env("LD_LIBRARY_PATH", &found.library_path).stdin(Stdio::null());
            command.stdout(File::create(&stdout)?).stderr(File::create(&stderr)?).spawn()
        };
        let process = start().map_err(|e| format!("no job can be started: {e}"))?;
        let base = base.to_path_buf();
        let until = Instant::now() + LONGEST;
        Ok(SmallJob { process, base, name, stdout, stderr, end, until })
    }

    /// Goes through all of it; says what was done.
    fn run(mut self) -> Result<String, String> {
        self.wait_for("the ranks to exchange messages", |job| {
            Ok(std::fs::read_to_string(&job.stdout).is_ok_and(|said| said.contains(CONNECTED)))
        })?;
        let Checkpoints { checkpoints } =
            self.ask(&Request::Checkpoint { rank: Some(Rank(VICTIM)) })?;
        if let Some(failed) = checkpoints.iter().find(|o| matches!(o, Outcome::Failed { .. })) {
            return Err(failed.to_string());
        }
        let fault = Fault::KillRank(Rank(VICTIM));
        let when = When::After(Duration::ZERO);
        self.ask::<Accepted>(&Request::Inject { injection: Injection::At { fault, when } })?;
        let mut summary = Summary::default();
        let mut has_image = false;
        self.wait_for("a killed rank to come back", |job| {
            let status: Status = job.ask(&Request::Status)?;
            has_image = status.ranks.get(VICTIM as usize).is_some_and(|rank| rank.image.is_some());
            summary = status.summary;
            Ok(summary.recoveries >= 1)
        })?;
        if !has_image {
            return Err(
                "a rank that was killed came back from its start, not from its image".into()
            );
        }
        File::create(&self.end).map_err(|e| format!("{}: {e}", self.end.display()))?;
        self.wait_for("the ranks to end", |job| {
            Ok(job.process.try_wait().map_err(|e| e.to_string())?.is_some_and(|s| s.success()))
        })?;
        let size = eyrie_units::bytes(summary.checkpoint_bytes);
        let time = eyrie_units::time(summary.longest_recovery);
        Ok(format!(
            "two ranks exchanged messages; one was captured ({size}), killed, and came back from \
             its image in {time}"
        ))
    }

    /// Waits until it is so.
    ///
    /// # Errors
    /// When the job ends before that, or it takes too long.
    fn wait_for(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut SmallJob) -> Result<bool, String>,
    ) -> Result<(), String> {
        loop {
            let ended = self.process.try_wait().map_err(|e| e.to_string())?;
            match done(self) {
                Ok(true) => return Ok(()),
                // A job that has ended says better why it does not answer.
                Err(why)
                    if ended.is_none() && self.process.try_wait().is_ok_and(|e| e.is_none()) =>
                {
                    return Err(why)
                }
                _ => {}
            }
            if ended.is_some() {
                return Err(format!("a small job ended early: {}", self.last_words()));
            }
            if Instant::now() >= self.until {
                let seconds = LONGEST.as_secs();
                let words = self.last_words();
                return Err(format!("waited {seconds} s for {what}: {words}"));
            }
            std::thread::sleep(LOOK);
        }
    }

    fn ask<A: DeserializeOwned>(&self, request: &Request) -> Result<A, String> {
        let dir = jobdir::find(&self.base, &self.name).map_err(|e| format!("{e:#}"))?;
        ask(&dir, request).map_err(|e| format!("{e:#}"))
    }

    /// The last line that the job has on standard error.
    fn last_words(&self) -> String {
        let said = std::fs::read_to_string(&self.stderr).unwrap_or_default();
        let last = said.lines().rev().find(|line| !line.trim().is_empty());
        let last = last.unwrap_or("it says nothing");
        last.strip_prefix("eyrie: ").unwrap_or(last).to_string()
    }
}

impl Drop for SmallJob {
    /// Ends the job, with all of its processes, if it still runs.
    fn drop(&mut self) {
        // What cannot be ended in an orderly way ends with the process that keeps it.
        end(&mut self.process, Duration::from_secs(10));
    }
}
