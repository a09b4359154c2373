//! The common input of all methods: a job on its network, what moves cost, and the job's figures
//! before any failure. Moves nothing.

use std::collections::HashSet;

use eyrie_topology::detour::Detour;
use eyrie_topology::{Network, NodeId, RouteError, TopologyError};

use crate::cost::CostModel;
use crate::evaluate::{Counted, Evaluator};
use crate::fluid;
use crate::job::{Job, Occupancy};
use crate::method::{Candidate, Setting};
use crate::objective::{Ranking, Weights};
use crate::outcome::PlanError;

/// A job on its network, with costs and options.
pub struct Case<'a> {
    pub network: &'a dyn Network,
    pub job: &'a Job,
    /// In the order of "first free".
    pub spares: &'a [NodeId],
    pub costs: CostModel,
    pub weights: Weights,
    /// Whether a dead node's router still forwards messages of others.
    pub routers_forward: bool,
    /// The extents of the job's grid of ranks, needed for squeezing.
    pub shape: Vec<usize>,
    /// The job at home with nothing failed.
    pub before: Counted,
    pub before_s: f64,
}

/// The network after a batch of failures, which happened together.
pub struct Broken<'a> {
    network: &'a dyn Network,
    detour: Option<Detour<'a>>,
    /// The nodes of this batch.
    pub batch: Vec<NodeId>,
    /// Every node that has failed so far.
    pub failed: Vec<NodeId>,
}

impl Broken<'_> {
    pub fn network(&self) -> &dyn Network {
        match &self.detour {
            Some(detour) => detour,
            None => self.network,
        }
    }
}

impl<'a> Case<'a> {
    /// Counts the job at home. Errors name a spare or rank that is outside the network.
    pub fn new(
        network: &'a dyn Network,
        job: &'a Job,
        spares: &'a [NodeId],
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
        Ok(Case { network, job, spares, costs, weights, routers_forward, shape, before, before_s })
    }

    /// Refuses failed nodes that do not exist or are given twice.
    pub fn check(&self, failed: &[NodeId]) -> Result<(), TopologyError> {
        let nodes = self.network.nodes();
        if failed.len() > nodes {
            return Err(TopologyError(format!(
                "{} failed nodes are given but the network has {nodes}",
                failed.len()
            )));
        }
        let mut seen = HashSet::new();
        for &n in failed {
            if n as usize >= nodes {
                return Err(out_of_range(n, nodes));
            }
            if !seen.insert(n) {
                let name = self.network.vertex_name(n);
                return Err(TopologyError(format!("failed node {name} is given twice")));
            }
        }
        Ok(())
    }

    /// The network after the nodes of `batch` have failed, the last of `failed`.
    pub fn broken(&self, batch: &[NodeId], failed: &[NodeId]) -> Broken<'a> {
        let around = !self.routers_forward && self.network.nodes_forward();
        Broken {
            detour: around.then(|| Detour::new(self.network, failed.iter().copied())),
            network: self.network,
            batch: batch.to_vec(),
            failed: failed.to_vec(),
        }
    }

    /// The job where it is now; the nodes of `earlier` have failed before.
    pub fn now(&self, earlier: &[NodeId]) -> Result<Candidate, RouteError> {
        let mut occupancy =
            Occupancy::new(self.network.nodes(), &self.job.at, &self.job.home, self.spares);
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
        let occupancy =
            Occupancy::new(self.network.nodes(), &self.job.home, &self.job.home, self.spares);
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

    pub fn ranking<'n>(&self, now: &'n [NodeId]) -> Ranking<'n> {
        Ranking {
            weights: self.weights,
            bandwidth: self.costs.bandwidth,
            now,
            time_first: self.job.traffic.time_first(),
        }
    }
}

fn out_of_range(node: NodeId, nodes: usize) -> TopologyError {
    TopologyError(format!("node {node} is outside the network: 0 to {}", nodes - 1))
}
