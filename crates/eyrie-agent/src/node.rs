//! The agent's loop: one thread waits for the controller, the ranks, signals and finished transfers, and
//! handles each in turn.

use crate::connection::{connect, read_secret, Connection};
use crate::family::{children, kill_all_children, Death};
use crate::files::{raise_limit, Holds, WATCH_EVERY};
use crate::launch::{launch, reserve_fixed_numbers, From};
use crate::leftovers;
use crate::pmi::{Effect, Kvs};
use crate::process::{kill_group, Capture, CapturePhase, Key, Process, Restore};
use crate::{shared, transfer, AgentConfig};
use eyrie_wire::agent::{capture_signal, FromRank, ToRank, MAX_MESSAGE};
use eyrie_wire::auth::Secret;
use eyrie_wire::control::{
    CheckpointMode, Claim, Ending, FromAgent, ImageMeta, StartFault, StartRank, Stream, ToAgent,
};
use eyrie_wire::ImageId;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::net::RecvFlags;
use rustix::pipe::{pipe_with, PipeFlags};
use rustix::process::{waitid, waitpid, Pid, Signal, WaitId, WaitIdOptions, WaitOptions};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a rank has to come to the end of a call of its MPI library, where an image is best
/// taken: in between a program may have closed a file that it is about to rename.
const CALL_GRACE: Duration = Duration::from_millis(20);
/// How long a rank may take to stand still for a capture.
const CAPTURE_TIMEOUT: Duration = Duration::from_secs(30);
/// Wanted size of the pipe that an image goes through, in bytes; the kernel may allow less.
const IMAGE_PIPE: usize = 1 << 20;
/// How long killed ranks may take to be gone.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// What a transfer thread reports.
enum Done {
    Opened {
        start: Box<StartRank>,
        since: Instant,
        result: Result<(eyrie_transport::Stream, ImageMeta), (String, StartFault)>,
    },
    Fed {
        key: Key,
        result: std::io::Result<u64>,
    },
    Uploaded {
        key: Key,
        image: ImageId,
        /// Bytes of (stdout, stderr) that the rank had behind it.
        output: [u64; 2],
        result: anyhow::Result<()>,
    },
}

/// Why a rank is not captured.
struct Refusal {
    reason: String,
    /// It may well succeed the next time, and nothing need be done.
    passing: bool,
}

impl Refusal {
    fn lasting(reason: impl std::fmt::Display) -> Refusal {
        Refusal { reason: reason.to_string(), passing: false }
    }
}

/// Why the loop ended.
enum End {
    /// The controller said so, or a signal did.
    Ordered,
    /// The connection broke.
    Disconnected,
}

struct Agent {
    dir: PathBuf,
    secret: Secret,
    connection: Connection,
    processes: BTreeMap<Key, Process>,
    /// Ranks to be killed as soon as they are started.
    killed: BTreeSet<Key>,
    kvs: Kvs,
    /// PMI barriers that the job has passed.
    barriers: u32,
    /// Files that images need, and when their names are looked at next.
    holds: Holds,
    watch_at: Instant,
    /// The limit of open files that ranks get.
    open_files: libc::rlimit,
    done: (Sender<Done>, Receiver<Done>),
    /// Written to by transfer threads, so that the loop looks at `done`.
    waker: Arc<UnixStream>,
}

/// What a descriptor in the poll set belongs to.
#[derive(Clone, Copy)]
enum Token {
    Control,
    Signal,
    Waker,
    Channel(Key),
    /// The process behind a wrapper has ended.
    Speaker(Key),
    Pmi(Key),
    Output(Key),
    Input(Key),
}

