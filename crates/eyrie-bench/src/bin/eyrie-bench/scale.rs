//! `eyrie-bench scale`: the cost of the controller as a job grows. The real machine is driven
//! through jobs whose agents and routers are simulated by their messages. Times are those of the
//! machine alone, without sockets; bytes are those of the messages that it causes. With `--domains`
//! it is the machine of one of many domains.

mod others;
mod said;

use clap::Args;
use eyrie_bench::plot::{draw, Chart, Series};
use eyrie_cli::out;
use eyrie_controller::machine::schedule::Interval;
use eyrie_controller::machine::{Command, Config, Event, FromPeer, Machine, RankStateName, ToPeer};
use eyrie_interface::options::Precaution;
use eyrie_interface::Order;
use eyrie_router::{RouterCommand, RouterEvent};
use eyrie_store::role::{StoreCommand, StoreEvent, Stored};
use eyrie_wire::control::{
    CheckpointMode, FromAgent, ImageAt, JobOnHost, Notices, Program, RankReport, RoleKind, ToAgent,
};
use eyrie_wire::data::Determinant;
use eyrie_wire::directory::MessagePath;
use eyrie_wire::rank_address::address;
use eyrie_wire::{ImageId, NodeId, Rank, RankInstance, StoreId};
use others::Others;
use said::{bytes_in, from_agent, from_router, from_store};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Ranks of a node, and nodes of the jobs.
const RANKS: u32 = 100;
const NODES: [u32; 5] = [1, 10, 100, 1_000, 10_000];
/// Domains of jobs of several, and nodes of each.
const DOMAINS: [u32; 4] = [2, 10, 30, 100];
const NODES_OF_A_DOMAIN: u32 = 10;
/// Routers, and stores, of each job: the default of jobs on several hosts.
const ROLES: u32 = 2;
/// Bytes of a program and its environment.
const PROGRAM_BYTES: usize = 4096;

/// Where each role listens.
const PLACE: &str = "tcp:10.0.0.1:40000";

/// A job of simulated agents.
struct Job {
    machine: Machine,
    nodes: u64,
    now: Duration,
    /// Bytes and commands that went to agents.
    bytes: u64,
    commands: u64,
    others: Others,
}

/// The cost of a phase.
#[derive(Clone, Copy)]
struct Cost {
    took: Duration,
    bytes: u64,
    commands: u64,
}

impl Job {
    fn new(nodes: u32) -> Job {
        Job::of(config(nodes), Others::default())
    }

    fn of(config: Config, others: Others) -> Job {
        let nodes = u64::from(config.nodes + config.spares);
        let machine = Machine::new(config);
        Job { machine, nodes, now: Duration::ZERO, bytes: 0, commands: 0, others }
    }

    /// The first of so many domains. Its gateway is on a node of its own.
    fn of_domain(count: u32) -> Job {
        let nodes = NODES_OF_A_DOMAIN;
        let domains = others::domains(count, nodes * RANKS);
        let here = |rank: u32| if rank < nodes * RANKS { rank / RANKS } else { 0 };
        let slots = |node: u32| if node == nodes { Some(0) } else { None };
        let config = Config {
            ranks: count * nodes * RANKS,
            nodes: nodes + 1,
            start: (0..count * nodes * RANKS).map(|rank| NodeId(here(rank))).collect(),
            slots: (0..nodes + 2).map(slots).collect(),
            hosts: (0..nodes + 2).map(|node| format!("n{node}")).collect(),
            domains: Some(domains.clone()),
            gateway: Some(NodeId(nodes)),
            ..config(nodes)
        };
        Job::of(config, Others::new(domains, ROLES))
    }

    /// Sends the machine an event, a microsecond later; returns its commands. Agents answer their
    /// heartbeats, and started roles listen.
    fn send(&mut self, event: Event) -> Vec<Command> {
        self.now += Duration::from_micros(1);
        let mut commands = self.machine.handle(self.now, event);
        let mut next = 0;
        while let Some(command) = commands.get(next) {
            let answer = answer_to(command).or_else(|| self.others.answer_to(command));
            if let Some(answer) = answer {
                commands.extend(self.machine.handle(self.now, answer));
            }
            next += 1;
        }
        self.bytes += commands.iter().map(|command| bytes_of(command, self.nodes)).sum::<u64>();
        self.commands += commands.len() as u64;
        commands
    }

