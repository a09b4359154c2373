//! The runtime of a job: sockets, processes, timers and files around the state machine. It decides nothing.

mod agents;
mod fences;
mod images;
mod inbound;
pub mod jobdir;
mod journal;
mod listener;
mod output;
mod program;
mod refusals;
mod stdin;
pub mod users;
pub mod wishes;

pub use program::NotRunnable;

use crate::inject::{Injection, Strike};
use crate::machine::schedule::{Interval, Order};
use crate::machine::signal::in_words;
use crate::machine::{Command, Config, Event, Life, Machine, Mark};
use crate::record::{Record, Weight};
use agents::{Children, Link};
use anyhow::{bail, Context};
use crossbeam_channel::{select, unbounded, Receiver, Sender};
use eyrie_placement::Placement;
use eyrie_router::{Router, RouterCommand, RouterEvent};
use eyrie_store::Store;
use eyrie_transport::{Addr, Directory, RouterId};
use eyrie_wire::auth::Secret;
use eyrie_wire::control::{CheckpointMode, FromAgent, Program, StartRank, Stream, ToAgent};
use eyrie_wire::data::Determinant;
use eyrie_wire::{Node, Rank, RankInstance};
use fences::Fences;
use inbound::Inbound;
use jobdir::JobDir;
use journal::Journal;
use listener::{Door, Gate};
use output::{Ledger, OutputFailed, Printer};
use refusals::Refusals;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stdin::Stdin;
use users::{RankStatus, Request, Status};
use wishes::Wishes;

/// How long agents may take to end by themselves.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);
/// How long killed processes may take to be gone.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the progress line is drawn.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);
/// Most messages handled between two looks at everything else.
const BATCH: usize = 256;

/// What `eyrie run` is asked for.
#[derive(Clone, Debug)]
pub struct JobOptions {
    pub ranks: u32,
    pub nodes: u32,
    pub spares: u32,
    pub routers: u32,
    /// Most ranks that a node starts with.
    pub slots: u32,
    pub checkpoint_every: Interval,
    pub checkpoint_order: Order,
    pub checkpoint_mode: CheckpointMode,
    pub injections: Vec<Injection>,
    pub events: Option<PathBuf>,
    pub json: bool,
    pub job: Option<String>,
    pub dir: Option<PathBuf>,
    /// Bytes of log that each router holds in memory.
    pub log_memory: u64,
    pub heartbeat_timeout: Duration,
    /// The lightest events that are shown as lines.
    pub show: Weight,
    pub argv: Vec<OsString>,
}

