//! `eyrie run`: what may be asked for.

use super::domains::{self, Begun, Part, Sites, Usual};
use super::network::{self, Asked, Spares, Way};
use super::serve::{PageOfJob, USUAL_PORT};
use super::telemetry;
use anyhow::Context;
use clap::Args;
use eyrie_controller::domains::nodes as domain_nodes;
use eyrie_controller::hosts::{self, Host};
use eyrie_controller::machine::schedule::Interval;
use eyrie_controller::machine::SAVED_CODE;
use eyrie_controller::runtime::{
    self, check_ledgers, Beside, Cluster, JobNetwork, JobOptions, Launcher, Reach, Resumption,
    Running, Spared, ENV_SPARES,
};
use eyrie_exporter::listen::address;
use eyrie_host::enough;
use eyrie_interface::inject::Fault;
use eyrie_interface::options::{
    self, CheckpointEvery, CpuLevel, LaunchBy, Monitor, OnNotice, Order, Precaution, ReachBy,
    Recording, RolesAt, StartBy,
};
use eyrie_interface::record::LogLevel;
use eyrie_interface::Injection;
use eyrie_monitor::health::Rules;
use eyrie_placement::{CostModel, Method, Placement, Words};
use eyrie_telemetry::Collector;
use eyrie_topology::spec::Files;
use eyrie_units::{duration, size};
use eyrie_wire::control::{CheckpointMode, Notices};
use eyrie_wire::directory::MessagePath;
use eyrie_wire::health::Monitoring;
use eyrie_wire::role_address::{Interface, Ports, Security};
use eyrie_wire::{NodeId, Rank};
use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Run an MPI program so that it survives the death of its ranks and nodes.
///
/// The program must use an MPICH with libfabric (for instance MPICH 5 from PyPI: `pip install
/// mpich`); it is not changed in any way. Its output, its input and its exit code are as with
/// mpiexec. Every message is logged before it is delivered, and checkpoints are taken while the
/// ranks compute. When a rank dies, it alone goes back to its last checkpoint and repeats what it
/// had done since; when a node dies, its ranks go to a spare node.
#[derive(Args)]
#[command(after_long_help = EXAMPLES)]
pub struct RunArgs {
    /// Number of ranks [default: 1; with --hosts one for each slot]
    #[arg(short = 'n', long, value_name = "RANKS")]
    ranks: Option<u32>,
    /// Number of nodes that the ranks start on, all of them on this host [default: 1, or the hosts
    /// of an allocation of Slurm]
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// The hosts that are the nodes, with how many ranks each may start with: a:4,b:4 or n[0-3]:2.
    /// They are filled in order; the last --spares of them stay free
    #[arg(long, value_name = "LIST", conflicts_with_all = ["nodes", "hostfile"])]
    hosts: Option<String>,
    /// A file of hosts, one a line: `a:4`, `a slots=4`, or a line for each slot
    #[arg(long, value_name = "FILE", conflicts_with = "nodes")]
    hostfile: Option<PathBuf>,
    /// A file that names the hosts of several domains: sites whose hosts reach each other by one
    /// gateway of each only (docs/domains.md). The controllers of the other sites are started from
    /// here
    #[arg(long, value_name = "FILE")]
    domains: Option<PathBuf>,
    /// The domain that this process is the controller of; given by the one that starts it
    #[arg(long = "as", value_name = "NAME", requires = "domains", hide = true)]
    own_domain: Option<String>,
    /// How agents are started on the hosts [default: ssh; in an allocation of Slurm slurm]
    #[arg(long, value_enum, value_name = "HOW")]
    launcher: Option<LaunchBy>,
    /// The command that starts agents on other hosts; it takes ssh's arguments
    #[arg(
        long,
        default_value = options::LAUNCHER_EXEC,
        value_name = "COMMAND",
        hide_short_help = true
    )]
    launcher_exec: OsString,
    /// With more hosts than this ssh is not started here for each: hosts start the agents of others
    #[arg(
        long,
        default_value_t = options::LAUNCH_FANOUT,
        value_name = "HOSTS",
        hide_short_help = true
    )]
    launch_fanout: u32,
    /// Send eyrie and its libraries to the hosts, which need not have them; they are removed at the
    /// end
    #[arg(long, conflicts_with = "agent_path")]
    send_binaries: bool,
    /// The eyrie command on the hosts [default: this one, at the same path]
    #[arg(long, value_name = "PATH", hide_short_help = true)]
    agent_path: Option<PathBuf>,
    /// Nodes held free for the ranks of failed ones: how many, or with --network which: nd(d,w)
    /// keeps planes of width w on d sides of the grid of the nodes, such as 2d(2,1); scattered:S,
    /// contiguous:S (the last ones), list:NODE;NODE
    #[arg(
        long,
        default_value_t = Spares::Count(options::SPARES),
        value_name = "S",
        env = ENV_SPARES
    )]
    spares: Spares,
    /// Most ranks that a node starts with
    #[arg(
        long,
        default_value_t = options::SLOTS,
        value_name = "RANKS",
        hide_short_help = true
    )]
    slots: u32,
    /// Number of routers, which log and deliver the messages where these do not go straight; ranks
    /// are spread over them [default: 1 where messages need routers]
    #[arg(long, value_name = "K")]
    routers: Option<u32>,
    /// The way that messages take [default: direct where all nodes are on this host and no routers
    /// are asked for, else router]
    #[arg(long, value_enum, value_name = "WAY", env = "EYRIE_PATH", hide_short_help = true)]
    path: Option<MessagePath>,
    /// Where routers and stores run [default: nodes with two hosts or more, else here; with
    /// --resume-from where they ran before]
    #[arg(long, value_enum, value_name = "WHERE", hide_short_help = true)]
    roles: Option<RolesAt>,
    /// How the roles of the job reach each other: Unix sockets, or TCP [default: Unix sockets; with
    /// --hosts TCP]
    #[arg(long, value_enum, value_name = "HOW", hide = true)]
    reach: Option<ReachBy>,
    /// The interface by which other hosts reach this one: an IP address or a name as `ip link`
    /// shows it [default: the one towards the first of the other hosts]
    #[arg(long, value_name = "IP|NAME", hide_short_help = true)]
    interface: Option<Interface>,
    /// The TCP ports that may be listened at, where a firewall lets only some through [default:
    /// any]
    #[arg(long, value_name = "FIRST-LAST", hide_short_help = true)]
    port_range: Option<Ports>,
    /// How what goes between hosts is protected
    #[arg(long, value_enum, default_value_t, value_name = "HOW", hide_short_help = true)]
    transport_security: Security,
    /// How often each rank is checkpointed: a time like 10s, `auto` or `off`
    ///
    /// `auto` takes the interval of Daly's formula, from the measured cost of a checkpoint and
    /// --mtbf. With `off` a failed rank starts from its beginning and repeats everything.
    #[arg(long, default_value_t, value_name = "TIME")]
    checkpoint_every: CheckpointEvery,
    /// In which order the ranks are checkpointed
    #[arg(long, value_enum, default_value_t, value_name = "ORDER")]
    checkpoint_order: Order,
    /// Whether a rank computes on while its image is written
    #[arg(long, value_enum, default_value_t, value_name = "MODE")]
    checkpoint_mode: CheckpointMode,
    /// Whether what a rank observes besides messages (its clocks) and does to files is recorded, so
    /// that it observes the same, and does nothing twice, when it is executed again
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    record: Recording,
    /// Start ranks so that they use no more of their processors than this, and can be restored on
    /// poorer ones: a level of the psABI, or `common`, what all hosts have
    ///
    /// Libraries that choose their code by what the processor has are told so by their variables; a
    /// program that asks the processor itself is not. What an image really uses is looked at.
    #[arg(long, value_enum, value_name = "LEVEL")]
    cpu: Option<CpuLevel>,
    /// Take images of ranks with sockets that lead out of them: in a restored rank these are broken
    /// connections, as when the other side has hung up
    #[arg(long, hide_short_help = true)]
    allow_broken_sockets: bool,
    /// Put the program, its libraries and other mapped files into images: ranks go on, and move to,
    /// where these are missing or other versions
    ///
    /// A rank that has no image yet starts with the files that are there. Files that a rank has
    /// open are not in its images. `eyrie status` says how much of the images are files.
    #[arg(long)]
    self_contained: bool,
    /// Mean time between failures of the whole job, for `--checkpoint-every auto`
    #[arg(
        long,
        default_value = options::MTBF,
        value_parser = duration,
        value_name = "TIME",
        hide_short_help = true
    )]
    mtbf: Duration,
    /// A failure to be made: kill-rank=R@TIME, kill-node=N@TIME, freeze-node=N@TIME,
    /// random-ranks=COUNT/SEED
    ///
    /// TIME is like 1.5s, from the start of the ranks; or `checkpoint` or `recovery`, to happen in
    /// the middle of the next one. drop-connection=R@TIME breaks the connections of a rank to its
    /// routers. May be repeated.
    #[arg(long = "inject", value_name = "SPEC")]
    injections: Vec<Injection>,
    /// Write every event to this file, as JSON lines
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    /// Answer Prometheus at this address with metrics of the job (docs/metrics.md); a port alone is
    /// loopback only, 0 is any free port
    #[arg(long, value_name = "[HOST:]PORT", value_parser = address)]
    metrics: Option<SocketAddr>,
    /// Send a trace of each recovery and each move to this collector of OpenTelemetry, like
    /// http://localhost:4318 (docs/metrics.md)
    #[arg(long, value_name = "URL")]
    traces: Option<Collector>,
    /// Show the job on a page in the browser as long as it runs, and act on it there, as `eyrie
    /// serve` does: at this address, or else on loopback (docs/page.md)
    #[arg(
        long,
        value_name = "[HOST:]PORT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = USUAL_PORT,
        value_parser = address
    )]
    serve: Option<SocketAddr>,
    /// Write a summary to standard error at the end, as one line of JSON
    #[arg(long)]
    json: bool,
    /// Name of the job, for `eyrie status` and others [default: job-PID]
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Where the job has its directory: sockets, images, and what of the log does not fit into
    /// memory; the same path on each host [default: one of its own in /tmp]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Keep the images in this directory, which must be the job's own and is there after a power
    /// failure: the job can be saved by SIGUSR1, SIGTERM or `eyrie stop`, ends with code 75, and is
    /// gone on with by --resume-from. With --hosts a directory that this host reaches as well later
    #[arg(long, value_name = "DIR")]
    images: Option<PathBuf>,
    /// Go on with the job that was saved in this directory, on any hosts; if none was, start the
    /// program, keeping the images there
    #[arg(long, value_name = "DIR", conflicts_with_all = ["images", "dir", "routers"])]
    resume_from: Option<PathBuf>,
    /// In an allocation of Slurm: save the job so long before it ends [default: a tenth of what is
    /// left at the start, at most 5m]
    #[arg(long, value_parser = duration, value_name = "TIME", hide_short_help = true)]
    save_before: Option<Duration>,
    /// In a batch job of Slurm: have it requeued once the job is saved; the same --resume-from then
    /// goes on with it
    #[arg(long, requires = "resume_from")]
    requeue: bool,
    /// How much of its log a router holds in memory; the rest goes to disk. Of what ranks read of
    /// files that have changed it holds at most as much again [default: a sixteenth of this
    /// machine's memory, 256 MiB to 4 GiB, for all routers]
    #[arg(long, value_parser = size, value_name = "BYTES", hide_short_help = true)]
    log_memory: Option<u64>,
    /// How much of its log a router may write to disk. Before that comes to an end images are taken
    /// out of turn, and then the ranks are held back [default: half of what is free where the job
    /// has its directory, for all routers]
    #[arg(long, value_parser = size, value_name = "BYTES", hide_short_help = true)]
    log_disk: Option<u64>,
    /// A node that does not answer for so long is declared dead, and its ranks are restarted
    /// elsewhere [default: 5s with --hosts, else 10s: the death of an agent here is seen at once]
    #[arg(long, value_parser = duration, value_name = "TIME", hide_short_help = true)]
    heartbeat_timeout: Option<Duration>,
    /// How long ranks wait for `eyrie resume` when this process has died; with roles on the nodes
    #[arg(
        long,
        value_parser = duration,
        value_name = "TIME",
        default_value = options::ORPHAN_TIMEOUT,
        hide_short_help = true
    )]
    orphan_timeout: Duration,
    /// What is done when a host is about to be taken away: its agent was sent SIGTERM, or by the
    /// next two options
    #[arg(long, value_enum, value_name = "WHAT", default_value_t, hide_short_help = true)]
    on_notice: OnNotice,
    /// A host on which this file is made is about to be taken away
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    notice_file: Option<PathBuf>,
    /// A host on which this line for the shell succeeds is about to be taken away; run every 5 s
    #[arg(long, value_name = "COMMAND", hide_short_help = true)]
    notice_command: Option<OsString>,
    /// How long ranks have to leave a host whose agent was sent SIGTERM, before it ends
    #[arg(
        long,
        value_parser = duration,
        value_name = "TIME",
        default_value = options::NOTICE_GRACE,
        hide_short_help = true
    )]
    notice_grace: Duration,
    /// How often nodes and their ranks are sampled, all at the same moment, for `eyrie health`; or
    /// off
    #[arg(long, value_name = "TIME", default_value = options::MONITOR, hide_short_help = true)]
    monitor: Monitor,
    /// What is done about a node that may fail, by the health rules (docs/health.md)
    #[arg(long, value_enum, value_name = "WHAT", default_value = "image", hide_short_help = true)]
    on_suspect: Precaution,
    /// What is done about a node that is failing, by the health rules
    #[arg(long, value_enum, value_name = "WHAT", default_value = "drain", hide_short_help = true)]
    on_failing: Precaution,
    /// The rules that say when a node is suspect or failing, as `eyrie monitor rules` prints those
    /// that are built in
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    health_rules: Option<PathBuf>,
    /// A directory in which the one with a node's number stands for the root directory of that
    /// node: health rules and samples read there. For tests of them
    #[arg(long, value_name = "DIR", hide = true)]
    monitor_roots: Option<PathBuf>,
    /// The network that the nodes are in, in their order or by their names, as for `eyrie plan`
    /// (torus:4x4, fattree:18^2, slurm:topology.conf, ...): of several spares the one is taken with
    /// which the busiest link has the least to carry. `auto` finds it out: from Slurm, from numbers
    /// of racks in the hosts' names, or by measuring between hosts; `eyrie check --network` shows
    /// it
    #[arg(long, value_name = "NETWORK", hide_short_help = true)]
    network: Option<String>,
    /// Which nodes ranks start on, and which are spares [default: network, where it knows the hosts
    /// by their names; else order]
    #[arg(long, value_enum, value_name = "BY", requires = "network", hide_short_help = true)]
    start: Option<StartBy>,
    /// What ranks send each other until that is measured, after ten seconds, as for `eyrie plan`
    /// [default: an allreduce]
    #[arg(long, value_name = "TRAFFIC", requires = "network", hide_short_help = true)]
    traffic: Option<String>,
    /// How the ranks of a lost node get their nodes on the network: first-free, 0d (the best
    /// spare), 1d, 2d, ..., hybrid or search. With all but the first two, once the ranks have come
    /// back on a spare, others that live move with them, if that pays within --run-time
    #[arg(long, value_name = "METHOD", requires = "network", hide_short_help = true)]
    policy: Option<String>,
    /// How long the job is likely to run
    #[arg(
        long,
        value_parser = duration,
        value_name = "TIME",
        default_value = options::RUN_TIME,
        hide_short_help = true
    )]
    run_time: Duration,
    /// Bytes per second of a link of the network [default: 5GB]
    #[arg(
        long,
        value_parser = size,
        value_name = "SIZE",
        requires = "network",
        hide_short_help = true
    )]
    bandwidth: Option<u64>,
    /// Tell more: checkpoints, starts, connections
    #[arg(short, long, conflicts_with = "quiet")]
    verbose: bool,
    /// Tell only why the job ended, when it did not end well
    #[arg(short, long)]
    quiet: bool,
    /// The program and its arguments
    #[arg(
        trailing_var_arg = true,
        required_unless_present = "resume_from",
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

