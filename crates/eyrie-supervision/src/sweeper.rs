//! Clears up after an agent that is killed with SIGKILL: a process beside it waits for its end,
//! which closes its standard input. It kills what the agent's programs have started, and removes
//! the job's directory on this host and the segments of its ranks. Where both are killed at once,
//! the next job here does it, or `eyrie clean`. The controller of a job on several hosts has one,
//! too.

use crate::family::kill_group;
use crate::place::{is_locked, CONTROLLER};
use crate::start::{in_own_session, own_command};
use crate::{leftovers, saver, segments};
use rustix::process::{getppid, Pid};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the lock and the children of a killed agent may take to be gone.
const PATIENCE: Duration = Duration::from_secs(5);
/// For how long a killed rank may still make a segment.
const SEGMENT_GRACE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(10);

/// The process, while the agent lives: dropping it closes its input.
pub struct Sweeper(Child);

impl Sweeper {
    /// Starts it for the job's directory on this host.
    ///
    /// # Errors
    /// When the process cannot be made.
    pub fn start(dir: &Path) -> std::io::Result<Sweeper> {
        let mut command = Sweeper::command(dir);
        Sweeper::spawn(command.stdout(Stdio::null()))
    }

    /// Starts it for the directory of a job that another controller may go on with. It holds the
    /// directory's lock, too, and waits for `orphan_timeout` for a controller. With `save` it then
    /// has the job saved.
    ///
    /// # Errors
    /// As [`Sweeper::start`].
    pub fn start_for(
        dir: &Path,
        orphan_timeout: Duration,
        save: bool,
        lock: &File,
    ) -> std::io::Result<Sweeper> {
        let mut command = Sweeper::command(dir);
        command.arg("--wait-ms").arg(orphan_timeout.as_millis().to_string());
        command.args(save.then_some("--save"));
        Sweeper::spawn(command.stdout(lock.try_clone()?))
    }

    fn command(dir: &Path) -> Command {
        let mut command = own_command();
        command.arg("sweep").arg(dir);
        command
    }

    fn spawn(command: &mut Command) -> std::io::Result<Sweeper> {
        // The starter of the agent waits for the end of the agent's outputs.
        command.stdin(Stdio::piped()).stderr(Stdio::null());
        Ok(Sweeper(in_own_session(command).spawn()?))
    }

    /// Reports a program that was started, the leader of a process group. The kernel kills the
    /// leader with the agent, but not what the leader has started: a rank behind a wrapper.
    pub fn started(&mut self, leader: u32) {
        self.write_line(&format!("+{leader}\n"));
    }

    /// Reports that the program has ended, with its group, before its number is free.
    pub fn ended(&mut self, leader: u32) {
        self.write_line(&format!("-{leader}\n"));
    }

    fn write_line(&mut self, line: &str) {
        // Without it a killed agent leaves more behind; that is no reason to end the job.
        let _ = self.0.stdin.as_mut().map(|input| input.write_all(line.as_bytes()));
    }

    /// Its process id, to spare it when all other children are killed.
    pub fn pid(&self) -> Option<Pid> {
        Pid::from_raw(self.0.id() as i32)
    }
}

/// Waits until the job's directory is gone, or no controller has held it for `timeout`, or the job
/// `goes_on` with a controller on another host; returns whether it does.
fn wait_for_controllers(dir: &Path, timeout: Duration, mut goes_on: impl FnMut() -> bool) -> bool {
    let mut until = Instant::now() + timeout;
    while dir.exists() && Instant::now() < until {
        std::thread::sleep(10 * PAUSE);
        if goes_on() {
            return true;
        }
        if is_locked(dir, CONTROLLER) {
            until = Instant::now() + timeout;
        }
    }
    false
}

/// What the sweeper of a controller does before it sweeps.
pub struct Wait<GoesOn, LetGo> {
    /// How long another controller may take to come.
    pub timeout: Duration,
    /// Whether the job is saved when none has come.
    pub save: bool,
    /// Whether the job goes on with a controller on another host.
    pub goes_on: GoesOn,
    /// Releases the directory.
    pub let_go: LetGo,
}