    fn report(&mut self, instance: RankInstance, report: RankReport) -> Vec<Command> {
        self.send(from_agent(NodeId(0), FromAgent::Rank(instance, report)))
    }

    /// The cost of `run`.
    fn cost(&mut self, run: impl FnOnce(&mut Job)) -> Cost {
        let bytes = self.bytes;
        let commands = self.commands;
        let begin = Instant::now();
        run(self);
        let took = begin.elapsed();
        Cost { took, bytes: self.bytes - bytes, commands: self.commands - commands }
    }

    fn instances(&self) -> Vec<RankInstance> {
        self.machine.rank_states().map(|(instance, _, _)| instance).collect()
    }

    /// All agents connect, all ranks start and pass two barriers.
    fn start(&mut self) {
        let join = ToAgent::Join(Box::new(common(self.instances().len() as u32)));
        self.bytes += self.nodes * bytes_in(&join);
        for node in NodeId::first(self.nodes as u32) {
            self.send(from_agent(node, FromAgent::Joined(Ok(None))));
        }
        assert!(self.machine.has_started());
        let none = Duration::ZERO;
        for instance in self.instances() {
            self.report(instance, RankReport::Started { fetched: none, restored: none });
            self.send(from_router(0, RouterEvent::Connected(instance)));
            self.report(instance, RankReport::ProviderLoaded);
            self.report(instance, address_of(instance.rank));
        }
        for line in self.others.lines() {
            self.send(line);
        }
        for barrier in 1..=2 {
            for instance in self.instances() {
                self.report(instance, RankReport::PmiBarrier { barrier });
            }
            for said in self.others.arrive(barrier) {
                self.send(said);
            }
        }
    }

    /// Nodes get heartbeats and answer, for ten seconds.
    fn idle(&mut self) {
        let until = self.now + Duration::from_secs(10);
        while self.now < until {
            self.now = self.machine.next_tick().map_or(until, |at| at.max(self.now));
            self.send(Event::Tick);
        }
    }

    /// Each rank is captured, one after the other.
    fn checkpoint(&mut self) {
        let mut due = self.send(Event::Checkpoint { request: 1, rank: None });
        let mut taken = 0;
        while let Some(command) = due.pop() {
            let Command::Send(ToPeer::Agent(_, ToAgent::Capture { instance, image, .. })) = command
            else {
                continue;
            };
            let ImageAt { image, store } = image;
            let begun = StoreEvent::Begun { instance, image };
            due.extend(self.send(from_store(store.store, begun)));
            due.extend(self.send(stored(store.store, instance, image)));
            let usable = RankReport::ImageUsable { image, output: [0; 2] };
            due.extend(self.report(instance, usable));
            taken += 1;
        }
        assert_eq!(taken, self.instances().len());
    }

    /// A node dies; its ranks come back on the spare.
    fn lose(&mut self) {
        let mut due = self.send(Event::AgentGone(NodeId(0)));
        while let Some(command) = due.pop() {
            match command {
                Command::Send(ToPeer::Routers(RouterCommand::Fence(instance))) => {
                    let determinants = vec![Determinant { clock: 1, rsn: 1 }];
                    let fenced =
                        RouterEvent::Fenced { instance, determinants, observed: Vec::new() };
                    for router in 0..ROLES + self.others.gateways() {
                        due.extend(self.send(from_router(router, fenced.clone())));
                    }
                }
                Command::Send(ToPeer::Agent(_, ToAgent::Start(start))) => {
                    let instance = start.instance;
                    let none = Duration::ZERO;
                    self.report(instance, RankReport::Started { fetched: none, restored: none });
                    let replayed = RouterEvent::Replayed { instance, messages: 1 };
                    self.send(from_router(0, replayed));
                }
                _ => {}
            }
        }
        let left = |(_, node, _): (RankInstance, NodeId, RankStateName)| node == NodeId(0);
        assert!(!self.machine.rank_states().any(left), "ranks are on the lost node");
    }
}