const EXAMPLES: &str = "Examples:
  Four ranks, as with mpiexec:
      eyrie run -n 4 ./solver input.dat
  On two nodes with a spare, a checkpoint of each rank every 30 seconds:
      eyrie run -n 4 --nodes 2 --spares 1 --checkpoint-every 30s ./solver
  On three hosts over ssh, one of which stays free until another one dies:
      eyrie run --hosts a:16,b:16,c:16 --spares 1 ./solver
  Within time limits: saved before the allocation ends, and gone on with by the same batch script:
      eyrie run --resume-from $HOME/images/solver --requeue ./solver
  Over two sites that reach each other by their gateways only:
      eyrie run --domains sites.toml ./solver
  See it survive: kill rank 2 after 5 seconds, then node 0 in the middle of that recovery:
      eyrie run -n 4 --nodes 2 --spares 1 --inject kill-rank=2@5s --inject kill-node=0@recovery ./solver

Signals to eyrie reach the ranks, as with mpiexec; a second Ctrl-C (or SIGTERM) ends the job at once.

Exit code: the program's, as mpiexec gives it; 75 when the job was saved (--images), 1 when the job
cannot go on, 126 and 127 when the program cannot be executed or found, 128 and the signal's number
when a signal to eyrie ends the job.";

/// The nodes of the job, and its ranks.
struct Nodes {
    ranks: u32,
    /// Nodes that start with ranks.
    started: u32,
    spares: u32,
    cluster: Option<Cluster>,
    network: Option<JobNetwork>,
    /// What users are told of where they are.
    notes: Vec<String>,
}

