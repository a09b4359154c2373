//! The agent's loop: one thread waits for the controller, the ranks, signals and finished
//! transfers, and handles each in turn.

use crate::connection::{connect, probe, Connection};
use crate::family::kill_children_but;
use crate::files::{raise_limit, Holds};
use crate::host_dir::{self, HostDir};
use crate::incoming::Incoming;
use crate::journal::Journal;
use crate::launch::reserve_fixed_numbers;
use crate::measure::Measuring;
use crate::outlive::outlive_signals;
use crate::process::{CapturePhase, Process};
use crate::reach::Target;
use crate::sweeper::Sweeper;
use crate::transfer::Uploaded;
use crate::waiting::Waiting;
use crate::{shared, AgentConfig};
use eyrie_wire::addr::Addr;
use eyrie_wire::auth::Secret;
use eyrie_wire::control::{
    Claim, FromAgent, ImageAt, ImageMeta, JobOnHost, Role, StandardStream, StartFault, StartRank,
    ToAgent,
};
use eyrie_wire::directory::Directory;
use eyrie_wire::entries::Entries;
use eyrie_wire::{ImageId, Node, RankInstance};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long killed ranks may take to be gone.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// The result of fetching an image: its stream, or why there is none.
pub type Opened = Result<(eyrie_transport::Stream, ImageMeta), (String, StartFault)>;

/// What a thread reports.
pub enum Done {
    Opened {
        start: Box<StartRank>,
        since: Instant,
        /// The image that is in place: `result` has the difference to it. 0: none, it is whole.
        in_place: ImageId,
        result: Opened,
    },
    Fed {
        instance: RankInstance,
        result: std::io::Result<u64>,
    },
    Uploaded {
        instance: RankInstance,
        image: ImageId,
        /// Bytes of (stdout, stderr) that the rank had written before the image.
        output: [u64; 2],
        store: Addr,
        result: anyhow::Result<Uploaded>,
    },
    /// An image was put in place for an incoming rank, or not. `into`: the pipe for the next image.
    Prepared {
        instance: RankInstance,
        image: ImageId,
        into: OwnedFd,
        result: Result<u64, String>,
    },
    /// Another controller listens at this address.
    Controller(Addr),
    /// The controller lives, and has declared this node dead.
    DeclaredDead,
    /// This host is about to be taken away; the reason.
    Notice(String),
    /// Another host can be reached again, or no longer.
    Reached {
        node: Node,
        reached: bool,
    },
}

/// Why the loop ended.
enum End {
    /// The controller ended it.
    Ordered,
    /// A signal ended it; the controller's death causes one, too.
    Signalled,
    /// The connection broke.
    Disconnected,
}

pub struct Agent {
    /// Files that came with this process.
    pub sent: Sent,
    /// The job, once the controller has sent it.
    pub job: Option<Box<JobOnHost>>,
    /// The job's directory on this host. It is removed when this process ends.
    pub dir: Option<HostDir>,
    /// Removes that directory when this process is killed.
    pub sweeper: Option<Sweeper>,
    /// The newest directory, with its epoch.
    pub directory: Option<(u64, Vec<u8>)>,
    pub node: Node,
    /// Its contact with the controller, and how long it waits for another one; `None`: it ends
    /// without one.
    pub waiting: Option<Waiting>,
    /// The process that saves the job, which outlives this one.
    pub saver: Option<Pid>,
    /// The copy of the controller's journal that is kept here.
    pub journal: Option<Journal>,
    pub secret: Secret,
    /// Where the controller listens.
    pub controller: Addr,
    /// Where roles write their log.
    pub log: Option<PathBuf>,
    /// The processes of roles on this host.
    pub roles: BTreeMap<u32, Role>,
    pub connection: Connection,
    pub processes: BTreeMap<RankInstance, Process>,
    /// Ranks that are about to come to this node: their memory is being put in place.
    pub incoming: BTreeMap<RankInstance, Incoming>,
    /// Ranks that are killed as soon as they have started.
    pub killed: BTreeSet<RankInstance>,
    pub kvs: Entries,
    /// PMI barriers that the job has passed.
    pub barriers: u32,
    /// What is being measured.
    pub measuring: Vec<Measuring>,
    /// Other hosts to which this one connects, to see whether they can be reached.
    pub watched: BTreeMap<Node, Target>,
    /// The user was told that writes of ranks cannot be tracked.
    pub untracked: bool,
    /// The user was told what to do about a rank that dies of a bus error.
    pub bus_error_explained: bool,
    /// Files that images need, and when their names are checked next.
    pub holds: Holds,
    pub watch_at: Instant,
    /// The limit of open files that ranks get.
    pub open_files: libc::rlimit,
    pub done: (Sender<Done>, Receiver<Done>),
    /// Threads in the background write to it, so that the loop reads `done`.
    pub waker: Arc<UnixStream>,
    /// How long the agent stays after SIGTERM; `None` while it has no job.
    pub grace: Option<Duration>,
    /// When the agent ends after SIGTERM.
    pub leaves_at: Option<Instant>,
}

