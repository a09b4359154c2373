//! `eyrie run`: what may be asked for.

use clap::{Args, ValueEnum};
use eyrie_controller::inject::Injection;
use eyrie_controller::machine::schedule::{Interval, Order};
use eyrie_controller::record::LogLevel;
use eyrie_controller::runtime::{self, JobOptions, Reach};
use eyrie_placement::placement::OnNetwork;
use eyrie_placement::spares::Arrangement;
use eyrie_placement::{Placement, WithoutNetwork, Words};
use eyrie_topology::spec::Files;
use eyrie_transport::{Interface, Ports, Security};
use eyrie_units::{duration, size};
use eyrie_wire::control::CheckpointMode;
use std::ffi::OsString;
use std::path::PathBuf;
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
    /// Number of ranks
    #[arg(short = 'n', long, default_value_t = 1, value_name = "RANKS")]
    ranks: u32,
    /// Number of nodes that the ranks start on
    #[arg(long, default_value_t = 1, value_name = "N")]
    nodes: u32,
    /// Number of nodes held free for the ranks of failed ones
    #[arg(long, default_value_t = 0, value_name = "S")]
    spares: u32,
    /// Most ranks that a node starts with
    #[arg(long, default_value_t = 128, value_name = "RANKS", hide_short_help = true)]
    slots: u32,
    /// Number of routers, which log and deliver the messages; ranks are spread over them
    #[arg(long, default_value_t = 1, value_name = "K")]
    routers: u32,
    /// Run routers and the store as processes of their own
    #[arg(long, hide = true)]
    roles_apart: bool,
    /// How the roles of the job reach each other: Unix sockets, or TCP
    #[arg(long, value_enum, default_value_t = ReachArg::Unix, value_name = "HOW", hide = true)]
    reach: ReachArg,
    /// The interface that roles listen at with --reach tcp: an IP address or a name as `ip link`
    /// shows it
    #[arg(long, default_value = "127.0.0.1", value_name = "IP|NAME", hide = true)]
    interface: Interface,
    /// The TCP ports that roles may listen at [default: any]
    #[arg(long, value_name = "FIRST-LAST", hide = true)]
    port_range: Option<Ports>,
    /// How what goes over TCP is protected
    #[arg(long, value_enum, default_value = "encrypted", value_name = "HOW", hide = true)]
    transport_security: SecurityArg,
    /// How often each rank is checkpointed: a time like 10s, `auto` or `off`
    ///
    /// `auto` takes the interval of Daly's formula, from the measured cost of a checkpoint and
    /// --mtbf. With `off` a failed rank starts from its beginning and repeats everything.
    #[arg(long, default_value = "auto", value_name = "TIME")]
    checkpoint_every: Every,
    /// In which order the ranks are checkpointed
    #[arg(long, value_enum, default_value_t = OrderArg::Sequential, value_name = "ORDER")]
    checkpoint_order: OrderArg,
    /// Whether a rank computes on while its image is written
    #[arg(long, value_enum, default_value_t = ModeArg::Async, value_name = "MODE")]
    checkpoint_mode: ModeArg,
    /// Mean time between failures of the whole job, for `--checkpoint-every auto`
    #[arg(long, default_value = "24h", value_parser = duration, value_name = "TIME", hide_short_help = true)]
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
    /// Write a summary to standard error at the end, as one line of JSON
    #[arg(long)]
    json: bool,
    /// Name of the job, for `eyrie status` and others [default: job-PID]
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Where the job has its directory: sockets, images, and what of the log does not fit into
    /// memory [default: $XDG_RUNTIME_DIR/eyrie, else /tmp/eyrie-UID]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// How much of its log a router holds in memory; the rest goes to disk [default: a sixteenth of
    /// this machine's memory, 256 MiB to 4 GiB, for all routers]
    #[arg(long, value_parser = size, value_name = "BYTES", hide_short_help = true)]
    log_memory: Option<u64>,
    /// How much of its log a router may write to disk. Before that comes to an end images are taken
    /// out of turn, and then the ranks are held back [default: half of what is free where the job
    /// has its directory, for all routers]
    #[arg(long, value_parser = size, value_name = "BYTES", hide_short_help = true)]
    log_disk: Option<u64>,
    /// A node that does not answer for so long is declared dead, and its ranks are restarted
    /// elsewhere
    #[arg(long, default_value = "2s", value_parser = duration, value_name = "TIME", hide_short_help = true)]
    heartbeat_timeout: Duration,
    /// The network that the nodes are in, spares last, as for `eyrie plan`: of several spares the
    /// nearest is taken
    #[arg(long, value_name = "NETWORK", hide = true)]
    network: Option<String>,
    /// What nodes send each other, as for `eyrie plan` [default: an allreduce]
    #[arg(long, value_name = "TRAFFIC", requires = "network", hide = true)]
    traffic: Option<String>,
    /// Tell more: checkpoints, starts, connections
    #[arg(short, long, conflicts_with = "quiet")]
    verbose: bool,
    /// Tell only why the job ended, when it did not end well
    #[arg(short, long)]
    quiet: bool,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