/// The hosts that are named, or those of Slurm's allocation; `None`: this one alone.
fn hosts_of(args: &RunArgs) -> anyhow::Result<Option<Vec<Host>>> {
    let named = hosts::named(args.hosts.as_deref(), args.hostfile.as_deref());
    match (named.map_err(anyhow::Error::msg)?, args.nodes) {
        (Some(named), _) => Ok(Some(named)),
        (None, Some(_)) => Ok(None),
        (None, None) => Ok(allocation()?.filter(|hosts| hosts.len() > 1)),
    }
}

/// The hosts of the allocation that this process runs in.
pub fn allocation() -> anyhow::Result<Option<Vec<Host>>> {
    let var = |name| std::env::var(name).ok();
    let (Some(_), Some(nodes)) = (var("SLURM_JOB_ID"), var("SLURM_JOB_NODELIST")) else {
        return Ok(None);
    };
    // Slurm counts a task for each node where the user gave no number of tasks.
    let asked = var("SLURM_NTASKS").is_some() || var("SLURM_NTASKS_PER_NODE").is_some();
    let per_node = asked.then(|| var("SLURM_TASKS_PER_NODE")).flatten();
    let per_node = per_node.or_else(|| var("SLURM_JOB_CPUS_PER_NODE"));
    let hosts = hosts::from_slurm(&nodes, per_node.as_deref().unwrap_or("1"));
    Ok(Some(
        hosts
            .map_err(|e| anyhow::anyhow!("Slurm's allocation: {e}; name the hosts with --hosts"))?,
    ))
}

