//! The agent's loop: one thread waits for the controller, the ranks, signals and finished
//! transfers, and handles each in turn.

use crate::background::{Background, Done};
use crate::controller::connection::{connect, probe, Connection};
use crate::controller::orphan::Attachment;
use crate::exchange::Exchange;
use crate::host_dir::{self, HostDir};
use crate::images::files::{raise_limit, Holds};
use crate::images::incoming::Incoming;
use crate::measure::Measurements;
use crate::monitor::Monitor;
use crate::notice::Leaving;
use crate::rank::launch::reserve_fixed_numbers;
use crate::rank::mapped;
use crate::rank::process::{CaptureOptions, CapturePhase, Process};
use crate::reach::Reach;
use crate::roles::{Roles, Surroundings};
use crate::setup::Setup;
use crate::signals::{SentSignals, Signals};
use crate::AgentConfig;
use eyrie_supervision::{kill_children_but, outlive_signals, segments, Sweeper};
use eyrie_wire::control::{Claim, FromAgent, ImageAt, JobOnHost, StandardStream, ToAgent};
use eyrie_wire::RankInstance;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long killed ranks may take to be gone.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

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
    pub(super) sent: Sent,
    /// What processes of ranks are started with.
    pub(super) setup: Setup,
    /// The job's directory on this host. It is removed when this process ends.
    pub(super) dir: Option<HostDir>,
    /// Removes that directory when this process is killed.
    pub(super) sweeper: Option<Sweeper>,
    pub(super) attachment: Attachment,
    pub(super) roles: Roles,
    pub(super) connection: Connection,
    pub(super) processes: BTreeMap<RankInstance, Process>,
    /// Ranks that are about to come to this node: their memory is being put in place.
    pub(super) incoming: BTreeMap<RankInstance, Incoming>,
    /// The signals that were sent to all ranks of the job.
    pub(super) sent_signals: SentSignals,
    /// Ranks that are killed as soon as they have started.
    pub(super) killed: BTreeSet<RankInstance>,
    /// Segments in /dev/shm that ranks which have ended here may have made. Those that are left
    /// when the agent ends are removed: a child of a rank may keep one mapped longer than the rank.
    pub(super) segments: BTreeSet<String>,
    pub(super) exchange: Exchange,
    pub(super) measurements: Measurements,
    pub(super) monitor: Monitor,
    pub(super) reach: Reach,
    /// The user was told that writes of ranks cannot be tracked.
    pub(super) untracked: bool,
    /// The user was told that ranks use more of the processor than they were started for.
    pub(super) exceeds: bool,
    /// The user was told what to do about a rank that dies of a bus error.
    pub(super) bus_error_explained: bool,
    /// Files that images need, and when their names are checked next.
    pub(super) holds: Holds,
    pub(super) watch_at: Instant,
    pub(super) background: Background,
    pub(super) leaving: Leaving,
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
        setup: Setup::new(config.secret.clone(), open_files),
        dir: None,
        sweeper: None,
        attachment: Attachment::new(config),
        roles: Roles::default(),
        connection: Connection::new(stream)?,
        processes: BTreeMap::new(),
        incoming: BTreeMap::new(),
        sent_signals: SentSignals::default(),
        killed: BTreeSet::new(),
        segments: BTreeSet::new(),
        exchange: Exchange::default(),
        measurements: Measurements::default(),
        monitor: Monitor::default(),
        reach: Reach::default(),
        untracked: false,
        exceeds: false,
        bus_error_explained: false,
        holds: Holds::default(),
        watch_at: Instant::now(),
        background: Background::new(waker),
        leaving: Leaving::default(),
    };
    if let Err(e) = fix_addresses() {
        agent.connection.send(&FromAgent::Note { text: addresses_vary(&e) });
    }
    let end = loop {
        if let Some(end) = agent.turn(&mut signals, &mut woken) {
            break end;
        }
        let leaves = leaves.swap(false, Ordering::Relaxed)
            && !agent.leaving.leaves_later(&mut agent.connection);
        if leaves || ended.load(Ordering::Relaxed) {
            break End::Signalled;
        }
    };
    for process in agent.processes.values() {
        process.kill();
        agent.segments.extend(process.shared.iter().cloned());
        agent.segments.extend(mapped::segments(process.mpi_pid.unwrap_or(process.pid)));
    }
    let spared =
        agent.sweeper.as_ref().and_then(Sweeper::pid).into_iter().chain(agent.attachment.saver());
    kill_children_but(&spared.collect::<Vec<_>>(), KILL_TIMEOUT);
    segments::remove(&mapped::left_behind(&agent.segments));
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
                        Err(_)
                            if self
                                .attachment
                                .wait_for_another(&self.background, &mut self.connection) =>
                        {
                            Vec::new()
                        }
                        Err(_) => return Some(End::Disconnected),
                    };
                    self.attachment.contacted();
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
                    while let Some(done) = self.background.next() {
                        match done {
                            Done::Opened { start, since, in_place, result } => {
                                self.opened(start, (since, in_place), result);
                            }
                            Done::Fed { instance, result } => self.fed(instance, &result),
                            Done::Uploaded { instance, image, output, store, result } => {
                                self.uploaded(instance, image, output, store, result);
                            }
                            Done::Prepared { instance, image, into, result } => {
                                if let Some(start) =
                                    self.preparations().prepared(instance, image, into, result)
                                {
                                    self.start(start);
                                }
                            }
                            Done::DeclaredDead => return Some(End::Ordered),
                            Done::Controller(addr) => {
                                let dir = self.dir.as_ref();
                                self.attachment.follow(addr, dir, &mut self.connection);
                            }
                            Done::Notice(cause) => {
                                self.connection.send(&FromAgent::Notice { cause, leaves: false });
                            }
                            Done::Sampled(sample) => {
                                let ranks = self.processes.values();
                                if let Some(figures) = self.monitor.figures(&sample, ranks) {
                                    let figures = FromAgent::Sampled(Box::new(figures));
                                    self.connection.send_passing(&figures);
                                }
                            }
                            Done::Found(finding) => {
                                self.connection.send(&FromAgent::Found(finding));
                            }
                            Done::Note(text) => {
                                self.connection.send(&FromAgent::Note { text });
                            }
                            Done::Reached { node, reached } => {
                                self.connection.send(&FromAgent::Reached { node, reached });
                            }
                        }
                    }
                }
                Token::Channel(instance) => self.receive_from_rank(instance),
                Token::MpiProcess(instance) => self.mpi_process_ended(instance),
                Token::Pmi(instance) => self.serve_pmi(instance),
                Token::Output(instance) => {
                    if let Some(p) = self.processes.get_mut(&instance) {
                        p.pass_output(&mut self.connection, false);
                    }
                }
                Token::Input(instance) => {
                    if let Some(p) = self.processes.get_mut(&instance) {
                        p.pass_input(&mut self.connection);
                    }
                }
            }
        }
        self.captures().watch();
        self.signals().watch();
        self.captures().watch_files();
        for measured in self.measurements.ended(self.processes.values()) {
            self.connection.send(&measured);
        }
        self.report_ended();
        self.attachment.show_contact(self.dir.as_mut());
        self.attachment.save_when_due(self.dir.as_ref());
        let over = |until: Option<Instant>| until.is_some_and(|until| Instant::now() >= until);
        if over(self.attachment.ends_at()) {
            tracing::info!("no other controller has come");
            return Some(End::Ordered);
        }
        if over(self.leaving.at()) {
            tracing::info!("its time after SIGTERM is over");
            return Some(End::Ordered);
        }
        match self.connection.flush() {
            Ok(()) => None,
            Err(_) if self.attachment.wait_for_another(&self.background, &mut self.connection) => {
                None
            }
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
        let alone = self.attachment.next_deadline();
        let leaves = self.leaving.at();
        let measured = self.measurements.until();
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
                self.setup.join(job);
            }
            ToAgent::Start(start) => self.start(start),
            ToAgent::StartRole(role) => {
                let file = self.attachment.controller_file(self.dir.as_ref());
                let with = Surroundings {
                    controller: self.attachment.controller(),
                    controller_file: file.as_deref(),
                    secret: self.attachment.secret(),
                    log: self.attachment.log(),
                };
                if let Some(ended) = self.roles.start(role, &with) {
                    self.connection.send(&ended);
                }
            }
            ToAgent::StopRole(role) => self.roles.stop(role),
            ToAgent::Kill(instance) => {
                match self.processes.get(&instance) {
                    Some(p) => p.kill(),
                    // Its image is still on the way: the rank ends before it begins.
                    None => drop(self.killed.insert(instance)),
                }
            }
            ToAgent::Prepare(start) => self.preparations().begin(start),
            ToAgent::Unprepare(instance) => self.preparations().end(instance),
            ToAgent::GoOn { instance, image } => self.captures().go_on(instance, image),
            ToAgent::Signal { n, signal } => self.signals().send_to_all(n, signal),
            ToAgent::Slow { instance, share } => {
                if let Some(p) = self.processes.get_mut(&instance) {
                    p.slow(share);
                }
            }
            ToAgent::Capture {
                instance,
                image: ImageAt { image, store },
                mode,
                hold,
                self_contained,
            } => {
                let options = CaptureOptions { mode, hold, self_contained };
                if let Err(refusal) = self.captures().begin(instance, image, &store, options) {
                    self.captures().refuse(instance, image, refusal);
                }
            }
            ToAgent::Pmi { entries, barriers } => {
                tracing::debug!(entries = entries.len(), barriers, "PMI");
                self.exchange.learn(entries, barriers);
                let keys: Vec<RankInstance> = self.processes.keys().copied().collect();
                for instance in keys {
                    self.requests().release(instance);
                }
            }
            ToAgent::Stdin { instance, offset, bytes, eof } => {
                let process = self.processes.get_mut(&instance);
                if let Some(input) = process.and_then(|p| p.stdin.as_mut()) {
                    input.receive(offset, &bytes, eof);
                    if let Some(p) = self.processes.get_mut(&instance) {
                        p.pass_input(&mut self.connection);
                    }
                }
            }
            ToAgent::OutputShown { instance, stream, offset } => {
                if let Some(p) = self.processes.get_mut(&instance) {
                    match stream {
                        StandardStream::Stdout => p.stdout.shown(offset),
                        StandardStream::Stderr => p.stderr.shown(offset),
                    }
                    if p.ending.is_some() {
                        if let Some(p) = self.processes.get_mut(&instance) {
                            p.pass_output(&mut self.connection, false);
                        }
                    }
                }
            }
            ToAgent::Environment(env) => self.setup.set_environment(env),
            ToAgent::Directory(directory) => {
                for text in self.setup.hand_out(directory, self.processes.values()) {
                    self.connection.send(&FromAgent::Note { text });
                }
            }
            ToAgent::Heartbeat { n } => {
                self.connection.send_passing(&FromAgent::Heartbeat { n });
            }
            ToAgent::Journal { at, bytes, begins, whole } => {
                let dir = self.dir.as_ref();
                let kept = self.attachment.keep_journal(dir, at, &bytes, begins, whole);
                self.connection.send_passing(&kept);
            }
            ToAgent::Measure { n, over } => {
                self.measurements.begin(n, over, self.processes.values());
            }
            ToAgent::Watch { hosts, within } => {
                self.reach.watch(hosts, within, &self.background);
            }
            ToAgent::Conduct { port } => self.monitor.follow(self.attachment.controller(), port),
            ToAgent::Trace { request, instance } => self.send_trace(Some(request), instance),
            ToAgent::Freeze => self.freeze(),
            ToAgent::Die => {
                // Its ranks die with the agent.
                let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
            }
            ToAgent::Shutdown => {}
        }
    }

    fn signals(&mut self) -> Signals<'_> {
        let processes = &mut self.processes;
        let connection = &mut self.connection;
        Signals { sent: &mut self.sent_signals, processes, connection }
    }

    /// Makes this host ready for ranks of the job.
    fn join(&mut self, job: &JobOnHost) -> Result<(), String> {
        if job.compared {
            host_dir::check(job)?;
        }
        let dir = self.dir.insert(HostDir::enter(
            job,
            &self.attachment.secret().run(),
            self.sent.path(),
        )?);
        if let Some(made) = dir.made_at() {
            let started = Sweeper::start(made);
            self.sweeper = Some(started.map_err(|e| format!("cannot start a process: {e}"))?);
        }
        if let Some(orphans) = &job.orphans {
            let dir = self.dir.as_ref();
            let connection = &mut self.connection;
            self.attachment.prepare_to_wait(orphans, dir, &self.background, connection)?;
        }
        self.leaving.watch(&job.notices, &self.background);
        if let Some(how) = &job.monitoring {
            let node = self.attachment.node();
            let secret = self.attachment.secret();
            if let Err(why) = self.monitor.start(how, node, secret, &self.background) {
                let text = format!("node {node} is not monitored: {why}");
                self.connection.send(&FromAgent::Note { text });
            }
        }
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
