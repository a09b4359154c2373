//! The processes that the controller has started: agents, and what starts agents on other hosts.
//! None is waited for without a bound.

use super::beside::Spared;
use super::launcher::{Cluster, SentFile, Target};
use eyrie_supervision::{dies_with_starter, in_own_session, own_command, with_no_signal_blocked};
use eyrie_transport::role::secret_line;
use eyrie_wire::auth::Secret;
use eyrie_wire::role_address::Addr;
use eyrie_wire::NodeId;
use rustix::process::{kill_process, Pid, Signal};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{ChildStderr, Command, Stdio};
use std::sync::mpsc::Sender;

/// Longest line of a launcher that is handed on as one, in bytes.
const MAX_LINE: u64 = 1024;

/// What a child of this process is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Child {
    Agent(NodeId),
    /// What starts the agent of a node on another host, or those of all nodes, and passes their
    /// words on.
    Launcher(Option<NodeId>),
}

impl Child {
    /// The arguments of the command that starts such a process.
    fn args(self) -> Vec<String> {
        match self {
            Child::Agent(node) => vec!["agent".into(), "--node".into(), node.to_string()],
            // It has a command of its own.
            Child::Launcher(_) => vec![],
        }
    }
}

/// The children of this process.
#[derive(Debug)]
pub struct Children {
    pids: BTreeMap<u32, Child>,
    /// Where the controller listens.
    controller: Addr,
    secret: Secret,
    /// Where they write what they do.
    log: Option<PathBuf>,
    /// They go on without this process.
    outlive: bool,
    /// Those that others have started in this process, and where their end is told.
    spared: Spared,
    ended: Option<Sender<(Pid, Option<i32>)>>,
}

impl Children {
    /// None yet. They connect to `controller` and write what they do to `log`.
    /// With `outlive` they do not end with this process.
    pub fn new(controller: Addr, secret: Secret, log: Option<PathBuf>, outlive: bool) -> Children {
        let pids = BTreeMap::new();
        let spared = Spared::default();
        Children { pids, controller, secret, log, outlive, spared, ended: None }
    }

    /// These children are no part of the job; their end is told to `ended`.
    pub fn spare(&mut self, spared: Spared, ended: Sender<(Pid, Option<i32>)>) {
        (self.spared, self.ended) = (spared, Some(ended));
    }

    /// The children that are no part of the job, as far as they have not ended.
    pub fn spared(&self) -> Vec<Pid> {
        self.spared.lock().iter().copied().collect()
    }