/// Runs a job to its end; returns the exit code. `placement` says where ranks of lost nodes go.
///
/// # Errors
/// When the job cannot be started.
pub fn run(options: JobOptions, placement: Box<dyn Placement>) -> anyhow::Result<i32> {
    check(&options)?;
    let mut program = program::prepare(&options.argv)?;
    let journal = Journal::create(options.events.as_deref())?;
    let base = jobdir::base(options.dir.as_deref())?;
    let name = options.job.clone().unwrap_or_else(|| format!("job-{}", std::process::id()));
    let kvsname = format!("eyrie_{:016x}", u64::from_le_bytes(eyrie_wire::auth::random()));
    let (dir, secret) = JobDir::create(&base, &name, options.routers, &kvsname, options.ranks)?;
    let cleaned = clean(&base);
    program::link_provider(&mut program, dir.path())?;
    program::preload_calls(&mut program, dir.path())?;
    let (inbound_in, inbound) = unbounded();
    let (router_in, router_events) = unbounded();
    // Before anything that must be ended: from here on a signal is a message.
    watch_signals(inbound_in.clone())?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let printer = Printer::start(inbound_in.clone());
    let store = Arc::new(open_store(&dir)?);
    let directory = directory(&options, &dir);
    let mut routers = Vec::new();
    for id in 0..options.routers {
        routers.push(start_router(id, &options, &directory, &dir, &secret, router_in.clone())?);
    }
    let gate = Arc::new(Gate::new(options.nodes + options.spares));
    let door = Door {
        secret,
        gate: Arc::clone(&gate),
        store: Arc::clone(&store),
        inbound: inbound_in.clone(),
    };
    listener::listen(&Addr::Unix(dir.path().join("control.sock")), door)
        .with_context(|| format!("cannot listen in {}", dir.path().display()))?;
    let stdin = Stdin::start(dir.path(), inbound_in)?;
    let mut children = Children::default();
    for node in 0..options.nodes + options.spares {
        children.spawn(dir.path(), node).context("cannot start an agent")?;
    }
    let machine = Machine::new(Config {
        job: name.clone(),
        ranks: options.ranks,
        nodes: options.nodes,
        spares: options.spares,
        routers: options.routers,
        checkpoint_every: options.checkpoint_every,
        checkpoint_order: options.checkpoint_order,
        checkpoint_mode: options.checkpoint_mode,
        heartbeat_timeout: options.heartbeat_timeout,
        injections: options.injections.clone(),
    })
    .place_by(placement);
    let mut job = Job {
        name,
        kvsname,
        ledger: Ledger::new(options.ranks),
        links: BTreeMap::new(),
        fences: Fences::default(),
        shared: vec![BTreeSet::new(); options.ranks as usize],
        noted: BTreeSet::new(),
        refused: BTreeSet::new(),
        stdin_wanted: None,
        end: None,
        quiet_end: false,
        reader_left: false,
        refusals: Refusals::default(),
        wishes: Wishes::default(),
        begun: Instant::now(),
        drawn: Instant::now(),
        events: VecDeque::new(),
        options,
        program,
        journal,
        printer,
        store,
        routers,
        directory,
        gate,
        stdin,
        children,
        machine,
    };
    cleaned.into_iter().for_each(|text| job.record(Record::Note { text }));
    let code = job.run(&inbound, &router_events);
    let code = job.finish(&inbound, code);
    drop(dir);
    Ok(code)
}

/// Removes what dead jobs left below `base`; says how much.
fn clean(base: &std::path::Path) -> Vec<String> {
    let (mut removed, mut said) = (Vec::new(), Vec::new());
    for job in jobdir::dead_jobs(base) {
        let (name, amount) = (job.name.clone(), job.amount);
        match job.remove() {
            Ok(()) => removed.push((name, amount)),
            Err(e) => said.push(format!("cannot remove what dead job {name} left: {e}")),
        }
    }
    if !removed.is_empty() {
        said.push(format!("removed what dead jobs left: {}", jobdir::in_words(&removed)));
    }
    said
}

fn check(options: &JobOptions) -> anyhow::Result<()> {
    let JobOptions { ranks, nodes, slots, routers, .. } = *options;
    if ranks == 0 || nodes == 0 || routers == 0 {
        bail!("a job needs at least one rank, one node and one router");
    }
    if u64::from(ranks) > u64::from(nodes) * u64::from(slots) {
        bail!(
            "{ranks} ranks do not fit on {nodes} nodes of {slots} slots each; give more with --nodes or --slots"
        );
    }
    for injection in &options.injections {
        injection.check(ranks, nodes + options.spares).map_err(anyhow::Error::msg)?;
    }
    Ok(())
}

fn open_store(dir: &JobDir) -> anyhow::Result<Store> {
    // Two images of a rank that count, and one that does not yet. The machine names those that are
    // needless.
    let options = eyrie_store::Options { keep: 3, sync: false };
    Ok(Store::create(dir.path().join("store"), options)?)
}

/// Who is where: the homes of ranks go round the routers.
fn directory(options: &JobOptions, dir: &JobDir) -> Directory {
    let routers = options.routers;
    let socket = |id| Addr::Unix(dir.path().join(format!("router-{id}.sock")));
    Directory {
        epoch: 1,
        home: (0..options.ranks).map(|rank| rank % routers).collect(),
        routers: (0..routers).map(socket).collect(),
    }
}

