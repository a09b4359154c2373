//! Roles in processes of their own on this host: started and killed by order of the controller,
//! which they connect to by themselves. None outlives its agent.

use crate::node::Agent;
use eyrie_transport::role::secret_line;
use eyrie_wire::control::{FromAgent, Role};
use rustix::process::{kill_process, Pid, Signal, WaitStatus};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

impl Agent {
    /// Starts the process of a role; why it cannot be started is told as its end.
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
        // SAFETY: system calls only, no allocation.
        unsafe {
            command.pre_exec(|| {
                // What ends the agent's group asks the agent first; and Slurm, which makes way for
                // another job, sends SIGTERM to all: without roles nothing could leave this host.
                rustix::process::setsid()?;
                libc::signal(libc::SIGTERM, libc::SIG_IGN);
                Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?)
            })
        };
        let mut child = command.spawn()?;
        // A line that any pipe holds; a process that does not take it ends, which is found out.
        child.stdin.take().iter_mut().for_each(|stdin| {
            let _ = stdin.write_all(secret_line(&self.secret).as_bytes());
        });
        Ok(child.id())
    }

    /// Kills the process of a role; its end is told when it is found out.
    pub fn stop_role(&self, role: Role) {
        let pid = self.roles.iter().find(|(_, of)| **of == role).map(|(pid, _)| *pid as i32);
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            // Its number is its own until it is reaped.
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// A child has ended: tells of it when it was a role's process.
    pub fn role_ended(&mut self, pid: u32, status: WaitStatus) {
        let Some(role) = self.roles.remove(&pid) else { return };
        let cause = match status.terminating_signal() {
            Some(signal) => format!("its process was killed by signal {signal}"),
            None => format!("its process ended with code {}", status.exit_status().unwrap_or(0)),
        };
        self.connection.send(&FromAgent::RoleEnded { role, cause });
    }
}