pub fn run(config: &AgentConfig) -> anyhow::Result<()> {
    let _reserved = reserve_fixed_numbers()?;
    let open_files = raise_limit()?;
    let (mut signals, signals_in) = UnixStream::pair()?;
    signals.set_nonblocking(true)?;
    for signal in [SIGCHLD, SIGTERM, SIGINT, SIGHUP] {
        signal_hook::low_level::pipe::register(signal, signals_in.try_clone()?)?;
    }
    let ended = Arc::new(std::sync::atomic::AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended))?;
    }
    // Grandchildren whose parent died become ours, so that none escapes.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let secret = read_secret(&config.dir)?;
    let claim = Claim::Agent { node: config.node, pid: std::process::id() };
    let stream = connect(&config.dir, &secret, &claim)?;
    let (mut woken, waker) = UnixStream::pair()?;
    woken.set_nonblocking(true)?;
    let mut agent = Agent {
        dir: config.dir.clone(),
        secret: secret.clone(),
        connection: Connection::new(stream)?,
        processes: BTreeMap::new(),
        killed: BTreeSet::new(),
        kvs: Kvs::new(),
        barriers: 0,
        holds: Holds::default(),
        watch_at: Instant::now(),
        open_files,
        done: channel(),
        waker: Arc::new(waker),
    };
    if let Err(e) = fix_addresses() {
        agent.connection.send(&FromAgent::Note { text: addresses_vary(&e) });
    }
    let end = loop {
        if let Some(end) = agent.turn(&mut signals, &mut woken) {
            break end;
        }
        if ended.load(std::sync::atomic::Ordering::Relaxed) {
            break End::Ordered;
        }
    };
    let mut left: Vec<String> = Vec::new();
    for process in agent.processes.values() {
        process.kill();
        left.extend(process.shared.iter().cloned());
        left.extend(shared::segments(process.speaker.unwrap_or(process.pid)));
    }
    kill_all_children(KILL_TIMEOUT);
    shared::remove(&left);
    if let End::Disconnected = end {
        // Perhaps this node was given up while it was frozen: the controller is to know that it
        // woke up.
        let _ = connect(&config.dir, &secret, &claim);
    }
    // The controller's death is a signal, or a connection that ends: nobody but us clears its
    // directory then.
    if let Some(left) = leftovers::find(&config.dir) {
        let _ = left.remove();
    }
    Ok(())
}

/// What the user hears when addresses cannot be fixed.
fn addresses_vary(e: &std::io::Error) -> String {
    format!(
        "address randomization cannot be switched off: personality(2) says {e}, a sandbox forbids it. The job runs on. What is \
         lost: a rank that dies before its first image may come back with other addresses, so that a program that sends \
         addresses (MPICH does for MPI_Win) may diverge. To allow it, let the sandbox's seccomp profile permit \
         personality(0x0040000); for containers, for instance, --security-opt seccomp=unconfined"
    )
}

/// Switches address randomization off for this process and all that it starts: a restarted rank must find everything at the
/// addresses of its first life.
fn fix_addresses() -> std::io::Result<()> {
    // SAFETY: concerns only programs executed later.
    match unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    }
}

impl Agent {
    /// Waits for something to happen and handles it.
    fn turn(&mut self, signals: &mut UnixStream, woken: &mut UnixStream) -> Option<End> {
        let ready = self.wait(signals, woken);
        for token in ready {
            match token {
                Token::Control => {
                    let messages = match self.connection.receive() {
                        Ok(messages) => messages,
                        Err(_) => return Some(End::Disconnected),
                    };
                    for message in messages {
                        if let ToAgent::Shutdown = message {
                            return Some(End::Ordered);
                        }
                        self.obey(message);
                    }
                }
                Token::Signal => {
                    drain(signals);
                    self.reap();
                }
                Token::Waker => {
                    drain(woken);
                    while let Ok(done) = self.done.1.try_recv() {
                        self.transferred(done);
                    }
                }
                Token::Channel(key) => self.hear(key),
                Token::Speaker(key) => self.speaker_ended(key),
                Token::Pmi(key) => self.serve_pmi(key),
                Token::Output(key) => self.pass_output(key, false),
                Token::Input(key) => self.pass_input(key),
            }
        }
        self.watch_captures();
        self.watch_files();
        self.report_ended();
        match self.connection.flush() {
            Ok(()) => None,
            Err(_) => Some(End::Disconnected),
        }
    }

