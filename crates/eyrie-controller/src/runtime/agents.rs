//! Agents from the controller's side: their processes, and the connections to them. Nothing here waits for an
//! agent: a frozen one must not stop the controller.

use crossbeam_channel::{unbounded, Sender};
use eyrie_transport::{frame, Stream};
use eyrie_wire::control::ToAgent;
use eyrie_wire::Node;
use std::collections::BTreeMap;
use std::net::Shutdown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The sending half of a connection to an agent. Messages queue while the agent does not read.
#[derive(Clone, Debug)]
pub struct Link {
    queue: Sender<ToAgent>,
}

impl Link {
    /// Starts to write to `stream`.
    ///
    /// # Errors
    /// When the stream cannot be duplicated.
    pub fn new(stream: &Stream) -> std::io::Result<Link> {
        let mut stream = stream.try_clone()?;
        let (queue, messages) = unbounded();
        std::thread::spawn(move || {
            for message in messages {
                if frame::write(&mut stream, &message).is_err() {
                    break;
                }
            }
            // Wakes the reader too: the connection is over for both.
            let _ = stream.shutdown(Shutdown::Both);
        });
        Ok(Link { queue })
    }

    pub fn send(&self, message: ToAgent) {
        // Fails when the connection is over, which its reader reports.
        let _ = self.queue.send(message);
    }
}

/// The agents' processes: children of this one.
#[derive(Debug, Default)]
pub struct Children {
    pids: BTreeMap<u32, Node>,
}

impl Children {
    /// Starts the agent of a node. To be called from the thread that incarnations longest: its end is what the agent
    /// takes for the controller's.
    ///
    /// # Errors
    /// When the process cannot be made.
    pub fn spawn(&mut self, dir: &Path, node: Node) -> std::io::Result<()> {
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("eyrie")
            .args(["agent", "--node", &node.to_string(), "--job-dir"])
            .arg(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        // SAFETY: only system calls, no allocation.
        unsafe { command.pre_exec(prepare) };
        self.pids.insert(command.spawn()?.id(), node);
        Ok(())
    }

    /// Reaps children that have ended, adopted ones included; returns the nodes whose agent was among them.
    pub fn reap(&mut self) -> Vec<Node> {
        let mut nodes = Vec::new();
        let options = rustix::process::WaitOptions::NOHANG;
        while let Ok(Some((pid, _))) = rustix::process::wait(options) {
            nodes.extend(self.pids.remove(&(pid.as_raw_nonzero().get() as u32)));
        }
        nodes
    }

    /// Kills the agent of a node; its ranks die with it.
    pub fn kill(&self, node: Node) {
        let pid = self.pids.iter().find(|(_, n)| **n == node).map(|(pid, _)| *pid as i32);
        if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
            // It was not reaped yet, so that the number is still its own.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }

    /// Whether only agents of nodes that are not up are left.
    pub fn only_lost(&self, up: &[bool]) -> bool {
        !self.pids.values().any(|node| up.get(*node as usize).copied().unwrap_or(false))
    }

    pub fn is_empty(&self) -> bool {
        self.pids.is_empty()
    }
}

/// Runs in the child between fork and exec.
fn prepare() -> std::io::Result<()> {
    // SAFETY: plain system calls on this process; the signal set is initialised before its use.
    unsafe {
        // A session of its own: the terminal's Ctrl-C reaches `eyrie run` alone.
        if libc::setsid() < 0 {
            return Err(std::io::Error::last_os_error());
        }
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM as libc::c_ulong, 0, 0, 0);
        libc::signal(libc::SIGTTIN, libc::SIG_DFL);
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
    Ok(())
}
