//! Saves a job whose controller is gone and that no other controller has taken over: a controller
//! of its own, `eyrie resume --save`, in a process that outlives the one that started it. Each
//! process with a copy of the journal starts one; agents let only one controller come.

use crate::start::{in_own_session, own_command};
use std::io;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

/// How long agents without a controller wait for one that saves their job.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How long a host with a copy of the journal waits before it saves the job. The host of the lost
/// controller comes first, then one host after the other, so that they do not collide.
pub fn turn(node: eyrie_wire::NodeId) -> Duration {
    Duration::from_secs(5 + 5 * u64::from(node.0 % 4))
}

/// Starts that controller for the job's directory on this host.
///
/// # Errors
/// When the process cannot be made.
pub fn start(dir: &Path, log: Option<&Path>) -> io::Result<Child> {
    let mut command = own_command();
    command.args(["resume", "--save", "--at"]).arg(dir);
    command.args(log.iter().flat_map(|file| ["--log".as_ref(), file.as_os_str()]));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    in_own_session(&mut command).spawn()
}