    fn wait(&self, signals: &UnixStream, woken: &UnixStream) -> Vec<Token> {
        let mut tokens = vec![Token::Control, Token::Signal, Token::Waker];
        let mut control = PollFlags::IN;
        control.set(PollFlags::OUT, self.connection.wants_to_write());
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.connection.fd(), control),
            PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(woken.as_fd(), PollFlags::IN),
        ];
        for (key, p) in &self.processes {
            let mut add = |token, fd, flags| {
                tokens.push(token);
                fds.push(PollFd::from_borrowed_fd(fd, flags));
            };
            if let Some(fd) = &p.channel {
                add(Token::Channel(*key), fd.as_fd(), PollFlags::IN);
            }
            if let Some(fd) = &p.watch {
                add(Token::Speaker(*key), fd.as_fd(), PollFlags::IN);
            }
            if let Some(fd) = &p.pmi {
                add(Token::Pmi(*key), fd.as_fd(), PollFlags::IN);
            }
            for fd in [p.stdout.wanted(), p.stderr.wanted()].into_iter().flatten() {
                add(Token::Output(*key), fd, PollFlags::IN);
            }
            if let Some(fd) = p.stdin.as_ref().and_then(|i| i.wanted()) {
                add(Token::Input(*key), fd, PollFlags::OUT);
            }
        }
        let timeout = self.next_deadline().map(|at| {
            let left = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        // Interrupted: whatever it was is found at the next turn.
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return Vec::new();
        }
        fds.iter().zip(tokens).filter(|(fd, _)| !fd.revents().is_empty()).map(|(_, t)| t).collect()
    }

    fn next_deadline(&self) -> Option<Instant> {
        let until = |p: &Process| match &p.capture.as_ref()?.phase {
            CapturePhase::Asked { again, until, .. } => Some(again.unwrap_or(*until)),
            CapturePhase::Uploading => None,
        };
        let watch = (!self.holds.is_empty()).then_some(self.watch_at);
        self.processes.values().filter_map(until).chain(watch).min()
    }

    fn obey(&mut self, message: ToAgent) {
        match message {
            ToAgent::Start(start) => self.start(start),
            ToAgent::Kill { rank, incarnation } => {
                match self.processes.get(&(rank, incarnation)) {
                    Some(p) => p.kill(),
                    // Its image is on the way: it ends before it begins.
                    None => drop(self.killed.insert((rank, incarnation))),
                }
            }
            ToAgent::Capture { rank, incarnation, image, mode } => {
                let key = (rank, incarnation);
                if let Err(refusal) = self.capture(key, image, mode) {
                    self.refuse_capture(key, image, refusal);
                }
            }
            ToAgent::Pmi { entries, barriers } => {
                self.kvs.extend(entries);
                self.barriers = self.barriers.max(barriers);
                let keys: Vec<Key> = self.processes.keys().copied().collect();
                for key in keys {
                    self.release(key);
                }
            }
            ToAgent::Stdin { rank, offset, bytes, eof } => {
                // Only one life of a rank has standard input that waits for this offset.
                let newest = self.processes.range_mut((rank, 0)..=(rank, u32::MAX)).next_back();
                if let Some((key, Process { stdin: Some(input), .. })) = newest {
                    let key = *key;
                    input.receive(offset, &bytes, eof);
                    self.pass_input(key);
                }
            }
            ToAgent::OutputShown { rank, incarnation, stream, offset } => {
                if let Some(p) = self.processes.get_mut(&(rank, incarnation)) {
                    match stream {
                        Stream::Stdout => p.stdout.shown(offset),
                        Stream::Stderr => p.stderr.shown(offset),
                    }
                    if p.ending.is_some() {
                        self.pass_output((rank, incarnation), false);
                    }
                }
            }
            ToAgent::Pulse { n } => self.connection.send(&FromAgent::Pulse { n }),
            ToAgent::Freeze => self.freeze(),
            ToAgent::Shutdown => {}
        }
    }

    /// As a node that hangs: nothing of it moves until somebody sends the agent SIGCONT.
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

    // Starting and restoring.

    fn start(&mut self, start: Box<StartRank>) {
        shared::remove(&start.leftovers);
        let Some(image) = start.image else {
            return self.launch(start, ImageMeta::default(), None);
        };
        let (dir, secret) = (self.dir.clone(), self.secret.clone());
        let since = Instant::now();
        self.in_background(move || {
            let result = transfer::open(&dir, &secret, start.rank, image);
            Done::Opened { start, since, result }
        });
    }

    /// Starts the process; from an image when its stream is given.
    fn launch(
        &mut self,
        start: Box<StartRank>,
        meta: ImageMeta,
        image: Option<(eyrie_transport::Stream, Instant)>,
    ) {
        let key = (start.rank, start.incarnation);
        if self.killed.remove(&key) {
            let reason = "killed before it was started".to_string();
            return self.start_failed(key, reason, StartFault::Killed(libc::SIGKILL));
        }
        let launched = match image {
            None => {
                let launched = launch(&start, &meta, From::Program, &self.secret, self.open_files);
                launched.map(|l| (l, None))
            }
            Some((stream, since)) => self.launch_image(&start, &meta, stream, since),
        };
        match launched {
            Ok((launched, restore)) => {
                let mut process = Process::new(&start, launched, &meta);
                process.restore = restore;
                let segment = shared::predicted_segment(&start.kvsname, start.rank);
                if process.shared.insert(segment.clone()) {
                    self.connection.send(&FromAgent::Shared { rank: start.rank, path: segment });
                }
                if process.restore.is_none() {
                    self.connection.send(&FromAgent::Started {
                        rank: key.0,
                        incarnation: key.1,
                        pid: process.pid,
                        fetched_us: 0,
                        restored_us: 0,
                    });
                }
                if let Some(input) = &process.stdin {
                    self.connection.send(&FromAgent::StdinWanted {
                        rank: key.0,
                        incarnation: key.1,
                        offset: input.wanted_from(),
                    });
                }
                self.processes.insert(key, process);
            }
            Err(e) => self.start_failed(key, format!("{e:#}"), StartFault::Attempt),
        }
    }

    fn launch_image(
        &mut self,
        start: &StartRank,
        meta: &ImageMeta,
        stream: eyrie_transport::Stream,
        since: Instant,
    ) -> anyhow::Result<(crate::launch::Launched, Option<Restore>)> {
        let (image_out, image_in) = image_pipe()?;
        let image = start.image.unwrap_or_default();
        let held = self.holds.displaced(start.rank, image);
        let from = From::Image { stream: image_out, held };
        let mut launched = launch(start, meta, from, &self.secret, self.open_files)?;
        let key = (start.rank, start.incarnation);
        self.in_background(move || Done::Fed { key, result: transfer::feed(stream, image_in) });
        let complaint = launched.complaint.take();
        Ok((launched, Some(Restore { image, started: since, fetched: None, complaint })))
    }

    fn start_failed(&mut self, (rank, incarnation): Key, reason: String, fault: StartFault) {
        self.connection.send(&FromAgent::StartFailed { rank, incarnation, reason, fault });
    }

    fn in_background(&self, work: impl FnOnce() -> Done + Send + 'static) {
        let (done, waker) = (self.done.0.clone(), Arc::clone(&self.waker));
        std::thread::spawn(move || {
            // Both fail only when the agent ends.
            let _ = done.send(work());
            let _ = (&*waker).write_all(&[1]);
        });
    }

    fn transferred(&mut self, done: Done) {
        match done {
            Done::Opened { start, since, result } => match result {
                Ok((stream, meta)) => self.launch(start, meta, Some((stream, since))),
                Err((reason, fault)) => {
                    self.start_failed((start.rank, start.incarnation), reason, fault)
                }
            },
            Done::Fed { key, result } => {
                let Some(p) = self.processes.get_mut(&key) else { return };
                // A restorer that did not get its whole image ends with a reason.
                if let (Ok(_), Some(restore)) = (result, &mut p.restore) {
                    restore.fetched = Some(restore.started.elapsed());
                }
            }
            Done::Uploaded { key, image, output, result } => {
                // Whether the rank has refused: it says why before its stream ends, and knows better than the store.
                self.hear(key);
                let Some(p) = self.processes.get_mut(&key) else { return };
                if p.capture.as_ref().is_some_and(|c| c.image == image) {
                    p.capture = None;
                    match result {
                        Ok(()) => self.check_image(key, image, output),
                        Err(e) => {
                            self.refuse_capture(key, image, Refusal::lasting(format!("{e:#}")))
                        }
                    }
                }
            }
        }
    }

    /// An image is stored: it may count when the files that it needs can still be found.
    fn check_image(&mut self, (rank, incarnation): Key, image: ImageId, output: [u64; 2]) {
        let message = match self.holds.check(rank, image) {
            Ok(()) => {
                self.holds.counts(rank, image);
                FromAgent::ImageUsable { rank, incarnation, image, output }
            }
            Err(reason) => {
                self.holds.drop_image(rank, image);
                FromAgent::ImageUnusable { rank, incarnation, image, reason }
            }
        };
        self.connection.send(&message);
    }

    /// Looks whether the names that the newest images have still lead to their files, and asks for
    /// a new image when one does not: should the node die now, the file might be lost.
    fn watch_files(&mut self) {
        let now = Instant::now();
        if now < self.watch_at {
            return;
        }
        self.watch_at = now + WATCH_EVERY;
        for (key, p) in &self.processes {
            if p.capture.is_some() || p.ending.is_some() || p.restore.is_some() {
                continue;
            }
            if let Some(path) = self.holds.moved(key.0, now) {
                self.connection.send(&FromAgent::ImageWanted {
                    rank: key.0,
                    incarnation: key.1,
                    reason: format!("{} leads to another file by now", path.display()),
                });
            }
        }
    }

    // Capturing.

    fn capture(&mut self, key: Key, image: ImageId, mode: CheckpointMode) -> Result<(), Refusal> {
        let not_now = |reason| move || Refusal { reason: String::from(reason), passing: true };
        let p = self.processes.get_mut(&key).ok_or_else(not_now("the rank is not here"))?;
        if p.ending.is_some() {
            return Err(not_now("the rank has ended")());
        }
        if p.capture.is_some() {
            return Err(not_now("another capture of it is under way")());
        }
        let yet = "the rank has not come through the provider yet";
        p.speaker.ok_or_else(not_now(yet))?;
        let (stream, theirs) = image_pipe().map_err(Refusal::lasting)?;
        let sync = mode == CheckpointMode::Sync;
        p.tell(ToRank::Capture { image, sync }, &[theirs.as_fd()]).map_err(Refusal::lasting)?;
        ask_for_image(p).map_err(Refusal::lasting)?;
        let now = Instant::now();
        let (again, until) = (Some(now + CALL_GRACE), now + CAPTURE_TIMEOUT);
        p.capture = Some(Capture { image, phase: CapturePhase::Asked { stream, again, until } });
        Ok(())
    }

    fn refuse_capture(&mut self, (rank, incarnation): Key, image: ImageId, refusal: Refusal) {
        self.holds.drop_image(rank, image);
        let Refusal { reason, passing } = refusal;
        let refused = FromAgent::CaptureRefused { rank, incarnation, image, reason, passing };
        self.connection.send(&refused);
    }

    /// Asks ranks for the second time that compute on, and gives those up that never stand still.
    fn watch_captures(&mut self) {
        let now = Instant::now();
        for p in self.processes.values_mut() {
            if let Some(Capture { phase: CapturePhase::Asked { again, .. }, .. }) = &mut p.capture {
                if again.is_some_and(|at| at <= now) {
                    *again = None;
                    // It may just have ended.
                    let _ = ask_for_image(p);
                }
            }
        }
        let late: Vec<(Key, ImageId)> = (self.processes.iter())
            .filter_map(|(key, p)| match p.capture.as_ref()? {
                Capture { image, phase: CapturePhase::Asked { until, .. } } if *until <= now => {
                    Some((*key, *image))
                }
                _ => None,
            })
            .collect();
        for (key, image) in late {
            if let Some(p) = self.processes.get_mut(&key) {
                p.capture = None;
            }
            let reason =
                format!("it did not stand still within {}", eyrie_units::time(CAPTURE_TIMEOUT));
            self.refuse_capture(key, image, Refusal::lasting(reason));
        }
    }

    /// The rank stands still: fix the position of its streams, let it go, take the image.
    fn stands_still(&mut self, key: Key, image: ImageId, clock: u64, position: u64) {
        self.serve_pmi(key);
        self.pass_output(key, true);
        let Some(p) = self.processes.get_mut(&key) else { return };
        let meta = p.meta(clock, position);
        if let (Some(pid), true) = (p.speaker, p.is_asked_for(image)) {
            self.holds.take(key.0, image, pid);
        }
        if p.awaits_pmi() {
            // A restored process would wait for an answer that only this one gets.
            p.capture = None;
            let reason = "it waits for PMI, as in MPI_Init and MPI_Finalize".into();
            self.refuse_capture(key, image, Refusal { reason, passing: true });
        }
        let Some(p) = self.processes.get_mut(&key) else { return };
        // Also to one that was given up: it finds nobody at the other end of the pipe, and goes on.
        if p.tell(ToRank::Go, &[]).is_err() {
            p.kill();
        }
        match p.capture.take() {
            Some(Capture { image: asked, phase: CapturePhase::Asked { stream, .. } })
                if asked == image =>
            {
                p.capture = Some(Capture { image, phase: CapturePhase::Uploading });
                let (dir, secret) = (self.dir.clone(), self.secret.clone());
                let output = [meta.stream_offsets[1], meta.stream_offsets[2]];
                self.in_background(move || {
                    let id = (key.0, key.1, image);
                    let result = transfer::upload(&dir, &secret, id, &meta, stream);
                    Done::Uploaded { key, image, output, result }
                });
            }
            other => p.capture = other,
        }
    }

    // Hearing ranks.

    fn hear(&mut self, key: Key) {
        loop {
            let Some(p) = self.processes.get_mut(&key) else { return };
            let Some(channel) = &p.channel else { return };
            let mut bytes = [0u8; MAX_MESSAGE];
            let len = match rustix::net::recv(channel, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => {
                    p.channel = None;
                    return;
                }
                Ok((n, _)) => n.min(MAX_MESSAGE),
                Err(_) => return,
            };
            // What does not decode is dropped: the rank waits with a bound for what it asked.
            if let Some(message) = FromRank::decode(&bytes[..len]) {
                self.heard(key, message);
            }
        }
    }

    fn heard(&mut self, key: Key, message: FromRank<'_>) {
        let (rank, incarnation) = key;
        let Some(p) = self.processes.get_mut(&key) else { return };
        match message {
            FromRank::Loaded { pid } => {
                p.spoken_by(pid);
                let restored = p.restore.is_some();
                if !restored && !self.admit(key, pid) {
                    return;
                }
                let Some(p) = self.processes.get_mut(&key) else { return };
                if let Some(restore) = p.restore.take() {
                    self.holds.take(rank, restore.image, pid);
                    self.holds.counts(rank, restore.image);
                    for line in restore.said() {
                        self.connection
                            .send(&FromAgent::Note { text: format!("rank {rank}: {line}") });
                    }
                    let all = restore.started.elapsed();
                    let fetched = restore.fetched.unwrap_or(all);
                    self.connection.send(&FromAgent::Started {
                        rank,
                        incarnation,
                        pid,
                        fetched_us: fetched.as_micros() as u64,
                        restored_us: (all - fetched).as_micros() as u64,
                    });
                }
                self.connection.send(&FromAgent::ProviderLoaded { rank, incarnation });
            }
            FromRank::Still { image, clock, position } => {
                self.stands_still(key, image, clock, position)
            }
            FromRank::Captured { image, child_pid: _, pause_ns } => {
                self.connection.send(&FromAgent::Captured {
                    rank,
                    incarnation,
                    image,
                    pause_us: pause_ns / 1000,
                });
            }
            FromRank::Refused { image, reason } => {
                let Some(capture) = p.capture.as_ref().filter(|c| c.image == image) else { return };
                // A rank whose reader has left does not know why: the transfer is about to say it.
                let broken = std::io::Error::from_raw_os_error(libc::EPIPE).to_string();
                let uploading = matches!(capture.phase, CapturePhase::Uploading);
                if !(uploading && reason.contains(&broken)) {
                    p.capture = None;
                    self.refuse_capture(key, image, Refusal::lasting(reason));
                }
            }
            FromRank::Fatal { reason } => {
                let reason = reason.to_string();
                self.connection.send(&FromAgent::Fatal { rank, incarnation, reason });
            }
        }
    }

    /// Lets a rank that has loaded the provider go on in its start, if it has asked by PMI which rank of how many it is. An MPI
    /// library that did not would compute alone.
    fn admit(&mut self, key: Key, pid: u32) -> bool {
        // It asked before it loaded the provider, but over another socket.
        self.serve_pmi(key);
        let Some(p) = self.processes.get_mut(&key) else { return false };
        if p.session.spoke() {
            // A rank that is gone is found out by its end.
            return p.tell(ToRank::Admitted, &[]).is_ok();
        }
        let library = shared::mpi_library(pid).unwrap_or_default();
        let (rank, incarnation) = key;
        self.connection.send(&FromAgent::Alone { rank, incarnation, library });
        false
    }

    fn serve_pmi(&mut self, key: Key) {
        let mut bytes = [0; 4096];
        let Some(p) = self.processes.get_mut(&key) else { return };
        let Some(fd) = &p.pmi else { return };
        match rustix::io::read(fd, &mut bytes) {
            Ok(0) => p.pmi = None,
            Ok(n) => {
                if let Err(reason) = p.session.receive(&bytes[..n]) {
                    p.pmi = None;
                    let (rank, incarnation) = key;
                    self.connection.send(&FromAgent::Fatal { rank, incarnation, reason });
                }
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(_) => p.pmi = None,
        }
        while let Some(p) = self.processes.get_mut(&key) {
            let Some((reply, effect)) = p.session.next(&self.kvs) else { break };
            self.note_segments(key);
            self.reply(key, &reply);
            self.pmi_effect(key, effect);
        }
    }

    fn reply(&mut self, key: Key, reply: &str) {
        let Some(p) = self.processes.get_mut(&key) else { return };
        // A reply fits a socket's buffer, because the rank asks one thing at a time.
        let sent = p
            .pmi
            .as_ref()
            .map(|fd| rustix::net::send(fd, reply.as_bytes(), rustix::net::SendFlags::NOSIGNAL));
        if matches!(sent, Some(Err(_))) {
            p.pmi = None;
        }
    }

    fn pmi_effect(&mut self, key: Key, effect: Effect) {
        let (rank, incarnation) = key;
        match effect {
            Effect::None => {}
            Effect::Put { key, value } => {
                self.kvs.insert(key.clone(), value.clone());
                self.connection.send(&FromAgent::PmiPut { rank, incarnation, key, value });
            }
            Effect::Barrier(barrier) => {
                if self.came_through_us(key) {
                    self.connection.send(&FromAgent::PmiBarrier { rank, incarnation, barrier });
                    self.release(key);
                }
            }
            Effect::Finalized => {
                if self.came_through_us(key) {
                    self.connection.send(&FromAgent::PmiFinalized { rank, incarnation });
                }
            }
            Effect::Abort { code, message } => {
                // What it said before is to be seen before the job ends.
                self.pass_output(key, true);
                self.connection.send(&FromAgent::PmiAbort { rank, incarnation, code, message });
            }
            Effect::Refused(what) => {
                self.connection.send(&FromAgent::Note { text: format!("rank {rank}: {what}") });
            }
        }
    }

    fn release(&mut self, key: Key) {
        let Some(p) = self.processes.get_mut(&key) else { return };
        if let Some(reply) = p.session.release(self.barriers) {
            self.reply(key, &reply);
        }
    }

    /// Whether the rank's MPI library uses our provider. It has told so before its first barrier, or it never
    /// will: then the controller is told what library that is.
    fn came_through_us(&mut self, key: Key) -> bool {
        self.hear(key);
        let Some(p) = self.processes.get(&key) else { return false };
        if p.speaker.is_some() {
            return true;
        }
        let library = shared::mpi_library(self.pmi_peer(p)).unwrap_or_default();
        let (rank, incarnation) = key;
        self.connection.send(&FromAgent::NotOurs { rank, incarnation, library });
        false
    }

    /// The process that speaks PMI: the rank's, or a child of it when that is a wrapper script.
    fn pmi_peer(&self, p: &Process) -> u32 {
        if shared::mpi_library(p.pid).is_some() {
            return p.pid;
        }
        crate::family::descendants(p.pid)
            .into_iter()
            .find(|pid| shared::mpi_library(*pid).is_some())
            .unwrap_or(p.pid)
    }

    /// Looks for the rank's segments in /dev/shm, until one is known.
    fn note_segments(&mut self, key: Key) {
        let Some(p) = self.processes.get_mut(&key) else { return };
        let Some(pid) = p.speaker else { return };
        for path in shared::segments(pid) {
            if p.shared.insert(path.clone()) {
                self.connection.send(&FromAgent::Shared { rank: key.0, path });
            }
        }
    }

    // Streams.

    fn pass_output(&mut self, key: Key, beyond_window: bool) {
        let (rank, incarnation) = key;
        let Some(p) = self.processes.get_mut(&key) else { return };
        let dead = p.ending.is_some();
        for (stream, output) in [(Stream::Stdout, &mut p.stdout), (Stream::Stderr, &mut p.stderr)] {
            for (offset, bytes) in output.take(beyond_window, dead) {
                self.connection.send(&FromAgent::Output {
                    rank,
                    incarnation,
                    stream,
                    offset,
                    bytes,
                });
            }
        }
    }

    fn pass_input(&mut self, key: Key) {
        let (rank, incarnation) = key;
        let Some(input) = self.processes.get_mut(&key).and_then(|p| p.stdin.as_mut()) else {
            return;
        };
        if input.push() {
            let offset = input.wanted_from();
            self.connection.send(&FromAgent::StdinWanted { rank, incarnation, offset });
        }
    }

    // Endings.

    /// Finds out which children have ended.
    fn reap(&mut self) {
        for pid in children() {
            let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            if !matches!(waitid(WaitId::Pid(pid), peek), Ok(Some(_))) {
                continue;
            }
            let number = pid.as_raw_nonzero().get() as u32;
            let ended = self.processes.values_mut().find(|p| p.pid == number);
            if ended.is_some() {
                // What the rank started dies with it. Its number is still taken, so that nobody else is hit.
                kill_group(number);
            }
            let Ok(Some((_, status))) = waitpid(Some(pid), WaitOptions::NOHANG) else { continue };
            if let Some(p) = ended {
                p.ending = Some(p.ending_of(match status.terminating_signal() {
                    Some(signal) => Ending::Signal(signal),
                    None => Ending::Code(status.exit_status().unwrap_or(0)),
                }));
                let key = p.key;
                self.hear(key);
                self.serve_pmi(key);
                self.pass_output(key, false);
            }
        }
    }

    /// The process behind a wrapper has ended. When a signal has killed it, the wrapper, which would take that for the end
    /// of the program, goes with it.
    fn speaker_ended(&mut self, key: Key) {
        self.hear(key);
        self.serve_pmi(key);
        let Some(p) = self.processes.get_mut(&key) else { return };
        p.learn_death();
        p.watch = None;
        if matches!(p.death, Death::Killed(_)) {
            p.kill();
        }
    }

    /// Reports the ranks that have ended and whose output has all been passed on.
    fn report_ended(&mut self) {
        let ended: Vec<Key> = (self.processes.values())
            .filter(|p| p.ending.is_some() && p.stdout.is_drained() && p.stderr.is_drained())
            .map(|p| p.key)
            .collect();
        for key in ended {
            let Some(p) = self.processes.remove(&key) else { continue };
            let Some(ending) = p.ending else { continue };
            shared::remove(&p.shared);
            let (rank, incarnation) = key;
            if let Some(restore) = &p.restore {
                let (reason, fault) = restore.failure(ending);
                self.start_failed(key, reason, fault);
                continue;
            }
            if matches!(ending, Ending::Code(_)) {
                self.holds.forget(rank);
            }
            let spoke_pmi = p.session.spoke() || p.session.barriers_passed() > 0;
            self.connection.send(&FromAgent::Exited { rank, incarnation, ending, spoke_pmi });
        }
    }
}

/// Sends the signal that asks for an image: the first time the rank takes it at the end of its next
/// call of the MPI library, the second time at once.
fn ask_for_image(p: &Process) -> Result<(), rustix::io::Errno> {
    let speaker =
        p.speaker.and_then(|pid| Pid::from_raw(pid as i32)).ok_or(rustix::io::Errno::SRCH)?;
    // SAFETY: the signal is a valid real-time signal number, used by nothing else in the rank.
    let signal = unsafe { Signal::from_raw_unchecked(capture_signal()) };
    rustix::process::kill_process(speaker, signal)
}

fn drain(stream: &mut UnixStream) {
    let mut bytes = [0; 64];
    while matches!(stream.read(&mut bytes), Ok(n) if n == bytes.len()) {}
}

/// A pipe for an image: the reading and the writing end.
fn image_pipe() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let (out, into) = pipe_with(PipeFlags::CLOEXEC)?;
    // A smaller pipe is slower, not wrong.
    let _ = rustix::pipe::fcntl_setpipe_size(&into, IMAGE_PIPE);
    Ok((out, into))
}