    /// Starts an agent on this host. To be called from the thread that lives
    /// longest: its end is what the child takes for the controller's.
    ///
    /// # Errors
    /// When the process cannot be made, or does not take the secret.
    pub fn spawn(&mut self, child: Child) -> std::io::Result<()> {
        let mut command = own_command();
        let log = self.log.iter().flat_map(|file| ["--log".as_ref(), file.as_os_str()]);
        command.args(child.args()).arg("--connect").arg(self.controller.to_string()).args(log);
        if self.outlive {
            // What it inherits stays open when this process has died. An ssh that has started this
            // one would wait for it, and who sees to the job would not know of the death.
            command.stderr(Stdio::piped());
        }
        let mut started = self.start(child, command, Vec::new())?;
        if let Some(mut said) = started.stderr.take() {
            // It ends with the agent, or when our own is not read any more.
            std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::stderr()));
        }
        Ok(())
    }

    /// Starts the agent of a node on another host, or those of all nodes; what is said on the way
    /// there goes to `hear`, by line, and then its end.
    ///
    /// # Errors
    /// As [`Children::spawn`].
    pub fn launch(
        &mut self,
        cluster: &Cluster,
        target: Target,
        files: &[SentFile],
        hear: impl Fn(Option<String>) + Send + 'static,
    ) -> std::io::Result<()> {
        let log = self.log.as_deref();
        let node = target.node();
        let mut command = cluster.command(target, &self.controller, log, files);
        command.stderr(Stdio::piped());
        let mut child = self.start(Child::Launcher(node), command, files.to_vec())?;
        if let Some(stderr) = child.stderr.take() {
            std::thread::spawn(move || said(stderr, hear));
        }
        Ok(())
    }

    /// Starts a process that is told `files` and then the secret.
    fn start(
        &mut self,
        what: Child,
        mut command: Command,
        files: Vec<SentFile>,
    ) -> std::io::Result<std::process::Child> {
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        // The terminal's Ctrl-C reaches `eyrie run` alone.
        with_no_signal_blocked(in_own_session(&mut command));
        if !self.outlive {
            dies_with_starter(&mut command, Signal::TERM);
        }
        // SAFETY: between fork and exec the closure makes one system call, and allocates nothing.
        unsafe {
            command.pre_exec(|| {
                // `eyrie run` ignores it, and what it starts would inherit that.
                libc::signal(libc::SIGTTIN, libc::SIG_DFL);
                Ok(())
            })
        };
        let mut child = command.spawn()?;
        self.pids.insert(child.id(), what);
        let line = secret_line(&self.secret);
        let Some(mut stdin) = child.stdin.take() else { return Ok(child) };
        if files.is_empty() {
            // A line that any pipe holds.
            stdin.write_all(line.as_bytes())?;
            return Ok(child);
        }
        std::thread::spawn(move || {
            // Where it breaks the launcher ends, and says why.
            let sent = files.iter().try_for_each(|file| {
                let mut from = std::fs::File::open(&file.path)?.take(file.bytes);
                std::io::copy(&mut from, &mut stdin).map(drop)
            });
            let _ = sent.and_then(|()| stdin.write_all(line.as_bytes()));
        });
        Ok(child)
    }

    /// Lets go of what has started the agent of a node, or those of all nodes: from now on its end
    /// means nothing. srun has a helper, a process forked from it, that has Slurm kill all that
    /// srun has started when srun dies without having ended it (`_shepherd_spawn` of Slurm's
    /// srun_job.c); the helper is killed.
    pub fn let_go(&self, node: Option<NodeId>) {
        let launchers = self.pids.iter().filter(|(_, child)| **child == Child::Launcher(node));
        for helper in launchers.flat_map(|(pid, _)| helpers_of_srun(*pid)) {
            // It was there a moment ago; its number is not given to another process so soon.
            let _ = kill_process(helper, Signal::KILL);
        }
    }

    /// Reaps children that have ended, adopted ones included; returns those that it has started.
    pub fn reap(&mut self) -> Vec<Child> {
        let mut ended = Vec::new();
        let mut spared = self.spared.lock();
        let options = rustix::process::WaitOptions::NOHANG;
        while let Ok(Some((pid, status))) = rustix::process::wait(options) {
            if let Some(heard) = self.ended.as_ref().filter(|_| spared.remove(&pid)) {
                // They may not be looked at any more.
                let _ = heard.send((pid, status.exit_status()));
            }
            ended.extend(self.pids.remove(&(pid.as_raw_nonzero().get() as u32)));
        }
        ended
    }

    /// Kills the agent of a node, when it is on this host; its ranks die with it.
    pub fn kill(&self, node: NodeId) -> bool {
        let agent = Child::Agent(node);
        let pid = self.pids.iter().find(|(_, child)| **child == agent).map(|(pid, _)| *pid as i32);
        let Some(pid) = pid.and_then(Pid::from_raw) else { return false };
        // It was not reaped yet, so that the number is still its own.
        let _ = kill_process(pid, Signal::KILL);
        true
    }

    /// Whether no agent of a node that is up is left.
    pub fn only_lost(&self, up: &[bool]) -> bool {
        !self.pids.values().any(|child| match child {
            Child::Agent(node) | Child::Launcher(Some(node)) => {
                up.get(node.index()).copied().unwrap_or(false)
            }
            // It is ended when all agents have.
            Child::Launcher(None) => false,
        })
    }

    /// Where agents connect to.
    pub fn controller(&self) -> &Addr {
        &self.controller
    }

    pub fn is_empty(&self) -> bool {
        self.pids.is_empty()
    }
}

/// The processes at and below `launcher` that a process of srun has forked, and that run srun
/// themselves. (A site's srun may be a script that runs the real one.)
fn helpers_of_srun(launcher: u32) -> Vec<Pid> {
    let is_srun = |pid: &u32| eyrie_proc::executable(*pid).is_some_and(|name| name == "srun");
    let processes = std::iter::once(launcher).chain(eyrie_proc::descendants(launcher));
    let forked = processes.filter(is_srun).flat_map(eyrie_proc::children_of).filter(is_srun);
    forked.filter_map(|pid| Pid::from_raw(pid as i32)).collect()
}

/// Hands on the lines of a launcher, and then that it has ended; long lines are cut.
fn said(stderr: ChildStderr, hear: impl Fn(Option<String>)) {
    let mut from = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        match from.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(1..) => hear(Some(String::from_utf8_lossy(&line).trim_end().to_string())),
            _ => return hear(None),
        }
    }
}