fn nodes(args: &RunArgs) -> anyhow::Result<Nodes> {
    let hosts = hosts_of(args)?;
    let is_allocation = args.hosts.is_none() && args.hostfile.is_none();
    let by = args.launcher.unwrap_or_else(|| LaunchBy::usual(is_allocation));
    if let Some(network) = &args.network {
        return nodes_on_network(args, network, hosts, by);
    }
    let spares = args.spares.count()?;
    let Some(hosts) = hosts else {
        let ranks = args.ranks.unwrap_or(options::RANKS);
        let started = args.nodes.unwrap_or(options::NODES);
        let notes = Vec::new();
        return Ok(Nodes { ranks, started, spares, cluster: None, network: None, notes });
    };
    let hosts::Start { nodes: start, spares } =
        hosts::start(&hosts, spares, args.ranks).map_err(anyhow::Error::msg)?;
    on_hosts(args, hosts, start, spares, by)
}

/// The nodes of a job whose network is known, or is to be found out.
fn nodes_on_network(
    args: &RunArgs,
    network: &str,
    hosts: Option<Vec<Host>>,
    by: LaunchBy,
) -> anyhow::Result<Nodes> {
    let RunArgs { spares, start, traffic, ranks, .. } = args;
    let costs = costs(args.bandwidth)?;
    let asked =
        Asked { network, spares, start: *start, traffic: traffic.as_deref(), costs, ranks: *ranks };
    let Some(hosts) = hosts else {
        let placed = asked.here(args.nodes, (options::RANKS, options::NODES))?;
        return Ok(Nodes {
            ranks: placed.start.len() as u32,
            started: placed.count - placed.spares,
            spares: placed.spares,
            cluster: None,
            network: Some(placed.network),
            notes: placed.notes,
        });
    };
    let launcher = launcher(args, by);
    let way = Way { launcher: &launcher, eyrie: &agent_path(args)? };
    let placed = asked.on_hosts(&hosts, way)?;
    let nodes = on_hosts(args, placed.hosts, placed.start, placed.spares, by)?;
    Ok(Nodes { network: Some(placed.network), notes: placed.notes, ..nodes })
}

