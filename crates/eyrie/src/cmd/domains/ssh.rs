//! A connection to the site of another domain: an ssh that runs a controller there, is told its
//! order, and brings what that prints. It decides nothing of the job.

use super::order::{self, Order, Told};
use super::output;
use anyhow::Context;
use eyrie_cli::out;
use eyrie_controller::runtime::{FromOutside, Spared, Stop};
use eyrie_host::shell::{self, SSH_FAILED};
use eyrie_supervision::{in_own_session, with_no_signal_blocked};
use eyrie_transport::frame;
use rustix::process::Pid;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{sync_channel, Receiver, Sender, SyncSender};
use std::thread::JoinHandle;

/// How long ssh may take to reach a site, in seconds.
const CONNECT_TIMEOUT_S: u32 = 30;
/// A connection that is silent for this many minutes ends: lines between sites break.
const SILENT_MINUTES: u32 = 30;
/// How much waits for a site which is not reached.
const MAX_TOLD: usize = 4;

/// How a site is reached.
pub struct Ssh {
    /// The command that takes ssh's arguments.
    pub program: OsString,
    pub destination: String,
    /// The name of its domain.
    pub name: String,
    /// Its processes are no part of the job.
    pub spared: Spared,
    /// Where it is told that the job must end.
    pub stops: Sender<FromOutside>,
}

/// A connection.
pub struct Connection {
    child: Child,
    output: [JoinHandle<()>; 2],
    /// Where goes what the site is told; without it its line ends.
    told: Option<SyncSender<Told>>,
}

impl Ssh {
    /// Has the site's shell run these words. It is told the order, if there is one, and then what
    /// [`Connection::tell`] says.
    ///
    /// # Errors
    /// When the process cannot be made.
    pub fn start(&self, words: &OsStr, order: Option<Order>) -> anyhow::Result<Connection> {
        let name = self.name.clone();
        let failed = || format!("domain {name}: cannot start {}", self.program.to_string_lossy());
        let mut process = shell::ssh(&self.program, CONNECT_TIMEOUT_S, &self.destination);
        // Options of ssh may also follow the destination.
        process.args(["-o", "ServerAliveInterval=60", "-o"]);
        process.arg(format!("ServerAliveCountMax={SILENT_MINUTES}"));
        process.arg(words);
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The terminal's Ctrl-C reaches `eyrie run` alone.
        with_no_signal_blocked(in_own_session(&mut process));
        let mut child = {
            let mut spared = self.spared.lock();
            let child = process.spawn().with_context(failed)?;
            spared.insert(Pid::from_child(&child));
            child
        };
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            anyhow::bail!("{}: it has no streams", failed());
        };
        let (told, to_tell) = sync_channel(MAX_TOLD);
        std::thread::spawn(move || tell(stdin, order.as_ref(), &to_tell));
        let stops = self.stops.clone();
        let out = std::thread::spawn(move || {
            if let Err(e) = output::pass(stdout, io::stdout(), None) {
                let _ = stops.send(FromOutside::Stop(not_written(&e)));
            }
        });
        // What cannot be said there cannot be said.
        let err = std::thread::spawn(move || drop(output::pass(stderr, io::stderr(), Some(&name))));
        Ok(Connection { child, output: [out, err], told: Some(told) })
    }
}

impl Connection {
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The site is told this, if it still can be.
    pub fn tell(&self, told: Told) {
        // One that is not reached finds out by the end of its line.
        let _ = self.told.as_ref().map(|to| to.try_send(told));
    }

    /// The site is told nothing more, and sees that.
    pub fn close(&mut self) {
        self.told = None;
    }

    /// With which code it has ended.
    pub fn ended(&mut self) -> Option<i32> {
        match self.child.try_wait() {
            Ok(ended) => ended.map(|status| status.code().unwrap_or(SSH_FAILED)),
            // The job has reaped it, and said so.
            Err(_) => Some(0),
        }
    }

    /// Ends it.
    pub fn kill(&mut self) {
        // What has ended meanwhile is gone, or is reaped here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Whether all that it has brought was passed on.
    pub fn has_said_all(&self) -> bool {
        self.output.iter().all(JoinHandle::is_finished)
    }
}

/// Why the job ends when standard output cannot be written.
fn not_written(e: &io::Error) -> Stop {
    let reader_left = e.kind() == io::ErrorKind::BrokenPipe;
    let code = if reader_left { out::READER_LEFT } else { 1 };
    Stop { code, cause: format!("standard output: {e}") }
}

/// Tells a site its order, and then what else comes, until there is no more to come. When it breaks
/// off the site has ended, which is seen by ssh's end.
fn tell(mut to: ChildStdin, order: Option<&Order>, more: &Receiver<Told>) {
    let order = order.map_or(Ok(()), |order| order::write(&mut to, order));
    let mut written = order.and_then(|()| to.flush());
    while let (Ok(()), Ok(told)) = (&written, more.recv()) {
        written = frame::write(&mut to, &told).and_then(|()| to.flush());
    }
}
