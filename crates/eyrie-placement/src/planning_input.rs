//! The common input of all methods: a job on its network, what moves cost, and the job's figures
//! before any failure. Moves nothing. [`crate::compare`] runs methods on it.

use std::collections::HashSet;

use eyrie_topology::detour::Detour;
use eyrie_topology::{refuse, Network, NetworkNode, RouteError, TopologyError};

use crate::cost::CostModel;
use crate::evaluate::{Counted, Evaluator};
use crate::fluid;
use crate::job::{Job, Occupancy};
use crate::method::{Candidate, Setting};
use crate::objective::{Ranking, Weights};
use crate::outcome::PlanError;

/// A job on its network, with costs and options.
pub struct Planner<'a> {
    pub(crate) network: &'a dyn Network,
    pub(crate) job: &'a Job,
    /// In the order of "first free".
    pub(crate) spares: &'a [NetworkNode],
    pub(crate) costs: CostModel,
    pub(crate) weights: Weights,
    /// Whether a dead node's router still forwards messages of others.
    pub(crate) routers_forward: bool,
    /// The extents of the job's grid of ranks, needed for squeezing.
    pub(crate) shape: Vec<usize>,
    /// The job at home with nothing failed.
    pub(crate) before: Counted,
    pub(crate) before_s: f64,
}

/// Nodes that fail, batch after batch; those of a batch fail together. They were checked where they
/// were read: each exists, and none is given twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failures(Vec<Vec<NetworkNode>>);

impl Failures {
    /// # Errors
    /// When a node does not exist or is given twice.
    pub fn new(network: &dyn Network, batches: &[Vec<NetworkNode>]) -> Result<Self, TopologyError> {
        let nodes = network.nodes();
        let given: usize = batches.iter().map(Vec::len).sum();
        if given > nodes {
            return refuse!("{given} failed nodes are given but the network has {nodes}");
        }
        let mut seen = HashSet::new();
        for &n in batches.iter().flatten() {
            if n as usize >= nodes {
                return Err(out_of_range(n, nodes));
            }
            if !seen.insert(n) {
                return refuse!("failed node {} is given twice", network.vertex_name(n));
            }
        }
        Ok(Failures(batches.to_vec()))
    }

    /// Nodes that are known to exist, each of them given once.
    pub(crate) fn checked(nodes: Vec<NetworkNode>, at_once: bool) -> Self {
        let apart = || nodes.iter().map(|&n| vec![n]).collect();
        Failures(if at_once { vec![nodes.clone()] } else { apart() })
    }

    pub fn batches(&self) -> &[Vec<NetworkNode>] {
        &self.0
    }

    /// All of them, in order.
    pub fn nodes(&self) -> Vec<NetworkNode> {
        self.0.concat()
    }
}

/// The network after a batch of failures, which happened together.
pub struct Broken<'a> {
    network: &'a dyn Network,
    detour: Option<Detour<'a>>,
    /// The nodes of this batch.
    pub batch: Vec<NetworkNode>,
    /// Every node that has failed so far.
    pub failed: Vec<NetworkNode>,
}

impl Broken<'_> {
    pub fn network(&self) -> &dyn Network {
        match &self.detour {
            Some(detour) => detour,
            None => self.network,
        }
    }
}

impl<'a> Planner<'a> {
    /// Counts the job at home. Errors name a spare or rank that is outside the network.
    pub fn new(
        network: &'a dyn Network,
        job: &'a Job,
        spares: &'a [NetworkNode],
        costs: CostModel,
        weights: Weights,
    ) -> Result<Self, PlanError> {
        let nodes = network.nodes();
        for &n in job.home.iter().chain(&job.at).chain(spares) {
            if n as usize >= nodes {
                return Err(out_of_range(n, nodes).into());
            }
        }
        let evaluator = Evaluator { network, traffic: &job.traffic };
        let before = evaluator.count(job.home.clone())?;
        let before_s = fluid::step_time(&evaluator, &before, &costs)?;
        let shape = vec![job.ranks()];
        let routers_forward = true;
        Ok(Planner {
            network,
            job,
            spares,
            costs,
            weights,
            routers_forward,
            shape,
            before,
            before_s,
        })
    }

    /// Whether a dead node's router still forwards messages of others (default: it does).
    pub fn routers_forward(mut self, forward: bool) -> Self {
        self.routers_forward = forward;
        self
    }

    /// The extents of the job's grid of ranks, needed for squeezing (default: a line).
    pub fn shape(mut self, shape: &[usize]) -> Self {
        self.shape = shape.to_vec();
        self
    }

    /// Seconds of communication in an iteration before any failure.
    pub fn before_s(&self) -> f64 {
        self.before_s
    }

    /// Link loads before any failure.
    pub fn before(&self) -> &Counted {
        &self.before
    }

    /// The network after the nodes of `batch` have failed, the last of `failed`.
    pub fn broken(&self, batch: &[NetworkNode], failed: &[NetworkNode]) -> Broken<'a> {
        let around = !self.routers_forward && self.network.nodes_forward();
        Broken {
            detour: around.then(|| Detour::new(self.network, failed.iter().copied())),
            network: self.network,
            batch: batch.to_vec(),
            failed: failed.to_vec(),
        }
    }

    /// The job where it is now; the nodes of `earlier` have failed before.
    pub fn now(&self, earlier: &[NetworkNode]) -> Result<Candidate, RouteError> {
        let mut occupancy =
            Occupancy::new(self.network.nodes(), self.job, &self.job.at, self.spares);
        for &n in earlier {
            occupancy.fail(n);
        }
        let counted = if self.job.at == self.job.home {
            self.before.clone()
        } else {
            let evaluator = Evaluator { network: self.network, traffic: &self.job.traffic };
            evaluator.count(self.job.at.clone())?
        };
        Ok(Candidate { occupancy, counted, steps: Vec::new() })
    }

    /// The job at home after all failures so far.
    pub fn at_home(&self, broken: &Broken) -> Result<Candidate, RouteError> {
        let occupancy = Occupancy::new(self.network.nodes(), self.job, &self.job.home, self.spares);
        let candidate = Candidate { occupancy, counted: self.before.clone(), steps: Vec::new() };
        self.displaced(candidate, broken)
    }

    /// A candidate after the failures, before any move.
    pub fn displaced(
        &self,
        mut candidate: Candidate,
        broken: &Broken,
    ) -> Result<Candidate, RouteError> {
        for &n in &broken.failed {
            candidate.occupancy.fail(n);
        }
        if broken.detour.is_some() {
            candidate.counted =
                self.setting(broken).evaluator.count(candidate.counted.placement)?;
        }
        Ok(candidate)
    }

    pub fn setting<'s>(&'s self, broken: &'s Broken) -> Setting<'s> {
        Setting {
            job: self.job,
            evaluator: Evaluator { network: broken.network(), traffic: &self.job.traffic },
            spares: self.spares,
        }
    }

    pub fn ranking<'n>(&self, now: &'n [NetworkNode]) -> Ranking<'n> {
        Ranking {
            weights: self.weights,
            bandwidth: self.costs.bandwidth,
            now,
            time_first: self.job.traffic.time_first(),
        }
    }
}

fn out_of_range(node: NetworkNode, nodes: usize) -> TopologyError {
    TopologyError(format!("node {node} is outside the network: 0 to {}", nodes - 1))
}