/// The nodes of this process's domain, and which of them is the gateway's.
fn nodes_of_domain(args: &RunArgs, part: &Part) -> anyhow::Result<(Nodes, NodeId)> {
    let is_allocation = part.hosts.is_none();
    let hosts = match &part.hosts {
        Some(hosts) => hosts.clone(),
        None => allocation()?.context(
            "slurm = true, but this command runs in no allocation: run it within salloc or sbatch",
        )?,
    };
    let own: Vec<Rank> = part.domains.own().ranks().collect();
    let ranks = part.domains.all.iter().map(|domain| domain.ranks().count() as u32).sum();
    let placed = domain_nodes::nodes(hosts, part.spares, &own, ranks, &part.gateway);
    let domain_nodes::Nodes { hosts, start, spares, gateway } =
        placed.map_err(|e| anyhow::anyhow!("domain {}: {e}", part.name()))?;
    let by = part.launcher.or(args.launcher).unwrap_or_else(|| LaunchBy::usual(is_allocation));
    Ok((on_hosts(args, hosts, start, spares, by)?, gateway))
}

/// The nodes of a job on hosts, `start` for each rank.
fn on_hosts(
    args: &RunArgs,
    hosts: Vec<Host>,
    start: Vec<NodeId>,
    spares: u32,
    by: LaunchBy,
) -> anyhow::Result<Nodes> {
    let ranks = start.len() as u32;
    let started = hosts.len() as u32 - spares;
    let agent = agent_path(args)?;
    let launcher = launcher(args, by);
    if args.send_binaries && !matches!(launcher, Launcher::Ssh(_)) {
        anyhow::bail!("--send-binaries goes over ssh: add --launcher ssh");
    }
    let RunArgs { send_binaries, launch_fanout: fanout, .. } = *args;
    let cluster = Some(Cluster { hosts, start, launcher, agent, send_binaries, fanout });
    Ok(Nodes { ranks, started, spares, cluster, network: None, notes: Vec::new() })
}

/// How agents are started.
fn launcher(args: &RunArgs, by: LaunchBy) -> Launcher {
    match by {
        LaunchBy::Slurm => Launcher::Slurm,
        LaunchBy::Ssh => Launcher::Ssh(args.launcher_exec.clone()),
        LaunchBy::Manual => Launcher::Manual,
    }
}

/// The eyrie command on other hosts.
fn agent_path(args: &RunArgs) -> anyhow::Result<PathBuf> {
    match &args.agent_path {
        Some(path) => Ok(path.clone()),
        None => std::env::current_exe().context("cannot find the eyrie command itself"),
    }
}

/// How the roles of the job reach each other.
fn reach(args: &RunArgs, cluster: Option<&Cluster>) -> anyhow::Result<Reach> {
    if args.reach.unwrap_or_else(|| ReachBy::usual(cluster.is_some())) == ReachBy::Unix {
        return Ok(Reach::Unix);
    }
    let interface = match (&args.interface, cluster) {
        (Some(interface), _) => interface.clone(),
        (None, Some(cluster)) => cluster.interface()?,
        (None, None) => Interface::LOOPBACK,
    };
    let security = args.transport_security;
    Ok(Reach::Tcp { interface, ports: args.port_range.unwrap_or(Ports::ANY), security })
}

/// Who says where ranks of lost nodes go.
pub fn placement(options: &JobOptions) -> anyhow::Result<Placement> {
    let Some(network) = &options.network else { return Ok(Placement::default()) };
    let hosts = match &options.cluster {
        Some(cluster) => cluster.names(),
        None => (0..options.nodes + options.spares).map(|n| format!("node{n}")).collect(),
    };
    let hosts = network::names(hosts.iter().map(String::as_str));
    let places: Vec<i32> = network.places.iter().map(|place| *place as i32).collect();
    let text = network::files(network);
    let files = Files { text: &text, slurm_topology: None, taper: 1.0 };
    let words = Words::of_running_job(&network.words, &hosts, options.traffic.as_deref(), files);
    let words = Words { nodes: &places, ..words };
    let start: Vec<u32> = options.start().iter().map(|node| node.0).collect();
    let method = options.policy.as_deref().map_or(Ok(Method::Best0D), policy)?;
    let costs = costs(options.bandwidth)?;
    let placement = Placement::on_network(&words, &start, method, costs);
    let placement = placement.map_err(eyrie_cli::instance::as_option)?;
    placement.check().map_err(|why| anyhow::anyhow!("--policy {why}"))?;
    Ok(placement)
}

/// What messages cost on the network.
fn costs(bandwidth: Option<u64>) -> anyhow::Result<CostModel> {
    let usual = CostModel::default();
    match bandwidth {
        Some(0) => anyhow::bail!("--bandwidth 0: at least 1 byte per second"),
        bandwidth => {
            Ok(CostModel { bandwidth: bandwidth.map_or(usual.bandwidth, |b| b as f64), ..usual })
        }
    }
}

