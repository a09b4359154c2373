//! The job, network and machine of a plan, from arguments and files. One line names what is wrong.

use std::path::{Path, PathBuf};

use anyhow::{bail, Context};
use clap::Args;
use eyrie_placement::spares::{self, Arrangement, Laid, SpareSet};
use eyrie_placement::{Job, Machine, Objective, Planner, Sharing, Traffic, Weights};
use eyrie_topology::spec::{self, Files, Parsed};
use eyrie_topology::{coords, hostlist, Layout, Network, NodeId, TopologyError};

#[derive(Args, Clone)]
pub struct InstanceArgs {
    /// The network: mesh:12x12, torus:12x12[:order=1,0], tofu:2x1x6x2x3x2[:shape=12x12], fattree:18^2[:taper=2][:rails=2],
    /// xgft:18,18;1,18, dragonfly:9x8x4[:valiant], graph:FILE, slurm:FILE (topology.conf or topology.yaml)
    #[arg(long, value_name = "NETWORK")]
    pub network: String,

    /// Extents of the job's grid of ranks, one rank a node [default: what the spares leave]
    #[arg(long, value_name = "AxB")]
    pub job: Option<String>,

    /// Spare nodes: nd(d,w) = width w on d sides of n dimensions, contiguous:COUNT, scattered:COUNT, list:NODE;NODE
    /// [default: nd(2,1), or 1d(1,1) on a line]
    #[arg(long, value_name = "SPARES")]
    pub spares: Option<String>,

    /// On networks without a grid: spares beside the ranks they serve (contiguous) or on the last nodes (separate)
    #[arg(long, value_name = "HOW", default_value = "contiguous", value_parser = ["contiguous", "separate"])]
    pub arrangement: String,

    /// What ranks send each iteration: stencil5/7/9/27[:periodic], direction:+x, barrier[:ALGORITHM],
    /// allreduce[:ALGORITHM], alltoall, or matrix:FILE (rank rank bytes messages) [default: the star stencil]
    #[arg(long, value_name = "TRAFFIC")]
    pub traffic: Option<String>,

    /// Bytes of a message (of the whole vector for allreduce)
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = size)]
    pub bytes: u64,

    /// Names of the network's nodes in order, one host or host list (n[0-9]) a line
    #[arg(long, value_name = "FILE")]
    pub nodes: Option<PathBuf>,

    /// Which topology of a topology.yaml [default: the cluster's default]
    #[arg(long, value_name = "NAME")]
    pub slurm_topology: Option<String>,

    /// How much thinner switch uplinks of a Slurm tree are than the nodes below them together
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub taper: f64,

    /// A dead node's router no longer forwards: routes go round it
    #[arg(long)]
    pub dead_routers: bool,

    /// Iterations still to run: weigh the moves against the time they save
    #[arg(long, value_name = "N", conflicts_with = "weights")]
    pub iterations_left: Option<u64>,

    /// Minimise load x busiest link + moved x ranks moved
    #[arg(long, value_name = "load=X,moved=Y")]
    pub weights: Option<String>,

    /// Seconds it takes to move a rank
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    pub move_cost: f64,

    /// Most seconds that all moves together may take
    #[arg(long, value_name = "SECONDS")]
    pub time_budget: Option<f64>,

    /// The program can redistribute its work: search may choose squeezing
    #[arg(long)]
    pub may_squeeze: bool,

    /// Calibration of the time estimate: hpc (5 GB/s, 1 us a hop) or k (the K computer: four staggered DMA engines)
    #[arg(long, value_name = "NAME", default_value = "hpc", value_parser = ["hpc", "k"])]
    pub machine: String,

    /// Bytes per second of a link [default: the machine's]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub bandwidth: Option<u64>,

    /// Seconds a hop [default: the machine's]
    #[arg(long, value_name = "SECONDS")]
    pub hop_latency: Option<f64>,

    /// Seconds a message costs before it enters the network [default: the machine's]
    #[arg(long, value_name = "SECONDS")]
    pub overhead: Option<f64>,

    /// How far apart the messages of a node start, as a fraction of one's transfer time [default: the machine's]
    #[arg(long, value_name = "FRACTION")]
    pub stagger: Option<f64>,

    /// How messages share a link: fair, or path (less for longer paths)
    #[arg(long, value_name = "HOW", value_parser = ["fair", "path"])]
    pub sharing: Option<String>,

    /// Say on standard error what is being done, also where that is no terminal
    #[arg(long)]
    pub progress: bool,
}