const EXAMPLES: &str = "Examples:
  Four ranks, as with mpiexec:
      eyrie run -n 4 ./solver input.dat
  On two nodes with a spare, a checkpoint of each rank every 30 seconds:
      eyrie run -n 4 --nodes 2 --spares 1 --checkpoint-every 30s ./solver
  See it survive: kill rank 2 after 5 seconds, then node 0 in the middle of that recovery:
      eyrie run -n 4 --nodes 2 --spares 1 --inject kill-rank=2@5s --inject kill-node=0@recovery ./solver

Exit code: the program's, as mpiexec gives it; 1 when the job cannot go on, 126 and 127 when the program cannot be
executed or found, 128 and the signal's number when a signal to eyrie ends the job.";

/// Size of a message to --network: spares are compared by the number of messages.
const MESSAGE_BYTES: u64 = 1 << 20;

/// The value of --checkpoint-every.
#[derive(Clone, Copy)]
enum Every {
    Off,
    Auto,
    Time(Duration),
}

impl std::str::FromStr for Every {
    type Err = String;

    fn from_str(text: &str) -> Result<Every, String> {
        match text {
            "off" => Ok(Every::Off),
            "auto" => Ok(Every::Auto),
            time => match duration(time)? {
                Duration::ZERO => Err("an interval must be longer than 0; use off for none".into()),
                d => Ok(Every::Time(d)),
            },
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum ReachArg {
    /// Sockets in the job's directory
    Unix,
    /// TCP connections
    Tcp,
}

#[derive(Clone, Copy, ValueEnum)]
enum SecurityArg {
    /// Nobody else can read or change it
    Encrypted,
    /// Others can read it, and not change it
    Authenticated,
    /// Others can read and change it
    Off,
}

#[derive(Clone, Copy, ValueEnum)]
enum OrderArg {
    /// All at once
    Batch,
    /// One after another, spread over the interval
    Sequential,
    /// Each by its own timer
    SelfTimed,
}

#[derive(Clone, Copy, ValueEnum)]
enum ModeArg {
    /// A child of the rank writes the image
    Async,
    /// The rank waits until its image is written
    Sync,
}

/// Who says where ranks of lost nodes go.
fn placement(args: &RunArgs) -> anyhow::Result<Box<dyn Placement>> {
    if args.network.is_none() {
        return Ok(Box::new(WithoutNetwork));
    }
    let hosts: Vec<String> = (0..args.nodes + args.spares).map(|n| format!("node{n}")).collect();
    let words = Words {
        network: args.network.as_deref(),
        names: None,
        hosts: &hosts.iter().map(String::as_str).collect::<Vec<_>>(),
        nodes: &[],
        job: None,
        spares: None,
        arrangement: Arrangement::Contiguous,
        traffic: args.traffic.as_deref(),
        bytes: MESSAGE_BYTES,
        files: Files { text: &super::read_text, slurm_topology: None, taper: 1.0 },
    };
    let placement = OnNetwork::read(&words, args.nodes as usize);
    Ok(Box::new(placement.map_err(super::as_option)?))
}

/// What a router's log may take of the memory when nobody says it.
pub fn usual_log_memory(routers: u32) -> u64 {
    let all = (crate::memory::allowed_bytes() / 16).clamp(256 << 20, 4 << 30);
    all / u64::from(routers.max(1))
}

/// `log`: where agents write what they do.
pub fn run(args: RunArgs, log: Option<PathBuf>) -> anyhow::Result<i32> {
    let placement = placement(&args)?;
    let log_memory = args.log_memory.unwrap_or_else(|| usual_log_memory(args.routers));
    let options = JobOptions {
        ranks: args.ranks,
        nodes: args.nodes,
        spares: args.spares,
        routers: args.routers,
        roles_apart: args.roles_apart,
        reach: match args.reach {
            ReachArg::Unix => Reach::Unix,
            ReachArg::Tcp => Reach::Tcp {
                interface: args.interface,
                ports: args.port_range.unwrap_or(Ports::ANY),
                security: match args.transport_security {
                    SecurityArg::Encrypted => Security::Encrypted,
                    SecurityArg::Authenticated => Security::Authenticated,
                    SecurityArg::Off => Security::Off,
                },
            },
        },
        slots: args.slots,
        checkpoint_every: match args.checkpoint_every {
            Every::Off => Interval::Off,
            Every::Auto => {
                let all = log_memory.saturating_mul(args.routers.into());
                Interval::Auto { mtbf: args.mtbf, log_share: all / u64::from(args.ranks.max(1)) }
            }
            Every::Time(d) => Interval::Every(d),
        },
        checkpoint_order: match args.checkpoint_order {
            OrderArg::Batch => Order::Batch,
            OrderArg::Sequential => Order::Sequential,
            OrderArg::SelfTimed => Order::SelfTimed,
        },
        checkpoint_mode: match args.checkpoint_mode {
            ModeArg::Async => CheckpointMode::Async,
            ModeArg::Sync => CheckpointMode::Sync,
        },
        injections: args.injections,
        events: args.events,
        json: args.json,
        job: args.job,
        dir: args.dir,
        log_memory,
        log_disk: args.log_disk,
        log: log.map(std::path::absolute).transpose()?,
        heartbeat_timeout: args.heartbeat_timeout,
        show: match (args.verbose, args.quiet) {
            (true, _) => LogLevel::Detail,
            (_, true) => LogLevel::Error,
            _ => LogLevel::Normal,
        },
        argv: args.program,
    };
    runtime::run(options, placement)
}