/// How ranks of lost nodes get their nodes.
fn policy(text: &str) -> anyhow::Result<Method> {
    match Method::parse(text) {
        Some(Method::Squeeze) => anyhow::bail!(
            "--policy squeeze: a running job has as many ranks as before; take 0d, hybrid or search"
        ),
        Some(method) => Ok(method),
        None => anyhow::bail!("--policy {text}: one of first-free, 0d, 1d, 2d, 3d, hybrid, search"),
    }
}

/// What a router's log may take of the memory of this machine by default, in bytes.
pub fn usual_log_memory(routers: u32) -> u64 {
    options::log_memory(eyrie_proc::memory::allowed(), routers)
}

/// Refuses options that a job over domains does not have.
fn fits_domains(args: &RunArgs) -> anyhow::Result<()> {
    let hosts = "the file of domains names the hosts of each";
    let saved = "a job over domains is not saved yet";
    let of_node = |injection: &Injection| {
        !matches!(
            injection,
            Injection::At { fault: Fault::KillRank(_) | Fault::DropConnection(_), .. }
        )
    };
    let has_address = matches!(args.interface, Some(Interface::Ip(_)));
    let of_one_host =
        |address: &SocketAddr| !(address.ip().is_loopback() || address.ip().is_unspecified());
    let refused = [
        (args.hosts.is_some(), "--hosts", hosts),
        (args.hostfile.is_some(), "--hostfile", hosts),
        (args.nodes.is_some(), "--nodes", hosts),
        (
            args.path == Some(MessagePath::Direct),
            "--path direct",
            "gateways take the place of routers",
        ),
        (args.roles == Some(RolesAt::Here), "--roles here", "roles of a domain are on its nodes"),
        (args.reach == Some(ReachBy::Unix), "--reach unix", "hosts reach each other over TCP"),
        (args.images.is_some(), "--images", saved),
        (args.resume_from.is_some(), "--resume-from", saved),
        (args.save_before.is_some(), "--save-before", saved),
        (args.network.is_some(), "--network", "each domain has a network of its own"),
        (
            has_address,
            "--interface with an address",
            "give its name, if that is the same everywhere",
        ),
        (
            args.metrics.as_ref().is_some_and(of_one_host),
            "--metrics with an address of one host",
            "the controller of each domain answers where it runs: give the port alone, or \
             0.0.0.0:PORT",
        ),
        (
            args.injections.iter().any(of_node),
            "--inject of nodes or random ranks",
            "a domain has nodes of its own: use `eyrie inject` there",
        ),
    ];
    match refused.into_iter().find(|(is_given, ..)| *is_given) {
        Some((_, option, why)) => anyhow::bail!("--domains does not go with {option}: {why}"),
        None => Ok(()),
    }
}

/// The part of this process in a job over domains. Options are then as all domains have them, but
/// for what each has of its own.
fn begun(args: &mut RunArgs) -> anyhow::Result<Option<Begun>> {
    let Some(file) = args.domains.take() else { return Ok(None) };
    fits_domains(args)?;
    let usual = Usual { ranks: args.ranks, spares: args.spares.count()?, job: args.job.take() };
    let begun = domains::begin(&file, args.own_domain.as_deref(), usual, &allocation)?;
    let part = begun.part();
    args.job = Some(part.job.clone());
    (args.roles, args.reach) = (Some(RolesAt::Nodes), Some(ReachBy::Tcp));
    args.path = Some(MessagePath::Router);
    args.injections.retain(|injection| match injection {
        Injection::At { fault: Fault::KillRank(rank) | Fault::DropConnection(rank), .. } => {
            part.domains.own().has(*rank)
        }
        _ => false,
    });
    if let Begun::Site(part, _) = &begun {
        // What is shown at the end is shown once.
        args.json = false;
        if let Some(events) = &mut args.events {
            events.as_mut_os_string().push(format!(".{}", part.name()));
        }
    }
    Ok(Some(begun))
}

/// Starts what goes on beside this process's part of the job.
fn beside(
    begun: Begun,
    command: domains::Command,
    ssh: &OsStr,
) -> anyhow::Result<(Option<Sites>, Beside)> {
    match begun {
        Begun::Home(own, sites) => {
            let (sites, beside) = Sites::start(sites, &own, command, ssh)?;
            Ok((Some(sites), beside))
        }
        Begun::Site(_, line) => {
            let (job, from_outside) = channel();
            if let Some(line) = line {
                line.listen(job);
            }
            let spared = Spared::default();
            let (ended, lines) = (channel().0, channel().0);
            let beside = Beside { spared, ended, lines, joins: None, from_outside };
            Ok((None, beside))
        }
    }
}