/// Everything a plan is made from.
pub struct Instance {
    pub network: Box<dyn Network>,
    /// Host names by node number, if a file gave them.
    pub names: Vec<String>,
    pub laid: Laid,
    pub spares: SpareSet,
    pub job: Job,
    pub machine: Machine,
    pub weights: Weights,
    pub dead_routers: bool,
    /// Spares that the user listed one by one.
    listed: bool,
}

impl Instance {
    pub fn read(args: &InstanceArgs) -> anyhow::Result<Self> {
        let Parsed { network, layout: grid, mut names } = network(args)?;
        if let Some(path) = &args.nodes {
            names =
                hostlist::read_file(&text(path)?).with_context(|| path.display().to_string())?;
            if names.len() != network.nodes() {
                bail!("{}: {} names for {} nodes", path.display(), names.len(), network.nodes());
            }
        }
        let shape = args.job.as_deref().map(coords::parse_dims).transpose().context("--job")?;
        let axes = match (&shape, &grid) {
            (_, Some(grid)) => grid.dims().len(),
            (Some(shape), None) => shape.len(),
            (None, None) => 1,
        };
        let default = format!("{axes}d({},1)", axes.min(2));
        let spares = SpareSet::parse(args.spares.as_deref().unwrap_or(&default))?;
        let arrangement = match args.arrangement.as_str() {
            "separate" => Arrangement::Separate,
            _ => Arrangement::Contiguous,
        };
        let resolve =
            |name: &str, layout: &Layout| spares::resolve(name, network.as_ref(), layout, &names);
        let laid = spares::lay(
            network.as_ref(),
            grid.as_ref(),
            shape.as_deref(),
            &spares,
            arrangement,
            &resolve,
        )?;
        let traffic = Traffic::read(args.traffic.as_deref(), &laid.shape, args.bytes, &named)
            .context("--traffic")?;
        let job = spares::job(&laid, traffic)?;
        Ok(Instance {
            machine: machine(args)?,
            weights: weights(args)?,
            dead_routers: args.dead_routers,
            listed: matches!(spares, SpareSet::List(_)),
            network,
            names,
            laid,
            spares,
            job,
        })
    }

    pub fn planner(&self) -> anyhow::Result<Planner<'_>> {
        let planner = Planner::new(
            self.network.as_ref(),
            &self.job,
            &self.laid.spares,
            self.machine,
            self.weights,
        )?;
        Ok(planner.routers_forward(!self.dead_routers).shape(&self.laid.shape))
    }

    /// Node numbers of the failed nodes as written, checked.
    pub fn failed(&self, written: &[String]) -> anyhow::Result<Vec<NodeId>> {
        let nodes = self.network.nodes();
        if written.len() > nodes {
            bail!("{} failed nodes are given but the network has {nodes}", written.len());
        }
        let mut failed = Vec::new();
        for name in written {
            let node = spares::resolve(name, self.network.as_ref(), &self.laid.layout, &self.names)
                .with_context(|| format!("--failed {name}"))?;
            if failed.contains(&node) {
                bail!("--failed {name} is given twice");
            }
            if self.listed && self.laid.spares.contains(&node) {
                bail!("--failed {name} is also listed as a spare: only live nodes can be spares");
            }
            failed.push(node);
        }
        Ok(failed)
    }

    /// A node as the user would write it: its host name, or its coordinates in the grid of the job.
    pub fn node_name(&self, node: NodeId) -> String {
        match (self.names.get(node as usize), self.laid.layout.cell(node)) {
            (Some(name), _) => name.clone(),
            (None, Some(cell))
                if self.network.node_by_name(&self.network.vertex_name(node)).is_none() =>
            {
                coords::format(&coords::of(cell, self.laid.layout.dims()))
            }
            _ => self.network.vertex_name(node),
        }
    }
}

