//! One job: a program under Eyrie or under MPICH's own mpiexec, its time, its output and its
//! events. Every wait has a bound, and no job outlives its measurement.

use crate::setup::Setup;
use crate::Effort;
use anyhow::{bail, Context};
use eyrie_supervision::{end, has_ended_within};
use eyrie_units::time;
use eyrie_wire::agent::{ENV_IMAGES, IMAGES_FULL};
use eyrie_wire::Rank;
use rustix::process::Signal;
use serde::Deserialize;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a job may take.
const JOB_TIMEOUT: Duration = Duration::from_secs(900);
/// How long a job may take to end after SIGTERM.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the last events may lag behind the end of a job.
const EVENT_TIMEOUT: Duration = Duration::from_secs(10);

/// How often the output of a job is checked.
const OUTPUT_GLANCE: Duration = Duration::from_millis(20);
/// How soon a signal that ends the measurement is noticed.
const GLANCE: Duration = Duration::from_millis(200);
/// Set when a signal has come that ends the measurement.
static INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// From now on SIGINT, SIGTERM and SIGHUP end the measurement together with its job.
///
/// # Errors
/// When the kernel refuses.
pub fn watch_signals() -> std::io::Result<()> {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        signal_hook::flag::register(signal.as_raw(), Arc::clone(&INTERRUPTED))?;
    }
    Ok(())
}

pub fn check_interrupted() -> anyhow::Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    Ok(())
}

/// MPICH over its own tcp provider, each rank as if on a node of its own.
const DIRECT: [(&str, &str); 3] =
    [("MPIR_CVAR_CH4_NETMOD", "ofi"), ("MPIR_CVAR_NOLOCAL", "1"), ("FI_PROVIDER", "tcp")];
/// Settings for both sides, so that only the transport differs: one thread for each rank, and the
/// defaults of `eyrie run`.
pub const BOTH: [(&str, &str); 3] = [
    ("OMP_NUM_THREADS", "1"),
    ("OPENBLAS_NUM_THREADS", "1"),
    ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
];

/// A program to run.
#[derive(Clone, Debug)]
pub struct Program {
    pub ranks: u32,
    pub exe: PathBuf,
    pub args: Vec<String>,
}

impl Program {
    pub fn new(ranks: u32, exe: PathBuf, args: &str) -> Program {
        Program { ranks, exe, args: args.split_whitespace().map(str::to_string).collect() }
    }
}

/// A side of a comparison: what runs the program.
#[derive(Clone, Debug)]
pub struct Contender {
    pub name: &'static str,
    side: Side,
    /// Environment of the ranks, in addition to the usual one.
    env: Vec<(&'static str, &'static str)>,
}

#[derive(Clone, Debug)]
enum Side {
    Direct,
    /// `eyrie run` with these options.
    Eyrie(Vec<String>),
}

impl Contender {
    /// The same MPICH over its own tcp provider.
    pub fn direct() -> Contender {
        Contender { name: "MPICH over tcp", side: Side::Direct, env: Vec::new() }
    }

    pub fn eyrie(name: &'static str, options: &str) -> Contender {
        let options = options.split_whitespace().map(str::to_string).collect();
        Contender { name, side: Side::Eyrie(options), env: Vec::new() }
    }

    pub fn with_env(mut self, key: &'static str, value: &'static str) -> Contender {
        self.env.push((key, value));
        self
    }

    /// Images have all of the memory each time.
    pub fn with_full_images(self) -> Contender {
        self.with_env(ENV_IMAGES, IMAGES_FULL)
    }
}

/// A line of the event stream.
#[derive(Clone, Debug, Deserialize)]
pub struct Event {
    /// Seconds since the job's start.
    pub time: f64,
    #[serde(flatten)]
    pub what: What,
}