/// `log`: where agents write what they do.
pub fn run(mut args: RunArgs, log: Option<PathBuf>) -> anyhow::Result<i32> {
    let begun = begun(&mut args)?;
    let resumption = resumption(&mut args)?;
    let (nodes, in_domain) = match &begun {
        None => (nodes(&args)?, None),
        Some(begun) => {
            let (nodes, gateway) = nodes_of_domain(&args, begun.part())?;
            let ways = begun.ways(&args.launcher_exec, &agent_path(&args)?);
            (nodes, Some(begun.part().in_domain(gateway, ways)))
        }
    };
    let own = in_domain.as_ref().map(|own| own.domains.own().ranks().count() as u32);
    let on_each = own.unwrap_or(nodes.ranks).div_ceil(nodes.started.max(1));
    enough::for_a_job(on_each).map_err(anyhow::Error::msg)?;
    let reach = reach(&args, nodes.cluster.as_ref())?;
    let usual_timeout = options::heartbeat_timeout(nodes.cluster.is_some());
    let hosts = nodes.cluster.as_ref().map_or(1, |cluster| cluster.hosts.len());
    let roles = roles(args.roles, hosts, resumption.as_ref().and_then(Resumption::options))?;
    let saved = resumption.as_ref().and_then(Resumption::options);
    let is_here = nodes.cluster.is_none() && roles == RolesAt::Here && matches!(reach, Reach::Unix);
    let bytes = args.log_memory.unwrap_or_else(|| usual_log_memory(1));
    let can = || check_ledgers(nodes.ranks, bytes);
    let (path, note) = path(args.path, args.routers, is_here, saved, can)?;
    let routers = match path {
        MessagePath::Router => args.routers.unwrap_or(options::ROUTERS).max(roles.least_routers()),
        // The keeper of the ledgers takes the place of one.
        MessagePath::Direct => 1,
    };
    let log_memory = args.log_memory.unwrap_or_else(|| usual_log_memory(routers));
    let notice_file = args.notice_file.as_ref().map(std::path::absolute).transpose()?;
    let monitoring = monitoring(&args)?;
    let command = domains::Command {
        eyrie: agent_path(&args)?,
        args: std::env::args_os().skip(1).collect(),
        program: args.program.len(),
        cwd: std::env::current_dir().context("cannot find the current directory")?,
        dir: args.dir.clone(),
        log: log.clone(),
    };
    // The controller of another site is started with the words of this one, and has no page.
    let page = args.serve.filter(|_| args.own_domain.is_none());
    let mut options = JobOptions {
        ranks: nodes.ranks,
        nodes: nodes.started,
        spares: nodes.spares,
        roles,
        routers,
        path,
        reach,
        cluster: nodes.cluster,
        slots: args.slots,
        checkpoint_every: Interval::asked(
            args.checkpoint_every,
            args.mtbf,
            log_memory.saturating_mul(routers.into()),
            nodes.ranks,
        ),
        checkpoint_order: args.checkpoint_order,
        checkpoint_mode: args.checkpoint_mode,
        record: args.record == Recording::On,
        injections: args.injections,
        events: args.events,
        json: args.json,
        metrics: args.metrics,
        traces: args.traces.map(|collector| collector.to_string()),
        job: args.job,
        dir: args.dir,
        images: args.images.or(args.resume_from).map(std::path::absolute).transpose()?,
        save_before: args.save_before,
        log_memory,
        log_disk: args.log_disk,
        log: log.map(std::path::absolute).transpose()?,
        heartbeat_timeout: args.heartbeat_timeout.unwrap_or(usual_timeout),
        orphan_timeout: args.orphan_timeout,
        drop_sockets: args.allow_broken_sockets,
        self_contained: args.self_contained,
        notices: Notices {
            file: notice_file.map(Into::into),
            command: args.notice_command,
            grace: args.notice_grace,
        },
        drain_on_notice: args.on_notice == OnNotice::Drain,
        on_suspect: args.on_suspect,
        on_failing: args.on_failing,
        monitoring,
        network: nodes.network,
        traffic: args.traffic,
        policy: args.policy,
        bandwidth: args.bandwidth,
        run_time: args.run_time,
        show: match (args.verbose, args.quiet) {
            (true, _) => LogLevel::Detail,
            (_, true) => LogLevel::Error,
            _ => LogLevel::Normal,
        },
        cpu: args.cpu,
        domains: in_domain,
        argv: args.program,
    };
    let placement = placement(&options)?;
    let notes: Vec<String> = nodes.notes.into_iter().chain(note).collect();
    let wanted = telemetry::wanted(&options)?;
    let page = page.map(|listen| page_of(listen, &mut options, resumption.as_ref())).transpose()?;
    let mut told = None;
    let tell = |running: Running| told = telemetry::start(wanted, &running);
    let code = match begun {
        None => {
            let beside = page.as_ref().map(beside_page);
            runtime::run(options, resumption, placement, notes, beside, tell)?
        }
        Some(begun) => {
            // Else it would be found out when the other domains have been started.
            runtime::program::prepare(&options.argv)?;
            let notes = begun.note().map_or(notes, |note| vec![note]);
            let (sites, beside) = beside(begun, command, &args.launcher_exec)?;
            beside.spared.lock().extend(page.as_ref().map(PageOfJob::pid));
            let code = runtime::run(options, resumption, placement, notes, Some(beside), tell)?;
            if let Some(sites) = sites {
                sites.finish(code);
            }
            code
        }
    };
    if let Some(told) = told {
        told.finish();
    }
    if let Some(page) = page {
        page.finish();
    }
    if code == SAVED_CODE && args.requeue {
        requeue()?;
    }
    Ok(code)
}

/// Starts the page of the job, whose name is known from then on.
fn page_of(
    listen: SocketAddr,
    options: &mut JobOptions,
    resumption: Option<&Resumption>,
) -> anyhow::Result<PageOfJob> {
    // Else it would be found out when the page is there already.
    if !options.argv.is_empty() {
        runtime::program::prepare(&options.argv)?;
    }
    let base = runtime::jobdir::base(options.dir.as_deref())?;
    let name = options.job.clone().or_else(|| resumption?.name().map(str::to_string));
    let name = name.unwrap_or_else(|| format!("job-{}", std::process::id()));
    options.job = Some(name.clone());
    PageOfJob::start(listen, &name, &base)
}