fn text(path: &Path) -> Result<String, TopologyError> {
    let name = path.display();
    let bytes =
        std::fs::read(path).map_err(|e| TopologyError::new(format!("reading {name}: {e}")))?;
    String::from_utf8(bytes).map_err(|_| TopologyError::new(format!("{name} is not text")))
}

/// A file that an argument names.
fn named(path: &str) -> Result<String, TopologyError> {
    text(path.as_ref())
}

fn network(args: &InstanceArgs) -> anyhow::Result<Parsed> {
    let slurm_topology = args.slurm_topology.as_deref();
    let files = Files { text: &named, slurm_topology, taper: args.taper };
    spec::parse_with(&args.network, &files).context("--network")
}

fn positive(name: &str, value: f64) -> anyhow::Result<f64> {
    if value.is_finite() && value >= 0.0 {
        Ok(value)
    } else {
        bail!("{name} {value}: a number of at least 0")
    }
}

fn machine(args: &InstanceArgs) -> anyhow::Result<Machine> {
    let mut machine = if args.machine == "k" { Machine::k_computer() } else { Machine::default() };
    if let Some(bandwidth) = args.bandwidth {
        if bandwidth == 0 {
            bail!("--bandwidth 0: at least 1 byte per second");
        }
        machine.bandwidth = bandwidth as f64;
    }
    if let Some(latency) = args.hop_latency {
        machine.hop_latency_s = positive("--hop-latency", latency)?;
    }
    if let Some(overhead) = args.overhead {
        machine.overhead_s = positive("--overhead", overhead)?;
    }
    if let Some(stagger) = args.stagger {
        machine.stagger = positive("--stagger", stagger)?;
    }
    match args.sharing.as_deref() {
        Some("path") => machine.sharing = Sharing::Path,
        Some(_) => machine.sharing = Sharing::Fair,
        None => {}
    }
    Ok(machine)
}

fn weights(args: &InstanceArgs) -> anyhow::Result<Weights> {
    let objective = match (args.iterations_left, &args.weights) {
        (Some(iterations), _) => Objective::TotalTime { iterations },
        (None, Some(text)) => {
            let (mut per_message, mut per_move) = (0.0, 0.0);
            for part in text.split(',') {
                let value =
                    part.split_once('=').and_then(|(k, v)| Some((k, v.parse::<f64>().ok()?)));
                match value.filter(|(_, v)| v.is_finite() && *v >= 0.0) {
                    Some(("load", v)) => per_message = v,
                    Some(("moved", v)) => per_move = v,
                    _ => {
                        bail!("--weights `{part}`: write load=NUMBER,moved=NUMBER, both at least 0")
                    }
                }
            }
            Objective::Weighted { per_message, per_move }
        }
        (None, None) => Objective::BusiestLink,
    };
    let budget_s = args.time_budget.map(|s| positive("--time-budget", s)).transpose()?;
    let move_s = positive("--move-cost", args.move_cost)?;
    Ok(Weights { objective, move_s, budget_s, may_squeeze: args.may_squeeze })
}

/// `1MiB`, `64KiB`, `5GB`, `4096`.
fn size(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = match unit.trim() {
        "" | "B" => 1.0,
        "kB" | "KB" | "k" => 1e3,
        "MB" | "M" => 1e6,
        "GB" | "G" => 1e9,
        "KiB" | "Ki" => 1024.0,
        "MiB" | "Mi" => 1024.0 * 1024.0,
        "GiB" | "Gi" => 1024.0 * 1024.0 * 1024.0,
        _ => return Err("a number with B, kB, MB, GB, KiB, MiB or GiB".into()),
    };
    match number.parse::<f64>() {
        Ok(n) if n >= 0.0 && n * factor <= 1e15 => Ok((n * factor).round() as u64),
        _ => Err("a number up to 1e15 bytes, such as 1MiB".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_are_read_with_their_units() {
        assert_eq!(size("1MiB"), Ok(1 << 20));
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("1.5kB"), Ok(1500));
        assert!(size("1XB").is_err() && size("MiB").is_err() && size("-1").is_err());
    }
}
