//! What an agent leaves that is killed with SIGKILL: a process beside it waits for its end, which
//! is the end of its own standard input, and removes the job's directory on this host and the
//! segments of its ranks. Where both are killed at once, the next job here does it, or `eyrie
//! clean`. The controller of a job on several hosts has one, too.

use crate::{leftovers, shared};
use rustix::process::{getppid, setsid, Pid};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the rest of a killed agent may take to be gone: its lock, and its children.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a killed rank may go on to make a segment.
const LAST_WORDS: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(10);

/// The process, while the agent lives: dropping it closes its input.
pub struct Sweeper(Child);

impl Sweeper {
    /// Starts it for the job's directory on this host.
    ///
    /// # Errors
    /// When the process cannot be made.
    pub fn start(dir: &Path) -> std::io::Result<Sweeper> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("eyrie").arg("sweep").arg(dir).stdin(Stdio::piped());
        // Whoever started the agent waits for the end of these.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: one system call. What ends the agent's process group spares it.
        unsafe { command.pre_exec(|| Ok(setsid().map(drop)?)) };
        Ok(Sweeper(command.spawn()?))
    }

    /// Its number, for whoever ends all other children.
    pub fn pid(&self) -> Option<Pid> {
        Pid::from_raw(self.0.id() as i32)
    }
}

/// Waits for the end of `input`, then removes what the agent that is our parent has left in `dir`.
pub fn sweep(dir: &Path, mut input: impl Read) {
    let agent = getppid();
    let mut nothing = Vec::new();
    // However it ends: nobody is there any more.
    let _ = input.read_to_end(&mut nothing);
    let until = Instant::now() + PATIENCE;
    // Its ranks are killed when its children get another parent, after its files are closed.
    while getppid() == agent && Instant::now() < until {
        std::thread::sleep(PAUSE);
    }
    // A child on its way to its program may still have the lock.
    let left = loop {
        match leftovers::find(dir) {
            None if dir.exists() && Instant::now() < until => std::thread::sleep(PAUSE),
            left => break left,
        }
    };
    let Some(left) = left else { return };
    let segments = left.possible_segments();
    // What cannot be removed is found by `eyrie clean`.
    let _ = left.remove();
    let until = Instant::now() + LAST_WORDS;
    while Instant::now() < until {
        std::thread::sleep(10 * PAUSE);
        shared::remove(&segments);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_dir::HostDir;
    use eyrie_wire::control::JobOnHost;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_a_dead_agent_left_goes_and_what_a_living_one_has_stays() {
        let base = tempfile::tempdir().unwrap();
        std::fs::set_permissions(base.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let dir = base.path().join("job");
        let kvsname = format!("sweeper_{}", std::process::id());
        let job = JobOnHost {
            dir: dir.clone().into(),
            provided: vec![],
            copied: false,
            kvsname: kvsname.clone(),
            ranks: 2,
            compared: None,
        };
        let segment = shared::predicted_segment(&kvsname, 1);
        let entered = HostDir::enter(&job, None).unwrap();
        std::fs::write(&segment, b"x").unwrap();
        std::thread::scope(|scope| {
            let sweeping = scope.spawn(|| sweep(&dir, std::io::empty()));
            std::thread::sleep(10 * PAUSE);
            assert!(dir.exists() && Path::new(&segment).exists(), "the agent has not ended");
            // As a process that is killed: its lock goes.
            drop(entered);
            sweeping.join().unwrap();
        });
        assert!(!dir.exists() && !Path::new(&segment).exists());
        // Nothing is there: it ends at once.
        sweep(&dir, std::io::empty());
    }
}