/// The events that are measured; times in seconds.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    Connected {
        rank: Rank,
    },
    CheckpointStarted {
        rank: Rank,
    },
    Checkpoint {
        rank: Rank,
        bytes: u64,
        pause: f64,
        total: f64,
    },
    RankFailed {
        rank: Rank,
    },
    CheckpointFailed {
        rank: Rank,
        cause: String,
    },
    Recovered {
        rank: Rank,
        messages: u64,
        phases: Phases,
        total: f64,
    },
    MoveRound {
        rank: Rank,
        bytes: u64,
        took: f64,
    },
    RankMoved {
        rank: Rank,
        pause: f64,
    },
    JobEnded,
    #[serde(other)]
    Other,
}

/// Seconds of each phase of a recovery.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Phases {
    pub detected: f64,
    pub placed: f64,
    pub fetched: f64,
    pub restored: f64,
    pub replayed: f64,
}

/// A checkpoint made on order; times in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Checkpoint {
    /// When it began, on this clock and on that of the job.
    pub begun: Instant,
    pub begun_at: f64,
    pub bytes: u64,
    pub pause: f64,
    pub total: f64,
}

/// The result of a job.
pub struct Finished {
    /// From its start to its end, launching included.
    pub elapsed: Duration,
    pub stdout: String,
    pub events: Vec<Event>,
    /// The folder it ran in.
    pub dir: TempDir,
}

/// A running job.
pub struct Job {
    child: Child,
    begun: Instant,
    dir: TempDir,
    events: Option<Receiver<Event>>,
    seen: Vec<Event>,
    name: String,
    setup: Setup,
}

impl Job {
    /// Starts a job in an empty folder.
    ///
    /// # Errors
    /// When the folder cannot be made or the launcher cannot be started.
    pub fn start(setup: &Setup, contender: &Contender, program: &Program) -> anyhow::Result<Job> {
        let dir = tempfile::Builder::new().prefix("eyrie-bench-").tempdir()?;
        let name = dir.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (mut command, events) = match &contender.side {
            Side::Direct => {
                let mut command = Command::new(setup.mpiexec());
                command.envs(DIRECT).env_remove("FI_PROVIDER_PATH");
                (command, None)
            }
            Side::Eyrie(options) => {
                let pipe = dir.path().join("events");
                let events = listen(&pipe)?;
                let mut command = Command::new(&setup.eyrie);
                command.arg("run").args(options).arg("--events").arg(&pipe);
                command.args(["--job", &name]).args(place(setup));
                (command, Some(events))
            }
        };
        command.args(["-n", &program.ranks.to_string()]).arg(&program.exe).args(&program.args);
        command.envs(BOTH).envs(contender.env.iter().copied()).current_dir(dir.path());
        command.stdin(Stdio::null());
        command.stdout(File::create(dir.path().join("stdout"))?);
        command.stderr(File::create(dir.path().join("stderr"))?);
        let begun = Instant::now();
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
        Ok(Job { child, begun, dir, events, seen: Vec::new(), name, setup: setup.clone() })
    }

    /// The next event, or `None` when there is none until `deadline`.
    ///
    /// # Errors
    /// When the job has ended.
    pub fn event(&mut self, deadline: Instant) -> anyhow::Result<Option<Event>> {
        let events = self.events.as_ref().context("this job has no events")?;
        let event = loop {
            check_interrupted()?;
            let left = deadline.saturating_duration_since(Instant::now());
            match events.recv_timeout(left.min(GLANCE)) {
                Ok(event) => break event,
                Err(RecvTimeoutError::Timeout) if left > GLANCE => {}
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(e) => {
                    return Err(e).with_context(|| format!("no more events: {}", self.stderr()))
                }
            }
        };
        self.seen.push(event.clone());
        if matches!(event.what, What::JobEnded) {
            bail!("the job ended before it was measured: {}", self.stderr());
        }
        Ok(Some(event))
    }