/// What the controller knows of the page beside it: that it must not end it.
fn beside_page(page: &PageOfJob) -> Beside {
    let spared = Spared::default();
    spared.lock().insert(page.pid());
    let (ended, lines) = (channel().0, channel().0);
    Beside { spared, ended, lines, joins: None, from_outside: channel().1 }
}

/// How nodes are watched.
fn monitoring(args: &RunArgs) -> anyhow::Result<Option<Monitoring>> {
    let Monitor::Every(interval) = args.monitor else { return Ok(None) };
    let rules = args.health_rules.as_deref().map(|file| -> anyhow::Result<String> {
        Rules::load(file).map_err(anyhow::Error::msg)?;
        Ok(std::fs::read_to_string(file)?)
    });
    let roots = args.monitor_roots.as_ref().map(std::path::absolute).transpose()?;
    Ok(Some(Monitoring { interval, rules: rules.transpose()?, roots: roots.map(Into::into) }))
}

/// The way that messages take: straight where that can be, and where no routers are asked for.
/// Those of a job that was saved take the way that they took before. With what is to be said of it.
fn path(
    asked: Option<MessagePath>,
    routers: Option<u32>,
    is_here: bool,
    saved: Option<&JobOptions>,
    can: impl FnOnce() -> std::io::Result<()>,
) -> anyhow::Result<(MessagePath, Option<String>)> {
    if let Some(saved) = saved.map(|saved| saved.path) {
        return Ok((as_saved(asked, is_here, saved)?, None));
    }
    let path = match asked {
        Some(MessagePath::Direct) if !is_here => anyhow::bail!(
            "--path direct needs all nodes on this host, without --hosts, --roles nodes and --reach \
             tcp: leave one or the other out"
        ),
        Some(MessagePath::Direct) if routers.is_some() => {
            anyhow::bail!("--path direct has no routers: leave it or --routers out")
        }
        Some(asked) => asked,
        None if !is_here || routers.is_some() => MessagePath::Router,
        None => match can() {
            Ok(()) => MessagePath::Direct,
            Err(e) => {
                let text = format!("messages go through a router, which is slower: {e}");
                return Ok((MessagePath::Router, Some(text)));
            }
        },
    };
    Ok((path, None))
}

fn as_saved(
    asked: Option<MessagePath>,
    is_here: bool,
    saved: MessagePath,
) -> anyhow::Result<MessagePath> {
    if asked.is_some_and(|asked| asked != saved) {
        anyhow::bail!("the job was saved with messages on another way: leave --path out")
    }
    if saved == MessagePath::Direct && !is_here {
        anyhow::bail!(
            "the job was saved with messages that go straight, so it continues on this host only: \
             leave --hosts, --roles and --reach out"
        )
    }
    Ok(saved)
}

/// Where routers and stores run. Those of a job that was saved run where they did before: what its
/// routers hold differs.
fn roles(
    asked: Option<RolesAt>,
    hosts: usize,
    saved: Option<&JobOptions>,
) -> anyhow::Result<RolesAt> {
    match (asked, saved.map(|saved| saved.roles)) {
        (Some(asked), Some(saved)) if (asked == RolesAt::Nodes) != (saved == RolesAt::Nodes) => {
            anyhow::bail!("the job was saved with its roles elsewhere: leave --roles out")
        }
        (Some(asked), _) => Ok(asked),
        (None, Some(saved)) => Ok(saved),
        (None, None) => Ok(RolesAt::usual(hosts)),
    }
}

/// Has Slurm queue the batch job again that this process belongs to; that ends it.
fn requeue() -> anyhow::Result<()> {
    let failed = "the job is saved, but Slurm does not queue it again";
    let allocation = std::env::var("SLURM_JOB_ID");
    let allocation = allocation.with_context(|| format!("{failed}: SLURM_JOB_ID is not set"))?;
    let ran = Command::new("scontrol").args(["requeue", &allocation]).output();
    let ran = ran.with_context(|| format!("{failed}: cannot run scontrol"))?;
    if !ran.status.success() {
        anyhow::bail!("{failed}: {}", String::from_utf8_lossy(&ran.stderr).trim());
    }
    Ok(())
}

/// What the job goes on with, if it does. One that was saved has its ranks and routers already.
fn resumption(args: &mut RunArgs) -> anyhow::Result<Option<Resumption>> {
    let Some(dir) = &args.resume_from else { return Ok(None) };
    let shown = dir.display();
    let resumption = Resumption::open(dir)?;
    match resumption.options() {
        Some(JobOptions { ranks, .. }) if args.ranks.is_some_and(|asked| asked != *ranks) => {
            anyhow::bail!("the job that was saved in {shown} has {ranks} ranks: leave -n out")
        }
        Some(JobOptions { ranks, routers, .. }) => {
            (args.ranks, args.routers) = (Some(*ranks), Some(*routers));
        }
        None if args.program.is_empty() => {
            anyhow::bail!("nothing was saved in {shown}: give the program, to start it anew")
        }
        None => {}
    }
    Ok(Some(resumption))
}