/// A job of so many nodes with ranks, and a spare one.
fn config(nodes: u32) -> Config {
    let ranks = nodes * RANKS;
    Config {
        job: "scale".into(),
        ranks,
        nodes,
        spares: 1,
        start: (0..ranks).map(|rank| NodeId(rank / RANKS)).collect(),
        slots: vec![],
        hosts: (0..=nodes).map(|node| format!("n{node}")).collect(),
        routers: ROLES,
        path: MessagePath::Router,
        stores: ROLES,
        image_copies: ROLES,
        roles_on_nodes: true,
        // Only when ordered.
        checkpoint_every: Interval::Off,
        checkpoint_order: Order::Sequential,
        checkpoint_mode: CheckpointMode::Async,
        self_contained: false,
        can_be_saved: false,
        archive: false,
        drain_on_notice: true,
        run_time: Duration::from_secs(3600),
        on_suspect: Precaution::Image,
        on_failing: Precaution::Drain,
        heartbeat_timeout: Duration::from_secs(5),
        agents_timeout: Duration::from_secs(600),
        alone_for: Duration::from_secs(600),
        agents_come_back: true,
        injections: vec![],
        domains: None,
        gateway: None,
        joins: false,
    }
}

/// The immediate answer of a node, or a role, to a command.
fn answer_to(command: &Command) -> Option<Event> {
    match command {
        Command::Send(ToPeer::Agent(node, ToAgent::Heartbeat { n })) => {
            Some(from_agent(*node, FromAgent::Heartbeat { n: *n }))
        }
        Command::StartRole { role, .. } => {
            let addr = PLACE.parse().expect("it is an address");
            Some(Event::From(match role.kind {
                RoleKind::Router => FromPeer::Router(*role, RouterEvent::Listening(addr)),
                RoleKind::Store => FromPeer::Store(*role, StoreEvent::Listening(addr)),
            }))
        }
        Command::Send(ToPeer::Store(store, StoreCommand::Copy { instance, image, .. })) => {
            Some(stored(*store, *instance, *image))
        }
        _ => None,
    }
}

/// A store has an image.
fn stored(store: StoreId, instance: RankInstance, image: ImageId) -> Event {
    let stored =
        Stored { image, clock: 1, rsn: 1, observed: 0, stdin: 0, bytes: 1 << 20, file_bytes: 0 };
    from_store(store, StoreEvent::Stored { instance, stored, live_bytes: 0 })
}

/// The address of a rank that MPICH 4 publishes.
fn address_of(rank: Rank) -> RankReport {
    let hex = address(rank).map(|byte| format!("{byte:02X}"));
    RankReport::PmiPut { key: format!("-allgather-1-{rank}"), value: hex.concat() }
}

/// What an agent gets about its job.
fn common(ranks: u32) -> JobOnHost {
    let argument = std::ffi::OsString::from("x".repeat(PROGRAM_BYTES));
    JobOnHost {
        name: "scale".into(),
        dir: "/tmp/eyrie/scale".into(),
        provided: vec![],
        copied: false,
        kvsname: "scale".into(),
        ranks,
        program: Program { argv: vec![argument], ..Program::default() },
        self_contained: false,
        compared: true,
        orphans: None,
        notices: Notices::default(),
        monitoring: None,
    }
}

/// Bytes of the messages to agents that a command causes at this many nodes.
fn bytes_of(command: &Command, nodes: u64) -> u64 {
    match command {
        Command::Send(ToPeer::Agent(_, message)) => bytes_in(message),
        Command::Send(ToPeer::Agents(message)) => nodes * bytes_in(message),
        Command::StartRole { role, .. } => bytes_in(&ToAgent::StartRole(*role)),
        Command::Directory(directory) => nodes * bytes_in(&ToAgent::Directory(directory.clone())),
        _ => 0,
    }
}

/// Resident memory of this process in bytes.
fn resident_bytes() -> u64 {
    let pages = eyrie_proc::read_stat(eyrie_proc::OWN).map_or(0, |stat| stat.rss_pages);
    pages * rustix::param::page_size() as u64
}

const PHASES: [&str; 4] = ["start", "10 s idle", "an image of each rank", "a node lost"];

/// Measures a job of this many nodes in all phases; returns also by how many bytes the process
/// grew.
fn measure(nodes: u32) -> ([Cost; 4], u64) {
    let before = resident_bytes();
    let mut job = Job::new(nodes);
    let costs =
        [job.cost(Job::start), job.cost(Job::idle), job.cost(Job::checkpoint), job.cost(Job::lose)];
    (costs, resident_bytes().saturating_sub(before))
}

