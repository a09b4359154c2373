//! Roles in processes of their own on this host. The controller starts and stops them; they connect
//! to it by themselves. None outlives its agent.

use eyrie_supervision::{dies_with_starter, in_own_session, own_command};
use eyrie_transport::role::secret_line;
use eyrie_wire::auth::Secret;
use eyrie_wire::control::{FromAgent, Role};
use eyrie_wire::role_address::Addr;
use rustix::process::{kill_process, Pid, Signal, WaitStatus};
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;

/// The processes of roles on this host.
#[derive(Default)]
pub struct Roles(BTreeMap<u32, Role>);

/// What roles need to know.
pub struct Surroundings<'a> {
    pub controller: &'a Addr,
    /// From this file they learn of another controller.
    pub controller_file: Option<&'a Path>,
    pub secret: &'a Secret,
    pub log: Option<&'a Path>,
}

impl Roles {
    /// Starts the process of a role. If it cannot be started, returns the report of its end with
    /// the reason.
    pub fn start(&mut self, role: Role, with: &Surroundings<'_>) -> Option<FromAgent> {
        match spawn(role, with) {
            Ok(pid) => {
                self.0.insert(pid, role);
                None
            }
            Err(e) => {
                let cause = format!("it cannot be started: {e}");
                Some(FromAgent::RoleEnded { role, cause })
            }
        }
    }

    /// Kills the process of a role. Its end is reported when it is reaped.
    pub fn stop(&self, role: Role) {
        let pid = self.0.iter().find(|(_, of)| **of == role).map(|(pid, _)| *pid as i32);
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            // No other process has its number until it is reaped.
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// A child has ended. If it was a role's process, returns the report of its end.
    pub fn ended(&mut self, pid: u32, status: WaitStatus) -> Option<FromAgent> {
        let role = self.0.remove(&pid)?;
        let cause = match status.terminating_signal() {
            Some(signal) => format!("its process was killed by signal {signal}"),
            None => format!("its process ended with code {}", status.exit_status().unwrap_or(0)),
        };
        Some(FromAgent::RoleEnded { role, cause })
    }
}

fn spawn(role: Role, with: &Surroundings<'_>) -> std::io::Result<u32> {
    let log = with.log.iter().flat_map(|file| ["--log".as_ref(), file.as_os_str()]);
    let follow =
        with.controller_file.iter().flat_map(|file| ["--follow".as_ref(), file.as_os_str()]);
    let mut command = own_command();
    command
        .args(role.args())
        .arg("--connect")
        .arg(with.controller.to_string())
        .args(follow)
        .args(log)
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    // A signal to the agent's process group must not reach roles: the agent is asked first.
    dies_with_starter(in_own_session(&mut command), Signal::KILL);
    // SAFETY: between fork and exec the closure makes one system call, and allocates nothing.
    unsafe {
        command.pre_exec(|| {
            // Slurm, when it makes way for another job, sends SIGTERM to all processes: without
            // roles nothing could leave this host.
            libc::signal(libc::SIGTERM, libc::SIG_IGN);
            Ok(())
        })
    };
    let mut child = command.spawn()?;
    if let Some(stdin) = &mut child.stdin.take() {
        // Any pipe holds a line. A process that does not read it ends, and is reaped.
        let _ = stdin.write_all(secret_line(with.secret).as_bytes());
    }
    Ok(child.id())
}