    /// Waits for the first event for which `wanted` returns a value.
    ///
    /// # Errors
    /// When the job ends before, or nothing comes in time.
    pub fn await_event<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut wanted: impl FnMut(&Event) -> Option<T>,
    ) -> anyhow::Result<T> {
        let deadline = Instant::now() + limit;
        while let Some(event) = self.event(deadline)? {
            if let Some(found) = wanted(&event) {
                return Ok(found);
            }
        }
        bail!("waited {} for {what}: {}", time(limit), self.stderr())
    }

    /// Waits until the job has printed this text.
    ///
    /// # Errors
    /// When it ends before, or has not within `limit`.
    pub fn await_output(&mut self, text: &str, limit: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + limit;
        let path = self.dir.path().join("stdout");
        while !std::fs::read_to_string(&path)?.contains(text) {
            check_interrupted()?;
            if has_ended_within(&self.child, OUTPUT_GLANCE)? || Instant::now() > deadline {
                bail!("the job did not print {text:?}: {}", self.stderr());
            }
        }
        Ok(())
    }

    /// The folder it runs in.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Runs `eyrie WHAT JOB ARGS...` on this job.
    ///
    /// # Errors
    /// The command's standard error.
    pub fn order(&self, what: &str, args: &[&str]) -> anyhow::Result<()> {
        let mut command = Command::new(&self.setup.eyrie);
        command.arg(what).arg(&self.name).args(args).args(place(&self.setup));
        let out = command.output()?;
        if !out.status.success() {
            bail!("eyrie {what} failed: {}", String::from_utf8_lossy(&out.stderr).trim());
        }
        Ok(())
    }

    /// Orders checkpoints of a rank until one has all of its memory: at first the rank has not
    /// filled it yet, or is still in MPI_Init, where it cannot be captured.
    ///
    /// # Errors
    /// When the job ends before, or there is none within `limit`.
    pub fn checkpoint(
        &mut self,
        rank: Rank,
        mib: u64,
        limit: Duration,
    ) -> anyhow::Result<Checkpoint> {
        let deadline = Instant::now() + limit;
        let mut last = String::from("none was tried");
        while Instant::now() < deadline {
            match self.try_checkpoint(rank, limit)? {
                // Without a pause in the event, the image was stored before the rank had reported
                // it.
                Ok(c) if c.bytes >= mib << 20 && c.pause > 0.0 => return Ok(c),
                Ok(c) => {
                    last = format!("the last one has {} bytes and paused {} s", c.bytes, c.pause)
                }
                Err(cause) => last = cause,
            }
        }
        bail!("no checkpoint of rank {rank} with {mib} MiB within {}: {last}", time(limit))
    }

    /// Orders one checkpoint; the inner error is why the rank could not be captured.
    fn try_checkpoint(
        &mut self,
        rank: Rank,
        limit: Duration,
    ) -> anyhow::Result<Result<Checkpoint, String>> {
        // It ends with 1 when there was no checkpoint; the events have the reason.
        let _ = self.order("checkpoint", &[&rank.to_string()]);
        let begun_at = self.await_event("a checkpoint to begin", limit, |e| match e.what {
            What::CheckpointStarted { rank: r } if r == rank => Some(e.time),
            _ => None,
        })?;
        let begun = Instant::now();
        self.await_event("a checkpoint to end", limit, |e| match &e.what {
            What::Checkpoint { rank: r, bytes, pause, total } if *r == rank => {
                let bytes = *bytes;
                let pause = *pause;
                let total = *total;
                Some(Ok(Checkpoint { begun, begun_at, bytes, pause, total }))
            }
            What::CheckpointFailed { rank: r, cause } if *r == rank => Some(Err(cause.clone())),
            _ => None,
        })
    }

    /// Waits for the job's end.
    ///
    /// # Errors
    /// When it fails, or does not end in time.
    pub fn finish(mut self) -> anyhow::Result<Finished> {
        let deadline = Instant::now() + JOB_TIMEOUT;
        while !has_ended_within(&self.child, GLANCE)? {
            check_interrupted()?;
            if Instant::now() > deadline {
                bail!("the job did not end within {}: {}", time(JOB_TIMEOUT), self.stderr());
            }
        }
        let elapsed = self.begun.elapsed();
        let status = self.child.wait()?;
        if !status.success() {
            bail!("the job failed ({status}): {}", self.stderr());
        }
        while let Some(events) = &self.events {
            let event = events.recv_timeout(EVENT_TIMEOUT).context("the last event is missing")?;
            let last = matches!(event.what, What::JobEnded);
            self.seen.push(event);
            if last {
                self.events = None;
            }
        }
        let stdout = std::fs::read_to_string(self.dir.path().join("stdout"))?;
        let dir = std::mem::replace(&mut self.dir, TempDir::new()?);
        Ok(Finished { elapsed, stdout, events: std::mem::take(&mut self.seen), dir })
    }

    /// The last lines of its standard error.
    fn stderr(&self) -> String {
        let text = std::fs::read(self.dir.path().join("stderr")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().rev().take(5).collect();
        if lines.is_empty() {
            "its standard error is empty".into()
        } else {
            lines.into_iter().rev().collect::<Vec<_>>().join("\n    ")
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // Both launchers end their ranks, too.
        end(&mut self.child, END_TIMEOUT);
    }
}

/// Runs a job to its end.
///
/// # Errors
/// When it fails, or does not end in time.
pub fn run(setup: &Setup, contender: &Contender, program: &Program) -> anyhow::Result<Finished> {
    Job::start(setup, contender, program)
        .and_then(Job::finish)
        .with_context(|| format!("{} under {}", program.exe.display(), contender.name))
}

/// Runs each of `all` in turn, round after round; returns the results of each by round.
/// # Errors
/// The first error of a turn.
pub fn in_turn<C, T>(
    effort: Effort,
    contenders: &[C],
    name: impl Fn(&C) -> String,
    mut turn: impl FnMut(&C) -> anyhow::Result<T>,
) -> anyhow::Result<Vec<Vec<T>>> {
    let mut results: Vec<Vec<T>> = contenders.iter().map(|_| Vec::new()).collect();
    for round in 1..=effort.rounds {
        for (contender, results) in contenders.iter().zip(&mut results) {
            let begun = Instant::now();
            results.push(turn(contender)?);
            crate::progress(&format!(
                "round {round} of {}: {} ({})",
                effort.rounds,
                name(contender),
                time(begun.elapsed())
            ));
        }
    }
    Ok(results)
}

fn place(setup: &Setup) -> Vec<std::ffi::OsString> {
    setup.dir.iter().flat_map(|dir| ["--dir".into(), dir.as_os_str().to_owned()]).collect()
}

/// Makes a named pipe for events and reads it on a thread, until the job's last event.
fn listen(path: &Path) -> anyhow::Result<Receiver<Event>> {
    use rustix::fs::{mknodat, FileType, Mode, CWD};
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    // Open for writing too, so that this does not wait for the job.
    let pipe = File::options().read(true).write(true).open(path)?;
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            // Lines of another schema are skipped: an event that is awaited is then missing.
            let Ok(event) = serde_json::from_str::<Event>(&line) else { continue };
            let last = matches!(event.what, What::JobEnded);
            if send.send(event).is_err() || last {
                return;
            }
        }
    });
    Ok(receive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read() {
        let parse = |text: &str| serde_json::from_str::<Event>(text).unwrap();
        let e = parse(
            r#"{"seq":30,"time":4.9,"event":"recovered","rank":1,"incarnation":2,"node":0,"image":3,"messages":592,
               "phases":{"detected":0.01,"placed":0.0001,"fetched":0.2,"restored":0.001,"replayed":0.7},"total":0.9}"#,
        );
        assert!(
            matches!(e.what, What::Recovered { rank: Rank(1), messages: 592, phases, .. } if phases.fetched == 0.2)
        );
        let e = parse(r#"{"seq":1,"time":0.5,"event":"node_up","node":0}"#);
        assert!(matches!(e.what, What::Other) && e.time == 0.5);
        let e =
            parse(r#"{"seq":1,"time":0.5,"event":"job_ended","code":0,"cause":null,"summary":{}}"#);
        assert!(matches!(e.what, What::JobEnded));
    }
}