/// A directory with files that came with this process; removed when dropped.
pub struct Sent(Option<PathBuf>);

impl Sent {
    fn path(&self) -> Option<&Path> {
        self.0.as_deref()
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        if let Some(dir) = &self.0 {
            // What cannot be removed stays.
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

/// What a descriptor in the poll set belongs to.
#[derive(Clone, Copy)]
enum Token {
    Control,
    Signal,
    Waker,
    Channel(RankInstance),
    /// The process behind a wrapper has ended.
    MpiProcess(RankInstance),
    Pmi(RankInstance),
    Output(RankInstance),
    Input(RankInstance),
}

pub fn run(config: &AgentConfig) -> anyhow::Result<()> {
    let open_files = raise_limit()?;
    outlive_signals()?;
    let _reserved = reserve_fixed_numbers()?;
    let (mut signals, signals_in) = UnixStream::pair()?;
    signals.set_nonblocking(true)?;
    for signal in [SIGCHLD, SIGTERM, SIGINT, SIGHUP] {
        signal_hook::low_level::pipe::register(signal, signals_in.try_clone()?)?;
    }
    let ended = Arc::new(AtomicBool::new(false));
    let leaves = Arc::new(AtomicBool::new(false));
    for (signal, flag) in [(SIGINT, &ended), (SIGHUP, &ended), (SIGTERM, &leaves)] {
        signal_hook::flag::register(signal, Arc::clone(flag))?;
    }
    // A grandchild whose parent has died becomes a child of the agent: none escapes.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let claim = Claim::Agent { node: config.node, pid: std::process::id() };
    let stream = connect(&config.controller, &config.secret, &claim)?;
    let (mut woken, waker) = UnixStream::pair()?;
    woken.set_nonblocking(true)?;
    let mut agent = Agent {
        sent: Sent(config.sent.clone()),
        job: None,
        dir: None,
        sweeper: None,
        directory: None,
        node: config.node,
        waiting: None,
        saver: None,
        journal: None,
        secret: config.secret.clone(),
        controller: config.controller.clone(),
        log: config.log.clone(),
        roles: BTreeMap::new(),
        connection: Connection::new(stream)?,
        processes: BTreeMap::new(),
        incoming: BTreeMap::new(),
        killed: BTreeSet::new(),
        kvs: Entries::default(),
        barriers: 0,
        measuring: Vec::new(),
        watched: BTreeMap::new(),
        untracked: false,
        bus_error_explained: false,
        holds: Holds::default(),
        watch_at: Instant::now(),
        open_files,
        done: channel(),
        waker: Arc::new(waker),
        grace: None,
        leaves_at: None,
    };
    if let Err(e) = fix_addresses() {
        agent.connection.send(&FromAgent::Note { text: addresses_vary(&e) });
    }
    let end = loop {
        if let Some(end) = agent.turn(&mut signals, &mut woken) {
            break end;
        }
        let leaves = leaves.swap(false, Ordering::Relaxed) && !agent.leaves_later();
        if leaves || ended.load(Ordering::Relaxed) {
            break End::Signalled;
        }
    };
    let mut left: Vec<String> = Vec::new();
    for process in agent.processes.values() {
        process.kill();
        left.extend(process.shared.iter().cloned());
        left.extend(shared::segments(process.mpi_pid.unwrap_or(process.pid)));
    }
    let spared = agent.sweeper.as_ref().and_then(Sweeper::pid).into_iter().chain(agent.saver);
    kill_children_but(&spared.collect::<Vec<_>>(), KILL_TIMEOUT);
    shared::remove(&left);
    // A controller that lives learns of the agent's end now.
    drop(agent.connection);
    // The controller's death arrives as a signal or as the end of the connection: then only the
    // agent clears its directory. The signal comes when one of its threads ends, while others may
    // still hold the directory's lock.
    let dying = matches!(end, End::Signalled | End::Disconnected);
    if let Some(dir) = agent.dir.take() {
        dir.leave(dying);
    }
    if let End::Disconnected = end {
        // Perhaps the controller declared this node dead while it was frozen. The controller should
        // learn that the node runs again.
        probe(&config.controller, &config.secret, &claim);
    }
    Ok(())
}

/// The note for the user when addresses cannot be fixed.
fn addresses_vary(e: &std::io::Error) -> String {
    format!(
        "address randomization cannot be switched off: personality(2) fails ({e}), perhaps because \
         a sandbox forbids it. The job runs on. What is lost: a rank that dies before its first \
         image may come back with other addresses, so that a program that sends addresses (MPICH \
         does for MPI_Win) may diverge. To allow it, let the sandbox's seccomp profile permit \
         personality(0x0040000); for containers, for instance, --security-opt seccomp=unconfined"
    )
}

/// Switches address randomization off for this process and all that it starts: a rank that is
/// restarted must find everything at the addresses of its first incarnation.
fn fix_addresses() -> std::io::Result<()> {
    // SAFETY: the call takes no pointer, and changes only how later programs are executed.
    match unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    }
}

impl Agent {
    /// Waits for events and handles them.
    fn turn(&mut self, signals: &mut UnixStream, woken: &mut UnixStream) -> Option<End> {
        let ready = self.wait(signals, woken);
        for token in ready {
            match token {
                Token::Control => {
                    let messages = match self.connection.receive() {
                        Ok(messages) => messages,
                        Err(_) if self.wait_for_another() => Vec::new(),
                        Err(_) => return Some(End::Disconnected),
                    };
                    if let Some(waiting) = &self.waiting {
                        waiting.contacted();
                    }
                    for message in messages {
                        if let ToAgent::Shutdown = message {
                            return Some(End::Ordered);
                        }
                        self.handle(message);
                    }
                }
                Token::Signal => {
                    drain(signals);
                    self.reap();
                }
                Token::Waker => {
                    drain(woken);
                    while let Ok(done) = self.done.1.try_recv() {
                        match done {
                            Done::Opened { start, since, in_place, result } => {
                                self.opened(start, (since, in_place), result);
                            }
                            Done::Fed { instance, result } => self.fed(instance, &result),
                            Done::Uploaded { instance, image, output, store, result } => {
                                self.uploaded(instance, image, output, store, result);
                            }
                            Done::Prepared { instance, image, into, result } => {
                                self.prepared(instance, image, into, result);
                            }
                            Done::DeclaredDead => return Some(End::Ordered),
                            Done::Controller(addr) => self.follow(addr),
                            Done::Notice(cause) => self.noticed(cause),
                            Done::Reached { node, reached } => self.host_reached(node, reached),
                        }
                    }
                }
                Token::Channel(instance) => self.receive_from_rank(instance),
                Token::MpiProcess(instance) => self.mpi_process_ended(instance),
                Token::Pmi(instance) => self.serve_pmi(instance),
                Token::Output(instance) => self.pass_output(instance, false),
                Token::Input(instance) => self.pass_input(instance),
            }
        }
        self.watch_captures();
        self.watch_signals();
        self.watch_files();
        self.watch_measurements();
        self.report_ended();
        self.show_contact();
        self.save_when_due();
        let until = self.waiting.as_ref().and_then(|waiting| waiting.until);
        let over = |until: Option<Instant>| until.is_some_and(|until| Instant::now() >= until);
        if over(until) {
            tracing::info!("no other controller has come");
            return Some(End::Ordered);
        }
        if over(self.leaves_at) {
            tracing::info!("its time after SIGTERM is over");
            return Some(End::Ordered);
        }
        match self.connection.flush() {
            Ok(()) => None,
            Err(_) if self.wait_for_another() => None,
            Err(_) => Some(End::Disconnected),
        }
    }

    fn wait(&self, signals: &UnixStream, woken: &UnixStream) -> Vec<Token> {
        if self.connection.has_more() {
            return vec![Token::Control];
        }
        let mut tokens = vec![Token::Signal, Token::Waker];
        let mut fds = vec![
            PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(woken.as_fd(), PollFlags::IN),
        ];
        if let Some(fd) = self.connection.fd() {
            let mut control = PollFlags::IN;
            control.set(PollFlags::OUT, self.connection.wants_to_write());
            tokens.push(Token::Control);
            fds.push(PollFd::from_borrowed_fd(fd, control));
        }
        for (instance, p) in &self.processes {
            let mut add = |token, fd, flags| {
                tokens.push(token);
                fds.push(PollFd::from_borrowed_fd(fd, flags));
            };
            if let Some(fd) = p.stdin.as_ref().and_then(|i| i.wanted()) {
                add(Token::Input(*instance), fd, PollFlags::OUT);
            }
            if let Some(fd) = &p.watch {
                add(Token::MpiProcess(*instance), fd.as_fd(), PollFlags::IN);
            }
            // Messages of ranks become messages to the controller. None is read while the queue to
            // the controller is full.
            if self.connection.is_full() {
                continue;
            }
            if let Some(fd) = &p.channel {
                add(Token::Channel(*instance), fd.as_fd(), PollFlags::IN);
            }
            if let Some(fd) = &p.pmi {
                add(Token::Pmi(*instance), fd.as_fd(), PollFlags::IN);
            }
            for fd in [p.stdout.wanted(), p.stderr.wanted()].into_iter().flatten() {
                add(Token::Output(*instance), fd, PollFlags::IN);
            }
        }
        let timeout = self.next_deadline().map(|at| {
            let left = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        // Interrupted by a signal: the next turn finds what was ready.
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return Vec::new();
        }
        fds.iter().zip(tokens).filter(|(fd, _)| !fd.revents().is_empty()).map(|(_, t)| t).collect()
    }

    fn next_deadline(&self) -> Option<Instant> {
        let until = |p: &Process| match &p.capture.as_ref()?.phase {
            CapturePhase::Asked { again, look, .. } => Some(again.unwrap_or(*look)),
            CapturePhase::Uploading(_) => None,
        };
        let watch = (!self.holds.is_empty()).then_some(self.watch_at);
        let alone = self
            .waiting
            .iter()
            .flat_map(|waiting| waiting.until.into_iter().chain(waiting.save_at))
            .chain(self.waiting.iter().filter_map(|waiting| waiting.contact.opens_at()));
        let leaves = self.leaves_at;
        let measured = self.measuring.iter().map(Measuring::until);
        let signals = self.processes.values().filter_map(|p| p.signals_until);
        let captures = self.processes.values().filter_map(until).chain(measured).chain(signals);
        captures.chain(watch).chain(alone).chain(leaves).min()
    }

    fn handle(&mut self, message: ToAgent) {
        match message {
            ToAgent::Join(job) => {
                let facts = || job.compared.then(|| host_dir::facts(&job).map(Box::new));
                let joined = self.join(&job).and_then(|()| facts().transpose());
                self.connection.send(&FromAgent::Joined(joined));
                self.job = Some(job);
            }
            ToAgent::Start(start) => self.start(start),
            ToAgent::StartRole(role) => self.start_role(role),
            ToAgent::StopRole(role) => self.stop_role(role),
            ToAgent::Kill(instance) => {
                match self.processes.get(&instance) {
                    Some(p) => p.kill(),
                    // Its image is still on the way: the rank ends before it begins.
                    None => drop(self.killed.insert(instance)),
                }
            }
            ToAgent::Prepare(start) => self.prepare(start),
            ToAgent::Unprepare(instance) => self.unprepare(instance),
            ToAgent::GoOn { instance, image } => self.go_on(instance, image),
            ToAgent::Signal { n, signal } => self.signal(n, signal),
            ToAgent::Slow { instance, share } => {
                if let Some(p) = self.processes.get_mut(&instance) {
                    p.slow(share);
                }
            }
            ToAgent::Capture { instance, image: ImageAt { image, store }, mode, hold } => {
                if let Err(refusal) = self.capture(instance, image, &store, (mode, hold)) {
                    self.refuse_capture(instance, image, refusal);
                }
            }
            ToAgent::Pmi { entries, barriers } => {
                tracing::debug!(entries = entries.len(), barriers, "PMI");
                for entry in entries {
                    self.kvs.add(entry);
                }
                self.barriers = self.barriers.max(barriers);
                let keys: Vec<RankInstance> = self.processes.keys().copied().collect();
                for instance in keys {
                    self.release(instance);
                }
            }
            ToAgent::Stdin { instance, offset, bytes, eof } => {
                let process = self.processes.get_mut(&instance);
                if let Some(input) = process.and_then(|p| p.stdin.as_mut()) {
                    input.receive(offset, &bytes, eof);
                    self.pass_input(instance);
                }
            }
            ToAgent::OutputShown { instance, stream, offset } => {
                if let Some(p) = self.processes.get_mut(&instance) {
                    match stream {
                        StandardStream::Stdout => p.stdout.shown(offset),
                        StandardStream::Stderr => p.stderr.shown(offset),
                    }
                    if p.ending.is_some() {
                        self.pass_output(instance, false);
                    }
                }
            }
            ToAgent::Directory(directory) => self.hand_out(directory),
            ToAgent::Heartbeat { n } => {
                self.connection.send_passing(&FromAgent::Heartbeat { n });
            }
            ToAgent::Journal { at, bytes, begins, whole } => {
                self.keep_journal(at, &bytes, begins, whole);
            }
            ToAgent::Measure { n, over } => self.measure(n, over),
            ToAgent::Watch { hosts, within } => self.watch_hosts(hosts, within),
            ToAgent::Trace { request, instance } => self.send_trace(Some(request), instance),
            ToAgent::Freeze => self.freeze(),
            ToAgent::Die => {
                // Its ranks die with the agent.
                let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
            }
            ToAgent::Shutdown => {}
        }
    }

    /// Gives a directory to all ranks of this node.
    fn hand_out(&mut self, directory: Directory) {
        if let Err(text) = directory.check() {
            return self.connection.send(&FromAgent::Note { text });
        }
        let (epoch, directory) = (directory.epoch, directory.encode());
        if self.directory.as_ref().is_some_and(|(newest, _)| *newest >= epoch) {
            return;
        }
        for (instance, p) in &self.processes {
            if let Err(e) = p.hand_directory(epoch, &directory) {
                let text = format!("{instance} cannot be given the directory of routers: {e}");
                self.connection.send(&FromAgent::Note { text });
            }
        }
        self.directory = Some((epoch, directory));
    }

    /// Makes this host ready for ranks of the job.
    fn join(&mut self, job: &JobOnHost) -> Result<(), String> {
        if job.compared {
            host_dir::check(&job.program)?;
        }
        let dir = self.dir.insert(HostDir::enter(job, &self.secret.run(), self.sent.path())?);
        if let Some(made) = dir.made_at() {
            let started = Sweeper::start(made);
            self.sweeper = Some(started.map_err(|e| format!("cannot start a process: {e}"))?);
        }
        job.orphans.as_ref().map_or(Ok(()), |orphans| self.prepare_to_wait(orphans))?;
        self.watch_notices(&job.notices);
        Ok(())
    }

    /// Does what a node does that hangs: it stops until another process sends the agent SIGCONT.
    fn freeze(&self) {
        let groups: Vec<u32> =
            self.processes.values().filter(|p| p.ending.is_none()).map(|p| p.pid).collect();
        for signal in [Signal::STOP, Signal::CONT] {
            for pid in groups.iter().filter_map(|pid| Pid::from_raw(*pid as i32)) {
                // It may just have ended.
                let _ = rustix::process::kill_process_group(pid, signal);
            }
            if signal == Signal::STOP {
                let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
            }
        }
    }
}

fn drain(stream: &mut UnixStream) {
    let mut bytes = [0; 64];
    while matches!(stream.read(&mut bytes), Ok(n) if n == bytes.len()) {}
}
