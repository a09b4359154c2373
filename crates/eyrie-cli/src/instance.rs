//! What a plan is made from, as options: words for eyrie-placement, and costs and weights. Reads
//! the files that they name; one line names what is wrong.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{anyhow, bail};
use clap::Args;
use eyrie_placement::objective::MOVE_COST;
use eyrie_placement::spares::Arrangement;
use eyrie_placement::words::WordError;
use eyrie_placement::{
    CostModel, Instance, Machine, Method, Objective, Planner, Sharing, Weights, Words,
};
use eyrie_topology::spec::Files;
use eyrie_topology::TopologyError;
use eyrie_units::{duration, size};

#[derive(Args, Clone)]
pub struct InstanceArgs {
    /// The network: mesh:12x12, torus:12x12[:order=1,0], tofu:2x1x6x2x3x2[:shape=12x12],
    /// fattree:18^2[:taper=2][:rails=2], xgft:18,18;1,18, dragonfly:9x8x4[:valiant], graph:FILE,
    /// slurm:FILE (topology.conf or topology.yaml)
    #[arg(long, value_name = "NETWORK")]
    pub network: String,

    /// Extents of the job's grid of ranks, or with --ranks-per-node of the nodes that it starts on
    /// [default: what the spares leave]
    #[arg(long, value_name = "AxB")]
    pub job: Option<String>,

    /// Ranks of each node: so many that follow each other, or the part of the grid of ranks that a
    /// node has (2x2). A node that fails displaces all of them [default: 1]
    #[arg(long, value_name = "N|AxB")]
    pub ranks_per_node: Option<String>,

    /// Most ranks that a node may have: with more than --ranks-per-node the job's own nodes have
    /// room for displaced ranks, too [default: --ranks-per-node]
    #[arg(long, value_name = "N")]
    pub slots: Option<u32>,

    /// Spare nodes: nd(d,w) = width w on d sides of n dimensions, contiguous:COUNT,
    /// scattered:COUNT, list:NODE;NODE [default: nd(2,1), or 1d(1,1) on a line]
    #[arg(long, value_name = "SPARES")]
    pub spares: Option<String>,

    /// On networks without a grid: spares beside the ranks they serve (contiguous) or on the last
    /// nodes (separate)
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    pub arrangement: Arrangement,

    /// What ranks send each iteration: stencil5/7/9/27[:periodic], direction:+x,
    /// barrier[:ALGORITHM], allreduce[:ALGORITHM], alltoall, or matrix:FILE (rank rank bytes
    /// messages) [default: the star stencil]
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
    pub weights: Option<Objective>,

    /// Time it takes to move a rank
    #[arg(long, value_name = "TIME", default_value = MOVE_COST, value_parser = duration)]
    pub move_cost: Duration,

    /// Most time that all moves together may take
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub time_budget: Option<Duration>,

    /// The program can redistribute its work: search may choose squeezing
    #[arg(long)]
    pub may_squeeze: bool,

    /// Calibration of the time estimate: hpc (5 GB/s, 1 us a hop) or k (the K computer: four
    /// staggered DMA engines)
    #[arg(long, value_enum, value_name = "NAME", default_value_t)]
    pub machine: Machine,

    /// Bytes per second of a link [default: the machine's]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub bandwidth: Option<u64>,

    /// Time a hop takes [default: the machine's]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub hop_latency: Option<Duration>,

    /// Time a message costs before it enters the network [default: the machine's]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub overhead: Option<Duration>,

    /// How far apart the messages of a node start, as a fraction of one's transfer time [default:
    /// the machine's]
    #[arg(long, value_name = "FRACTION")]
    pub stagger: Option<f64>,

    /// How messages share a link: fair, or path (less for longer paths)
    #[arg(long, value_enum, value_name = "HOW")]
    pub sharing: Option<Sharing>,

    /// Say on standard error what is being done, also where that is no terminal
    #[arg(long)]
    pub progress: bool,
}

