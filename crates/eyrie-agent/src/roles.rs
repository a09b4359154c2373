//! Roles in processes of their own on this host. The controller starts and stops them; they connect
//! to it by themselves. None outlives its agent.

use crate::node::Agent;
use eyrie_transport::role::secret_line;
use eyrie_wire::control::{FromAgent, Role};
use rustix::process::{kill_process, Pid, Signal, WaitStatus};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

impl Agent {
    /// Starts the process of a role. If it cannot be started, its end is reported with the reason.
    pub fn start_role(&mut self, role: Role) {
        match self.spawn_role(role) {
            Ok(pid) => drop(self.roles.insert(pid, role)),
            Err(e) => {
                let cause = format!("it cannot be started: {e}");
                self.connection.send(&FromAgent::RoleEnded { role, cause });
            }
        }
    }

    fn spawn_role(&self, role: Role) -> std::io::Result<u32> {
        let log = self.log.iter().flat_map(|file| ["--log".as_ref(), file.as_os_str()]);
        let file = self.controller_file();
        let follow = file.iter().flat_map(|file| ["--follow".as_ref(), file.as_os_str()]);
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("eyrie")
            .args(role.args())
            .arg("--connect")
            .arg(self.controller.to_string())
            .args(follow)
            .args(log)
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        // SAFETY: between fork and exec the closure only makes system calls, and allocates nothing.
        unsafe {
            command.pre_exec(|| {
                // A signal to the agent's process group must not reach roles: the agent is asked
                // first. Slurm, when it makes way for another job, sends SIGTERM to all processes:
                // without roles nothing could leave this host.
                rustix::process::setsid()?;
                libc::signal(libc::SIGTERM, libc::SIG_IGN);
                Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?)
            })
        };
        let mut child = command.spawn()?;
        if let Some(stdin) = &mut child.stdin.take() {
            // Any pipe holds a line. A process that does not read it ends, and is reaped.
            let _ = stdin.write_all(secret_line(&self.secret).as_bytes());
        }
        Ok(child.id())
    }

    /// Kills the process of a role. Its end is reported when it is reaped.
    pub fn stop_role(&self, role: Role) {
        let pid = self.roles.iter().find(|(_, of)| **of == role).map(|(pid, _)| *pid as i32);
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            // No other process has its number until it is reaped.
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Reports the end of a child that was a role's process.
    pub fn role_ended(&mut self, pid: u32, status: WaitStatus) {
        let Some(role) = self.roles.remove(&pid) else { return };
        let cause = match status.terminating_signal() {
            Some(signal) => format!("its process was killed by signal {signal}"),
            None => format!("its process ended with code {}", status.exit_status().unwrap_or(0)),
        };
        self.connection.send(&FromAgent::RoleEnded { role, cause });
    }
}