fn start_router(
    id: RouterId,
    options: &JobOptions,
    directory: &Directory,
    dir: &JobDir,
    secret: &Secret,
    events: Sender<(RouterId, RouterEvent)>,
) -> anyhow::Result<Router> {
    let spill_dir = dir.path().join(format!("log-{id}"));
    std::fs::DirBuilder::new()
        .mode(0o700)
        .create(&spill_dir)
        .with_context(|| format!("cannot create {}", spill_dir.display()))?;
    let config = eyrie_router::Config {
        id,
        at_home: directory.at_home(id),
        listen: directory.routers[id as usize].clone(),
        spill_dir,
        secret: secret.clone(),
        log_memory: options.log_memory,
        log_disk: u64::MAX,
    };
    Router::start(config, events).context("cannot start a router")
}

/// Turns signals into messages.
fn watch_signals(inbound: crossbeam_channel::Sender<Inbound>) -> anyhow::Result<()> {
    // SAFETY: ignoring a signal; reading a terminal that belongs to others then fails instead of stopping us.
    unsafe { libc::signal(libc::SIGTTIN, libc::SIG_IGN) };
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP, SIGCHLD])?;
    std::thread::spawn(move || {
        for signal in signals.forever() {
            if inbound.send(Inbound::Signal(signal)).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// A running job.
struct Job {
    options: JobOptions,
    name: String,
    kvsname: String,
    program: Program,
    machine: Machine,
    /// Events that commands have brought about, to be handled next.
    events: VecDeque<Event>,
    journal: Journal,
    printer: Printer,
    ledger: Ledger,
    store: Arc<Store>,
    routers: Vec<Router>,
    directory: Directory,
    /// Fences that routers have not all confirmed.
    fences: Fences,
    gate: Arc<Gate>,
    stdin: Stdin,
    /// The offset from which rank 0 waits for input.
    stdin_wanted: Option<u64>,
    children: Children,
    links: BTreeMap<Node, Link>,
    /// Files in /dev/shm, per rank.
    shared: Vec<BTreeSet<String>>,
    /// What agents had to say.
    noted: BTreeSet<String>,
    /// Lives whose refusal was told already.
    refused: BTreeSet<Option<RankInstance>>,
    begun: Instant,
    drawn: Instant,
    end: Option<i32>,
    /// The user has ended the job, and waits.
    quiet_end: bool,
    /// Nobody reads the job's output any more.
    reader_left: bool,
    refusals: Refusals,
    wishes: Wishes,
}

impl Job {
    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// The loop; returns the exit code.
    fn run(
        &mut self,
        inbound: &Receiver<Inbound>,
        router_events: &Receiver<(RouterId, RouterEvent)>,
    ) -> i32 {
        loop {
            let wait = self.wait();
            select! {
                recv(inbound) -> message => {
                    message.into_iter().for_each(|m| self.hear(m));
                }
                recv(router_events) -> event => {
                    event.into_iter().for_each(|(router, e)| self.hear_router(router, e));
                }
                default(wait) => {}
            }
            for _ in 0..BATCH {
                let Ok(message) = inbound.try_recv() else { break };
                self.hear(message);
            }
            while let Ok((router, event)) = router_events.try_recv() {
                self.hear_router(router, event);
            }
            self.tell(Event::Tick);
            if let Some(code) = self.end {
                return code;
            }
            self.draw_progress();
        }
    }

    fn wait(&self) -> Duration {
        let tick = self.machine.next_tick().map(|at| at.saturating_sub(self.now()));
        let draw = self.printer.has_terminal().then_some(PROGRESS_EVERY);
        tick.into_iter().chain(draw).min().unwrap_or(Duration::from_secs(1))
    }

    /// Hands an event to the machine and does what it says.
    fn tell(&mut self, event: Event) {
        self.events.push_back(event);
        while let Some(event) = self.events.pop_front() {
            let commands = self.machine.handle(self.now(), event);
            for command in commands {
                self.obey(command);
            }
        }
    }

    fn hear(&mut self, message: Inbound) {
        match message {
            Inbound::AgentUp { node, link } => {
                self.links.insert(node, link);
                self.tell(Event::AgentUp(node));
            }
            Inbound::Agent { node, message } => {
                // A node that was given up is not heard any more.
                if self.links.contains_key(&node) {
                    self.hear_agent(node, message);
                }
            }
            Inbound::AgentGone { node } => {
                if self.links.contains_key(&node) {
                    self.tell(Event::AgentGone(node));
                }
            }
            Inbound::AgentWoke { node } => self.tell(Event::AgentWoke(node)),
            Inbound::ImageBegun { life, image } => self.tell(Event::ImageBegun { life, image }),
            Inbound::ImageStored { life, image } => self.tell(Event::ImageStored { life, image }),
            Inbound::ImageFailed { life, image, reason } => {
                self.tell(Event::CaptureFailed { life, image, reason, passing: false })
            }
            Inbound::Stdin => self.send_stdin(),
            Inbound::User { request, answer } => self.answer(&request, answer),
            Inbound::OutputFailed(OutputFailed { code, cause, reader_left }) => {
                self.reader_left = reader_left;
                self.stop(code, cause);
            }
            Inbound::Signal(SIGCHLD) => {
                for node in self.children.reap() {
                    // Also one that had never connected.
                    self.tell(Event::AgentGone(node));
                }
            }
            Inbound::Signal(signal) => {
                self.stop(128 + signal, format!("ended by {}", in_words(signal)))
            }
            Inbound::Note(text) => self.record(Record::Note { text }),
        }
    }

    fn stop(&mut self, code: i32, cause: String) {
        self.quiet_end = true;
        self.tell(Event::Stop { code, cause });
    }

    fn hear_agent(&mut self, node: Node, message: FromAgent) {
        use FromAgent as F;
        let life = |rank, incarnation| Life { rank, incarnation };
        let event = match message {
            F::Started { rank, incarnation, pid: _, fetched_us, restored_us } => Event::Started {
                life: life(rank, incarnation),
                fetched: Duration::from_micros(fetched_us),
                restored: Duration::from_micros(restored_us),
            },
            F::StartFailed { rank, incarnation, reason, fault } => {
                Event::StartFailed { life: life(rank, incarnation), reason, fault }
            }
            F::Alone { rank, incarnation, library } => {
                Event::Alone { life: life(rank, incarnation), library }
            }
            F::Shared { rank, path } => {
                if let Some(paths) = self.shared.get_mut(rank as usize) {
                    paths.insert(path);
                }
                return;
            }
            F::NotOurs { rank, incarnation, library } => {
                Event::NotOurs { life: life(rank, incarnation), library }
            }
            F::ProviderLoaded { rank, incarnation } => {
                Event::ProviderLoaded(life(rank, incarnation))
            }
            F::Output { rank, incarnation, stream, offset, bytes } => {
                return self.take_output(node, life(rank, incarnation), stream, offset, &bytes);
            }
            F::StdinWanted { rank, incarnation, offset } => {
                if rank == 0 && self.gate.is_present(rank, incarnation) {
                    self.stdin_wanted = Some(offset);
                    self.send_stdin();
                }
                return;
            }
            F::PmiPut { rank, incarnation, key, value } => {
                Event::PmiPut { life: life(rank, incarnation), key, value }
            }
            F::PmiBarrier { rank, incarnation, barrier } => {
                Event::PmiBarrier { life: life(rank, incarnation), barrier }
            }
            F::PmiFinalized { rank, incarnation } => Event::PmiFinalized(life(rank, incarnation)),
            F::PmiAbort { rank, incarnation, code, message: _ } => {
                Event::PmiAbort { life: life(rank, incarnation), code }
            }
            F::Captured { rank, incarnation, image, pause_us } => Event::Captured {
                life: life(rank, incarnation),
                image,
                pause: Duration::from_micros(pause_us),
            },
            F::CaptureRefused { rank, incarnation, image, reason, passing } => {
                Event::CaptureFailed { life: life(rank, incarnation), image, reason, passing }
            }
            F::Note { text } => {
                // What holds for all nodes is said once.
                if self.noted.insert(text.clone()) {
                    self.record(Record::Note { text });
                }
                return;
            }
            F::ImageUsable { rank, incarnation, image, output } => {
                let (life, taken) = (life(rank, incarnation), self.ledger.taken(rank));
                if taken[0] < output[0] || taken[1] < output[1] {
                    // It would be lost if the node died now, and the image would not write it
                    // again.
                    let reason = "output from before the image has not arrived yet".to_string();
                    Event::CaptureFailed { life, image, reason, passing: true }
                } else {
                    Event::ImageUsable { life, image }
                }
            }
            F::ImageUnusable { rank, incarnation, image, reason } => {
                Event::ImageUnusable { life: life(rank, incarnation), image, reason }
            }
            F::ImageWanted { rank, incarnation, reason } => {
                Event::ImageWanted { life: life(rank, incarnation), reason }
            }
            F::Fatal { rank, incarnation, reason } => {
                Event::Fatal { life: life(rank, incarnation), reason }
            }
            F::Exited { rank, incarnation, ending, spoke_pmi } => {
                Event::Exited { life: life(rank, incarnation), ending, spoke_pmi }
            }
            F::Pulse { n } => Event::Pulse { node, n },
        };
        self.tell(event);
    }

    /// Output of a rank: only of its present life, and only what was not shown before.
    fn take_output(&mut self, node: Node, life: Life, stream: Stream, offset: u64, bytes: &[u8]) {
        let Life { rank, incarnation } = life;
        if !self.gate.is_present(rank, incarnation) {
            return;
        }
        let end = offset + bytes.len() as u64;
        let fresh = self.ledger.take(rank, stream, offset, bytes).to_vec();
        let [out, err] = self.ledger.taken(rank);
        self.machine.output_shown(rank, out + err);
        let shown = ToAgent::OutputShown { rank, incarnation, stream, offset: end };
        let link = self.links.get(&node).cloned();
        self.printer.output(stream, fresh, link.map(|l| (l, shown)));
    }

    fn send_stdin(&mut self) {
        let Some(offset) = self.stdin_wanted else { return };
        let Some((bytes, eof)) = self.stdin.piece(offset) else { return };
        let node = self.machine.rank_states().next().map(|(_, node, _)| node);
        if let Some(link) = node.and_then(|n| self.links.get(&n)) {
            link.send(ToAgent::Stdin { rank: 0, offset, bytes, eof });
            self.stdin_wanted = None;
        }
    }

    fn hear_router(&mut self, router: RouterId, event: RouterEvent) {
        use RouterEvent as R;
        let life = |RankInstance { rank, incarnation }| Life { rank, incarnation };
        let event = match event {
            R::Fenced { instance, determinants } => {
                return self.fenced(router, instance, determinants);
            }
            R::Connected(instance) => Event::Connected(life(instance)),
            R::Disconnected(instance) => Event::Disconnected(life(instance)),
            R::Replayed { instance, messages } => {
                Event::Replayed { life: life(instance), messages }
            }
            R::Refused { instance, reason } => {
                // It tries again and again; once is enough.
                if !self.refused.insert(instance) {
                    return;
                }
                let rank = instance.map(|i| i.rank);
                let incarnation = instance.map_or(0, |i| i.incarnation);
                Event::Refused { rank, incarnation, reason }
            }
            R::Divergence { rank, reason } => Event::Divergence { rank, reason },
            R::ContentDiffers { rank, reason } => Event::ContentDiffers { rank, reason },
            R::Unprotected { rank, reason } => Event::Unprotected { rank, reason },
            R::LogGrown { .. } | R::LogScarce { .. } => return,
            R::HeldBack { reason } => {
                let text = format!("ranks are held back: {reason}");
                return self.record(Record::Note { text });
            }
            R::Fatal { reason } => Event::RouterFailed(reason),
        };
        self.tell(event);
    }

    fn tell_routers(&self, command: &RouterCommand) {
        for router in &self.routers {
            router.command(command.clone());
        }
    }

    fn send(&self, node: Node, message: ToAgent) {
        if let Some(link) = self.links.get(&node) {
            link.send(message);
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Start { node, life: Life { rank, incarnation }, image } => {
                let start = StartRank {
                    rank,
                    incarnation,
                    size: self.options.ranks,
                    directory: self.directory.encode(),
                    kvsname: self.kvsname.clone(),
                    program: self.program.clone(),
                    image,
                    stdin: rank == 0,
                    leftovers: self.shared[rank as usize].iter().cloned().collect(),
                };
                self.send(node, ToAgent::Start(Box::new(start)));
            }
            Command::Kill { node, life: Life { rank, incarnation } } => {
                self.send(node, ToAgent::Kill { rank, incarnation })
            }
            Command::Capture { node, life: Life { rank, incarnation }, image, mode } => {
                self.send(node, ToAgent::Capture { rank, incarnation, image, mode })
            }
            Command::Pmi { entries, barriers } => {
                for link in self.links.values() {
                    link.send(ToAgent::Pmi { entries: entries.clone(), barriers });
                }
            }
            Command::Pulse { node, n } => self.send(node, ToAgent::Pulse { n }),
            Command::Disconnect(node) => {
                self.gate.give_up(node);
                // Dropping the link ends the connection.
                self.links.remove(&node);
            }
            Command::Fence(life) => self.fence(life),
            Command::Discard { rank, clock, position } => {
                self.tell_routers(&RouterCommand::Truncate { rank, clock, rsn: position });
            }
            // The machine does not name it again, and the store gives it up for later ones.
            Command::ForgetImage { rank, image } => {
                if let Err(e) = self.store.discard(rank, image) {
                    let text = format!("image {image} of rank {rank} cannot be discarded: {e}");
                    self.record(Record::Note { text });
                }
            }
            Command::ForgetStdin(offset) => self.stdin.forget(offset),
            Command::Strike(strike) => self.strike(strike),
            Command::Record(record) => self.record(record),
            Command::End { code } => self.end = Some(code),
        }
    }

    fn fence(&mut self, life: Life) {
        let Life { rank, incarnation } = life;
        let instance = RankInstance { rank, incarnation };
        self.gate.fence(rank, incarnation);
        self.fences.begin(instance, self.routers.len());
        self.tell_routers(&RouterCommand::Fence(instance));
    }

    /// A router has fenced; when all have, the home router may let the incarnation in.
    fn fenced(&mut self, router: RouterId, instance: RankInstance, list: Vec<Determinant>) {
        let Some(determinants) = self.fences.confirmed(router, instance, list) else { return };
        let RankInstance { rank, incarnation } = instance;
        let position = determinants.iter().map(|d| d.rsn).max().unwrap_or(0);
        let home = self.directory.home(rank) as usize;
        self.routers[home].command(RouterCommand::Recover { instance, determinants });
        let [out, err] = self.ledger.taken(rank);
        let mark = Mark { position, output: out + err };
        self.tell(Event::Fenced { life: Life { rank, incarnation }, mark });
    }

    fn strike(&mut self, strike: Strike) {
        match strike {
            Strike::KillRank(rank) => {
                let at = self.machine.rank_states().nth(rank as usize);
                if let Some((Life { rank, incarnation }, node, _)) = at {
                    self.send(node, ToAgent::Kill { rank, incarnation });
                }
            }
            Strike::KillNode(node) => self.children.kill(node),
            Strike::FreezeNode(node) => self.send(node, ToAgent::Freeze),
            Strike::DropConnection(rank) => {
                self.tell_routers(&RouterCommand::BreakConnections(rank));
            }
        }
    }

    fn record(&mut self, record: Record) {
        let now = self.now();
        if let Err(e) = self.journal.write(now, &record) {
            self.printer.line(&format!("no more events are written: {e}"));
        }
        self.wishes.hear(&record);
        match &record {
            Record::CheckpointFailed { rank, cause, passing: false, .. }
                if !self.refusals.add(*rank, cause) =>
            {
                return;
            }
            Record::JobEnded { .. } => {
                let refused = self.refusals.in_words().map(|text| (Weight::Normal, text));
                refused.into_iter().for_each(|line| self.show(line));
            }
            _ => {}
        }
        record.line().into_iter().for_each(|line| self.show(line));
    }

    /// Shows a line, unless whoever read our output has left.
    fn show(&self, (weight, line): (Weight, String)) {
        if weight >= self.options.show && !self.reader_left {
            self.printer.line(&line);
        }
    }

    fn answer(&mut self, request: &str, answer: Sender<String>) {
        let JobOptions { ranks, nodes, spares, .. } = self.options;
        let text = match users::parse(request) {
            Err(e) => users::error(&e),
            Ok(Request::Status) => serde_json::to_string(&self.status())
                .unwrap_or_else(|e| users::error(&e.to_string())),
            Ok(Request::Inject { spec }) => {
                match users::parse_injection(&spec, ranks, nodes + spares) {
                    Err(e) => users::error(&e),
                    Ok(injection) => {
                        self.tell(Event::Inject(injection));
                        serde_json::json!({ "ok": true }).to_string()
                    }
                }
            }
            Ok(Request::Checkpoint { rank }) => match self.checkpoint(rank, &answer) {
                Err(e) => users::error(&e),
                Ok(()) => return,
            },
        };
        // The user may have left.
        let _ = answer.send(text);
    }

    /// Asks for checkpoints of one rank or all; they are answered when they are stored.
    fn checkpoint(&mut self, rank: Option<Rank>, answer: &Sender<String>) -> Result<(), String> {
        let states: Vec<_> = (self.machine.rank_states())
            .map(|(life, _, state)| (life.rank, state == crate::machine::State::Finished))
            .collect();
        if let Some(rank) = rank {
            match states.get(rank as usize) {
                None => {
                    let last = states.len() - 1;
                    return Err(format!("there is no rank {rank}: the job has ranks 0 to {last}"));
                }
                Some((_, true)) => return Err(format!("rank {rank} has finished")),
                Some(_) => {}
            }
        }
        let wanted =
            states.iter().filter(|(r, finished)| !finished && rank.is_none_or(|one| one == *r));
        self.wishes.add(wanted.map(|(r, _)| *r), answer.clone());
        self.tell(Event::Checkpoint(rank));
        Ok(())
    }

    fn status(&self) -> Status {
        let stats: Vec<_> = self.routers.iter().map(Router::stats).collect();
        let rank_status = |(life, node, state): (Life, Node, crate::machine::State)| RankStatus {
            rank: life.rank,
            node,
            incarnation: life.incarnation,
            state: format!("{state:?}").to_lowercase(),
        };
        let argv = self.program.argv.iter().map(|a| a.to_string_lossy());
        Status {
            job: self.name.clone(),
            program: argv.collect::<Vec<_>>().join(" "),
            nodes_up: self.machine.nodes_up().collect(),
            ranks: self.machine.rank_states().map(rank_status).collect(),
            log_memory_bytes: stats.iter().map(|s| s.memory_bytes).sum(),
            log_disk_bytes: stats.iter().map(|s| s.disk_bytes).sum(),
            messages: stats.iter().map(|s| s.messages).sum(),
            store_bytes: self.store.usage().map_or(0, |u| u.live),
            summary: self.machine.summary(),
        }
    }

    fn draw_progress(&mut self) {
        if !self.printer.has_terminal() || self.drawn.elapsed() < PROGRESS_EVERY {
            return;
        }
        self.drawn = Instant::now();
        let mut by_node: BTreeMap<Node, u32> = BTreeMap::new();
        for (_, node, state) in self.machine.rank_states() {
            if state != crate::machine::State::Finished {
                *by_node.entry(node).or_default() += 1;
            }
        }
        let by_node: Vec<String> = by_node.iter().map(|(n, c)| format!("{n}:{c}")).collect();
        let log: u64 =
            (self.routers.iter().map(Router::stats)).map(|s| s.memory_bytes + s.disk_bytes).sum();
        let s = self.machine.summary();
        self.printer.progress(format!(
            "[{} | ranks by node {} | {} checkpoints | log {} | {} recoveries]",
            eyrie_units::time(Duration::from_secs(self.now().as_secs())),
            by_node.join(" "),
            s.checkpoints,
            eyrie_units::bytes(log),
            s.recoveries
        ));
    }

    /// Ends everything: agents, ranks, files. Returns the exit code, which is `code` unless output
    /// was lost after all.
    fn finish(mut self, inbound: &Receiver<Inbound>, code: i32) -> i32 {
        for link in self.links.values() {
            link.send(ToAgent::Shutdown);
        }
        let until = Instant::now() + SHUTDOWN_TIMEOUT;
        while !self.children.is_empty() {
            let Some(left) = until.checked_duration_since(Instant::now()) else { break };
            // Children that end wake us; agents that were given up will not end by themselves.
            match inbound.recv_timeout(left.min(Duration::from_millis(20))) {
                Ok(Inbound::Agent {
                    message: FromAgent::Output { rank, incarnation, stream, offset, bytes },
                    node,
                }) => self.take_output(node, Life { rank, incarnation }, stream, offset, &bytes),
                Ok(Inbound::User { answer, .. }) => {
                    let _ = answer.send(users::error("the job has just ended"));
                }
                _ => {}
            }
            self.children.reap();
            if self.children.only_lost(&self.machine.nodes_up().collect::<Vec<_>>()) {
                break;
            }
        }
        if let eyrie_agent::Reaped::Left(n) = eyrie_agent::kill_all_children(KILL_TIMEOUT) {
            self.printer.line(&format!("{n} processes hang in the kernel and could not be ended"));
        }
        eyrie_agent::remove_segments(self.shared.iter().flatten());
        let within = self.quiet_end.then_some(Duration::from_secs(1));
        let now = self.now();
        let mut lines = Vec::new();
        let code = match self.printer.finish(within) {
            // It became known when the ranks had ended already.
            Some(OutputFailed { code: failed, cause, reader_left }) if code == 0 => {
                lines.extend((!reader_left).then(|| format!("eyrie: {cause}\n")));
                // The job is over: where its events cannot be written either, nothing is left to
                // say it.
                let _ = self.journal.write(now, &Record::Note { text: cause });
                failed
            }
            _ => code,
        };
        let summary = summary(&self.machine, &self.name, code);
        lines.extend(self.options.json.then(|| summary + "\n"));
        for line in lines {
            let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
        }
        code
    }
}

fn summary(machine: &Machine, name: &str, code: i32) -> String {
    let mut value = serde_json::to_value(machine.summary()).unwrap_or_default();
    if let Some(object) = value.as_object_mut() {
        object.insert("job".into(), name.into());
        object.insert("code".into(), code.into());
    }
    value.to_string()
}