impl InstanceArgs {
    /// The job on its network.
    ///
    /// # Errors
    /// Names the option that is wrong.
    pub fn instance(&self) -> anyhow::Result<Instance> {
        let names = self.nodes.as_deref().map(|path| path.display().to_string());
        let slurm_topology = self.slurm_topology.as_deref();
        let words = Words {
            network: Some(&self.network),
            names: names.as_deref(),
            hosts: &[],
            nodes: &[],
            job: self.job.as_deref(),
            ranks_per_node: self.ranks_per_node.as_deref(),
            slots: self.slots,
            spares: self.spares.as_deref(),
            arrangement: self.arrangement,
            traffic: self.traffic.as_deref(),
            bytes: self.bytes,
            files: Files { text: &read_text, slurm_topology, taper: self.taper },
        };
        Instance::read(&words).map_err(as_option)
    }

    pub fn planner<'i>(&self, instance: &'i Instance) -> anyhow::Result<Planner<'i>> {
        let planner = Planner::new(
            instance.network.as_ref(),
            &instance.job,
            &instance.laid.spares,
            self.costs()?,
            self.weights(),
        )?;
        Ok(planner.routers_forward(!self.dead_routers).shape(&instance.shape))
    }

    /// What messages cost.
    pub fn costs(&self) -> anyhow::Result<CostModel> {
        let mut costs = CostModel::from(self.machine);
        if let Some(bandwidth) = self.bandwidth {
            if bandwidth == 0 {
                bail!("--bandwidth 0: at least 1 byte per second");
            }
            costs.bandwidth = bandwidth as f64;
        }
        if let Some(latency) = self.hop_latency {
            costs.hop_latency_s = latency.as_secs_f64();
        }
        if let Some(overhead) = self.overhead {
            costs.overhead_s = overhead.as_secs_f64();
        }
        if let Some(stagger) = self.stagger {
            if !(stagger.is_finite() && stagger >= 0.0) {
                bail!("--stagger {stagger}: a number of at least 0");
            }
            costs.stagger = stagger;
        }
        costs.sharing = self.sharing.unwrap_or(costs.sharing);
        Ok(costs)
    }

    /// What a plan is chosen by.
    fn weights(&self) -> Weights {
        let total = self.iterations_left.map(|iterations| Objective::TotalTime { iterations });
        Weights {
            objective: total.or(self.weights).unwrap_or(Objective::BusiestLink),
            move_s: self.move_cost.as_secs_f64(),
            budget_s: self.time_budget.map(|time| time.as_secs_f64()),
            may_squeeze: self.may_squeeze,
        }
    }
}

/// The methods named on the command line, comma-separated.
///
/// # Errors
/// Names the one that is none, or none for this job.
pub fn methods(text: &str, instance: &Instance) -> anyhow::Result<Vec<Method>> {
    let axes = instance.laid.layout.dims().len();
    Method::named(text, axes).map_err(|why| anyhow!("--method {why}"))
}

/// The text of a file that an option names.
///
/// # Errors
/// When it cannot be read, or is not text.
pub fn read_text(path: &str) -> Result<String, TopologyError> {
    let refuse = |why: String| Err(TopologyError::new(why));
    match std::fs::read(path).map(String::from_utf8) {
        Ok(Ok(text)) => Ok(text),
        Ok(Err(_)) => refuse(format!("{path} is not text")),
        Err(e) => refuse(format!("reading {path}: {e}")),
    }
}

/// What is wrong with a word of a plan, named as the option that it is.
pub fn as_option(error: WordError) -> anyhow::Error {
    match error {
        WordError::In { .. } => anyhow::anyhow!("--{error}"),
        WordError::Together(_) => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_cost_of_a_move_is_that_of_the_weights() {
        let cost = duration(MOVE_COST).map(|cost| cost.as_secs_f64());
        assert_eq!(cost, Ok(Weights::default().move_s));
    }
}