/// Reads from `input` which programs run, until its end. Then kills these and removes what the
/// agent, which is this process's parent, has left in `dir`.
pub fn sweep(
    dir: &Path,
    input: impl Read,
    wait: Option<Wait<impl FnMut() -> bool, impl FnOnce()>>,
) {
    let agent = getppid();
    let running = running_at_end(input);
    if let Some(Wait { timeout, save, goes_on, let_go }) = wait {
        let goes_on = wait_for_controllers(dir, timeout, goes_on);
        if save && !goes_on && dir.exists() {
            // A job that cannot be saved is lost, as it is without a place to save it.
            let _ = saver::start(dir, None).and_then(|mut saver| saver.wait());
        }
        let_go();
    }
    sweep_after(dir, &running, || getppid() != agent);
}

/// The leaders of the groups that had not ended at the end of the input. A broken input has ended,
/// too: the process that wrote it is gone.
fn running_at_end(input: impl Read) -> BTreeSet<u32> {
    let mut running = BTreeSet::new();
    for line in BufReader::new(input).lines().map_while(Result::ok) {
        match (line.get(..1), line.get(1..).and_then(|number| number.parse().ok())) {
            (Some("+"), Some(leader)) => drop(running.insert(leader)),
            (Some("-"), Some(leader)) => drop(running.remove(&leader)),
            _ => {}
        }
    }
    running
}

/// `gone`: whether the agent has ended.
fn sweep_after(dir: &Path, running: &BTreeSet<u32>, gone: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    // Its children are killed when they get another parent, which is after its files are closed.
    while !gone() && Instant::now() < until {
        std::thread::sleep(PAUSE);
    }
    if gone() {
        for leader in running {
            kill_group(*leader);
        }
    }
    let Some(left) = leftovers::find_until(dir, until) else { return };
    let possible = left.possible_segments();
    // `eyrie clean` finds what cannot be removed.
    let _ = left.remove();
    let until = Instant::now() + SEGMENT_GRACE;
    while Instant::now() < until {
        std::thread::sleep(10 * PAUSE);
        segments::remove(&possible);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::{mark, Mark, Use};
    use std::os::unix::fs::DirBuilderExt;
    use std::os::unix::process::CommandExt;

    #[test]
    fn what_a_dead_agent_left_is_removed_and_what_a_living_one_has_stays() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("job");
        let kvsname = format!("sweeper_{}", std::process::id());
        let segment = segments::predicted_segment(&kvsname, 1);
        std::fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
        let marked = Mark { name: "j".into(), kvsname, ranks: 2, ..Mark::default() };
        let entered = (mark(&dir, &marked).unwrap(), Use::begin(&dir).unwrap().unwrap());
        std::fs::write(&segment, b"x").unwrap();
        std::thread::scope(|scope| {
            let sweeping = scope.spawn(|| sweep_after(&dir, &BTreeSet::new(), || true));
            std::thread::sleep(10 * PAUSE);
            assert!(dir.exists() && Path::new(&segment).exists(), "the agent has not ended");
            // As when its process is killed: its lock is released.
            drop(entered);
            sweeping.join().unwrap();
        });
        assert!(!dir.exists() && !Path::new(&segment).exists());
        // Nothing is there: it returns at once.
        sweep_after(&dir, &BTreeSet::new(), || true);
    }

    #[test]
    fn what_programs_have_started_is_killed_unless_they_have_ended() {
        // The shell is the wrapper, which has died with its agent.
        let program = || {
            let mut command = Command::new("sh");
            command.args(["-c", "sleep 1000 <&- & echo; kill -9 $$"]).process_group(0);
            let mut shell = command.stdout(Stdio::piped()).spawn().unwrap();
            let leader = shell.id();
            let output = shell.stdout.take().unwrap();
            shell.wait().unwrap();
            (leader, output)
        };
        let (running, mut its_output) = program();
        let (ended, _output) = program();
        let lines = format!("+{running}\n+{ended}\nrubbish\n-{ended}\n+");
        let left = running_at_end(lines.as_bytes());
        assert_eq!(left, BTreeSet::from([running]));
        let dir = tempfile::tempdir().unwrap();
        sweep_after(&dir.path().join("none"), &left, || true);
        // All processes that have it open are gone.
        its_output.read_to_end(&mut Vec::new()).unwrap();
        let ended = Pid::from_raw(ended as i32).unwrap();
        rustix::process::test_kill_process_group(ended).unwrap();
        kill_group(ended.as_raw_nonzero().get() as u32);
    }
}
