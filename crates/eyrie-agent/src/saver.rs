//! What saves a job that nobody has gone on with: a controller of its own, `eyrie resume --save`,
//! in a process that outlives who started it. Who has a copy of the journal starts one; agents let
//! only one controller come.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long agents without a controller wait for one that saves their job.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How long a host with a copy of the journal leaves it to others: first to the host of the lost
/// controller, then one host after the other, so that they do not meet.
pub fn turn(node: eyrie_wire::Node) -> Duration {
    Duration::from_secs(5 + 5 * u64::from(node % 4))
}

/// Starts it for the job's directory on this host.
///
/// # Errors
/// When the process cannot be made.
pub fn start(dir: &Path, log: Option<&Path>) -> io::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("eyrie").args(["resume", "--save", "--at"]).arg(dir);
    command.args(log.iter().flat_map(|file| ["--log".as_ref(), file.as_os_str()]));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: one system call. What ends the agent's process group spares it.
    unsafe { command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?)) };
    command.spawn()
}