fn json_of(nodes: u32, costs: &[Cost; 4], memory_bytes: u64) -> serde_json::Value {
    let phases: serde_json::Map<String, serde_json::Value> = (PHASES.iter().zip(costs))
        .map(|(name, Cost { took, bytes, commands })| {
            let seconds = took.as_secs_f64();
            let cost =
                serde_json::json!({ "seconds": seconds, "bytes": bytes, "commands": commands });
            (name.to_string(), cost)
        })
        .collect();
    let ranks = nodes * RANKS;
    let sizes = serde_json::json!({ "nodes": nodes, "ranks": ranks, "memory_bytes": memory_bytes });
    serde_json::json!({ "job": sizes, "phases": phases })
}

fn line_of(nodes: u32, costs: &[Cost; 4], memory_bytes: u64) -> String {
    let cells = costs.map(|Cost { took, bytes, commands }| {
        let took = eyrie_units::time(took);
        let bytes = eyrie_units::bytes(bytes);
        format!("{took}, {commands} commands, {bytes}")
    });
    let ranks = nodes * RANKS;
    let memory = eyrie_units::bytes(memory_bytes);
    format!("| {nodes} | {ranks} | {} | {memory} |", cells.join(" | "))
}

/// Measures the first of so many domains: a line of a table.
fn measure_domain(count: u32) -> String {
    let before = resident_bytes();
    let mut job = Job::of_domain(count);
    let mut cells = Vec::new();
    for phase in [Job::start, Job::idle, Job::checkpoint, Job::lose] {
        let told = job.others.told;
        let bytes = job.others.bytes;
        let took = eyrie_units::time(job.cost(phase).took);
        let letters = job.others.told - told;
        let bytes = eyrie_units::bytes(job.others.bytes - bytes);
        cells.push(format!("{took}, {letters} letters, {bytes}"));
    }
    let ranks = count * NODES_OF_A_DOMAIN * RANKS;
    let memory = eyrie_units::bytes(resident_bytes().saturating_sub(before));
    format!("| {count} | {ranks} | {} | {memory} |", cells.join(" | "))
}

#[derive(Args)]
pub struct ScaleArgs {
    /// Jobs of several domains of 1000 ranks each: the letters of one of them to the others
    #[arg(long, conflicts_with_all = ["json", "plot"])]
    domains: bool,
    /// Only the smaller jobs
    #[arg(long)]
    quick: bool,
    /// Print a line of JSON for each job instead of a table
    #[arg(long)]
    json: bool,
    /// Draw a figure as well
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// Measures jobs of all sizes, shows a table or lines of JSON, and draws a figure.
pub fn run(args: &ScaleArgs) -> anyhow::Result<i32> {
    if args.domains {
        out::line(format!("| domains | ranks | {} | memory |", PHASES.join(" | ")))?;
        out::line("|---|---|---|---|---|---|---|")?;
        let counts = if args.quick { &DOMAINS[..2] } else { &DOMAINS[..] };
        for count in counts {
            out::line(measure_domain(*count))?;
        }
        return Ok(0);
    }
    let series = |name: &&str| Series { name: name.to_string(), points: vec![], paper: false };
    let mut series: Vec<Series> = PHASES.iter().map(series).collect();
    if !args.json {
        out::line(format!("| nodes | ranks | {} | memory |", PHASES.join(" | ")))?;
        out::line("|---|---|---|---|---|---|---|")?;
    }
    let sizes = if args.quick { &NODES[..3] } else { &NODES[..] };
    for nodes in sizes.iter().copied() {
        let (costs, memory_bytes) = measure(nodes);
        if args.json {
            out::line(json_of(nodes, &costs, memory_bytes))?;
        } else {
            out::line(line_of(nodes, &costs, memory_bytes))?;
        }
        for (series, cost) in series.iter_mut().zip(costs) {
            series.points.push((f64::from(nodes * RANKS), cost.took.as_secs_f64()));
        }
    }
    if let Some(file) = &args.plot {
        let title = "Time of the controller's machine".to_string();
        let x = "ranks".to_string();
        draw(&Chart::Growth { title, x, y: "seconds".to_string(), series }, file)?;
    }
    Ok(0)
}
