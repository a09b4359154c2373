//! Where the ranks of a running job should be, all of which live: after others have come back from
//! lost nodes, or when the job was badly placed from its start. The moves are proposed only where
//! they pay: when what the job gains in the time that is left is more than what it may lose by
//! them. Moves nothing.

use std::collections::{BTreeMap, BTreeSet};

use eyrie_topology::{NetworkNode, RouteError};

use crate::anneal;
use crate::assign::Placement;
use crate::cluster::{JobNode, JobNodes, Node};
use crate::evaluate::Evaluator;
use crate::fluid;
use crate::job::Job;
use crate::method::{Candidate, Method};
use crate::objective::{Objective, Weights};
use crate::on_network::OnNetwork;
use crate::outcome::PlanError;
use crate::plan::Move;
use crate::planning_input::Planner;
use crate::search;
use crate::traffic::Rank;

/// What a rearrangement is weighed by.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'a> {
    /// By which method; the search is never worse than any other.
    pub method: Method,
    /// How long the job still runs, in seconds.
    pub left_s: f64,
    /// By rank: what the job may lose by its move, in seconds.
    pub costs: &'a [f64],
}

/// What links carry, as it was measured, with ranks where they are or would be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Carried {
    /// Bytes that the busiest link carries in a second.
    pub busiest: f64,
    /// The share of time that carrying all of it takes.
    pub share: f64,
}

/// A better placement, and whether it pays.
#[derive(Debug, Clone, PartialEq)]
pub struct Rearrangement {
    pub moves: Vec<Move>,
    /// A description of what was done.
    pub steps: Vec<String>,
    pub now: Carried,
    pub then: Carried,
    /// Seconds that the job gains in the time that is left, and may lose by the moves.
    pub gain_s: f64,
    pub cost_s: f64,
}

impl Rearrangement {
    /// Whether the job gains more than it may lose.
    pub fn pays(&self) -> bool {
        !self.moves.is_empty() && self.gain_s > self.cost_s
    }
}

/// Steps of a job are weighed as so many of the traffic that was measured.
const ITERATIONS: u64 = 1_000_000;

impl Placement {
    /// The method by which the ranks of lost nodes get their nodes.
    pub fn method(&self) -> Method {
        self.method
    }

    /// Whether its method can be used on the network, with the spares that the job starts with.
    ///
    /// # Errors
    /// Why not, with the remedy.
    pub fn check(&self) -> Result<(), String> {
        let (Some(on), Method::Slide(k)) = (&self.network, self.method) else { return Ok(()) };
        let axes = on.layout().map_err(|e| e.to_string())?.dims().len();
        if k > axes {
            return Err(format!(
                "{k}d: the grid of the network has {axes} axes, so at most {axes}d; or take search"
            ));
        }
        if !self.slides_somewhere(on)? {
            return Err(format!(
                "{k}d: with these spares ranks can slide so from no node; keep planes free, such \
                 as --spares '{axes}d({},1)', or take hybrid or search",
                axes.min(2)
            ));
        }
        Ok(())
    }

    /// Whether there is a node after whose loss the method finds places.
    fn slides_somewhere(&self, on: &OnNetwork) -> Result<bool, String> {
        let nodes: Vec<Node> = (0..on.nodes()).map(|_| Node::open(u32::MAX)).collect();
        let at: Vec<Option<JobNode>> = on.start.iter().copied().map(Some).collect();
        let task = Task::new(on, JobNodes { nodes: &nodes, at: &at })?;
        let Task { job, spares, .. } = &task;
        let network = on.network.as_ref();
        let planner = Planner::new(network, job, spares, on.costs, Weights::default());
        let planner = planner.map_err(|e| e.to_string())?;
        let used: BTreeSet<NetworkNode> = job.home.iter().copied().collect();
        for lost in used {
            let broken = planner.broken(&[lost], &[lost]);
            let setting = planner.setting(&broken);
            let mut scratch = setting.evaluator.scratch();
            let home = planner.at_home(&broken).map_err(|e| e.to_string())?;
            if let Ok(Ok(_)) = setting.settle(self.method, home, &[lost], &mut scratch) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The rearrangement that gains most beyond what it costs, whether it pays or not; without
    /// moves where no other placement that was found is better.
    ///
    /// # Errors
    /// Why none can be made, for the user.
    pub fn rearrange(
        &self,
        cluster: JobNodes<'_>,
        terms: &Terms<'_>,
    ) -> Result<Rearrangement, String> {
        let Some(on) = &self.network else {
            return Err(
                "the network of the nodes is not known: `eyrie run --network` says it".into()
            );
        };
        let Some(over_s) = on.measured else {
            return Err("what ranks send each other was not measured yet: try again later".into());
        };
        let task = Task::new(on, cluster)?;
        let total: f64 = terms.costs.iter().sum();
        let mean = total / terms.costs.len().max(1) as f64;
        let steps_left = terms.left_s / over_s;
        let weights = Weights {
            objective: Objective::TotalTime { iterations: ITERATIONS },
            // Of as many steps as are weighed.
            move_s: mean * ITERATIONS as f64 / steps_left.max(1e-9),
            ..Weights::default()
        };
        let planned = task.plan(on, terms.method, weights).map_err(|e| e.to_string())?;
        let found = |rank: usize| planned.to.occupancy.rank_at[rank];
        let from = |rank: usize| task.at[rank];
        let moved = (0..task.at.len()).filter(|rank| found(*rank) != task.job.at[*rank]);
        let to_node = |rank| task.node_at(on, cluster, found(rank));
        let moves: Option<Vec<Move>> = moved
            .map(|rank| Some(Move { rank: rank as Rank, from: from(rank), to: to_node(rank)? }))
            .collect();
        let is_better = planned.to_s < planned.now_s;
        let mut moves = moves.filter(|_| is_better).unwrap_or_default();
        if overfull(cluster, &moves) {
            moves.clear();
        }
        let cost = |m: &Move| terms.costs.get(m.rank as usize).copied().unwrap_or(mean);
        let carried = |candidate: &Candidate, step_s: f64| Carried {
            busiest: candidate.counted.score.bytes as f64 / over_s,
            share: step_s / over_s,
        };
        let now = carried(&planned.now, planned.now_s);
        let is_none = moves.is_empty();
        let then = if is_none { now } else { carried(&planned.to, planned.to_s) };
        Ok(Rearrangement {
            // Of a network that is always busy no more than all of the time.
            gain_s: (now.share - then.share) / now.share.max(1.0) * terms.left_s,
            cost_s: moves.iter().map(cost).sum(),
            steps: if is_none { Vec::new() } else { planned.to.steps },
            moves,
            now,
            then,
        })
    }
}

/// Whether a node has more ranks than slots after these moves, and more than now.
fn overfull(cluster: JobNodes<'_>, moves: &[Move]) -> bool {
    (0..).zip(cluster.nodes).any(|(node, entry)| {
        let come = moves.iter().filter(|m| m.to == node).count() as u32;
        let leave = moves.iter().filter(|m| m.from == node).count() as u32;
        come > leave && entry.ranks + come - leave > entry.slots
    })
}

/// How often each of these is there.
pub(crate) fn counts(nodes: &[NetworkNode]) -> BTreeMap<NetworkNode, u32> {
    let mut counts = BTreeMap::new();
    nodes.iter().for_each(|node| *counts.entry(*node).or_insert(0) += 1);
    counts
}

/// The most of these that are the same.
fn most_on_one(nodes: &[NetworkNode]) -> u32 {
    counts(nodes).into_values().max().unwrap_or(1)
}

/// The ranks of a job in the planner's terms.
struct Task {
    /// The node of the job that each rank is on.
    at: Vec<JobNode>,
    job: Job,
    /// Nodes that nothing may come to.
    failed: Vec<NetworkNode>,
    spares: Vec<NetworkNode>,
}

/// A placement with where the job is now.
struct Planned {
    now: Candidate,
    now_s: f64,
    to: Candidate,
    to_s: f64,
}

impl Task {
    fn new(on: &OnNetwork, cluster: JobNodes<'_>) -> Result<Task, String> {
        let mut at = Vec::new();
        let mut placed = Vec::new();
        for (rank, node) in (0..on.start.len()).zip(cluster.at) {
            let Some(node) = *node else {
                return Err(format!("rank {rank} has ended: ranks are not rearranged any more"));
            };
            let Some(position) = on.position(node) else {
                return Err(format!(
                    "node {node} with rank {rank} has joined, and has no place in the network: \
                     migrate the rank to another node"
                ));
            };
            at.push(node);
            placed.push(position);
        }
        let home: Vec<NetworkNode> =
            on.start.iter().filter_map(|node| on.position(*node)).collect();
        let slots = most_on_one(&home).max(most_on_one(&placed));
        let layout = on.layout().map_err(|e| e.to_string())?;
        let job = Job::on_slots(layout, home, slots, on.traffic.clone());
        let mut job = job.map_err(|e| format!("the job does not fit the network: {e}"))?;
        job.at = placed;
        // A host that has come back is another node of the job at the same place. A node on which
        // a rank stays counts as open.
        let mut open: BTreeSet<NetworkNode> = job.at.iter().copied().collect();
        let numbered = || (0..).zip(cluster.nodes);
        let is_open = |(_, entry): &(JobNode, &Node)| entry.is_open();
        open.extend(numbered().filter(is_open).filter_map(|(node, _)| on.position(node)));
        let started: BTreeSet<NetworkNode> = job.home.iter().copied().collect();
        let all = || numbered().filter_map(|(node, _)| on.position(node));
        // Those where ranks are now were spares, too, when the job started.
        let spares = all().filter(|node| open.contains(node) && !started.contains(node)).collect();
        let failed: BTreeSet<NetworkNode> = all().filter(|node| !open.contains(node)).collect();
        Ok(Task { at, job, failed: failed.into_iter().collect(), spares })
    }

    /// The node of the job at this place of the network: one that can take ranks.
    fn node_at(&self, on: &OnNetwork, cluster: JobNodes<'_>, at: NetworkNode) -> Option<JobNode> {
        let mut nodes = (0..cluster.nodes.len() as JobNode).zip(cluster.nodes);
        let found = nodes.find(|(node, entry)| entry.is_open() && on.position(*node) == Some(at));
        found.map(|(node, _)| node)
    }

    fn plan(&self, on: &OnNetwork, method: Method, weights: Weights) -> Result<Planned, PlanError> {
        let network = on.network.as_ref();
        let planner = Planner::new(network, &self.job, &self.spares, on.costs, weights)?;
        let (now, to) = planner.rearranged(method, &self.failed)?;
        let evaluator = Evaluator { network, traffic: &self.job.traffic };
        let step_s =
            |candidate: &Candidate| fluid::step_time(&evaluator, &candidate.counted, &on.costs);
        let now_s = step_s(&now)?;
        let to_s = step_s(&to)?;
        Ok(Planned { now, now_s, to, to_s })
    }
}

impl Planner<'_> {
    /// Whether a node has more ranks than any had at the start, and more than now: processors have
    /// more to do there, whatever the links gain.
    fn is_crowded(&self, placement: &[NetworkNode]) -> bool {
        let most = most_on_one(&self.job.home);
        let now = counts(&self.job.at);
        let has_more = |(node, ranks): (NetworkNode, u32)| {
            ranks > most.max(now.get(&node).copied().unwrap_or(0))
        };
        counts(placement).into_iter().any(has_more)
    }

    /// Where the ranks are, and the best other placement by this method, with these nodes failed,
    /// which have no ranks any more: the one that it would be if moves had to be made. Where there
    /// is none it is where the ranks are.
    pub(crate) fn rearranged(
        &self,
        method: Method,
        failed: &[NetworkNode],
    ) -> Result<(Candidate, Candidate), RouteError> {
        let broken = self.broken(&[], failed);
        let setting = self.setting(&broken);
        let mut scratch = setting.evaluator.scratch();
        let now = self.displaced(self.now(&[])?, &broken)?;
        let home = self.at_home(&broken)?;
        let methods = match method {
            Method::Search => Method::published(self.job.layout.dims().len()),
            Method::Squeeze | Method::FirstFree => Vec::new(),
            method => vec![method],
        };
        let ranking = self.ranking(&self.job.at);
        let mut found = Vec::new();
        for method in methods {
            let settled = setting.settle(method, home.clone(), failed, &mut scratch);
            found.extend(settled.ok().and_then(Result::ok));
        }
        if method == Method::Search {
            let effort = search::Effort::for_traffic(&self.job.traffic);
            let starts = [&now, &home];
            let scratch = &mut scratch;
            let more = search::candidates(&setting, &starts, failed, &ranking, 0, effort, scratch)?;
            found.extend(more);
            found.extend(anneal::candidates(&setting, &now, scratch)?);
        }
        found.retain(|candidate| candidate.occupancy.rank_at != now.occupancy.rank_at);
        found.retain(|candidate| !self.is_crowded(&candidate.occupancy.rank_at));
        let best = self.pick(found, &ranking, &setting.evaluator)?;
        let best = best.unwrap_or_else(|| now.clone());
        Ok((now, best))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::NodeState;
    use crate::cost::CostModel;
    use crate::traffic::RankMessage;
    use crate::words::Words;
    use eyrie_topology::spec::Files;
    use eyrie_topology::TopologyError;

    /// One rank on each of the first `ranks` nodes, which send to neighbours of a grid of two
    /// columns: 1 MB a second on links of 2 MB.
    fn on_network(network: &str, nodes: usize, ranks: u32, method: Method) -> Placement {
        let hosts: Vec<String> = (0..nodes).map(|node| format!("h{node}")).collect();
        let text = |_: &str| Err(TopologyError::new("there are no files"));
        let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
        let files = Files { text: &text, slurm_topology: None, taper: 1.0 };
        let words = Words::of_running_job(network, &hosts, None, files);
        let start: Vec<JobNode> = (0..ranks).collect();
        let costs = CostModel { bandwidth: 2e6, ..CostModel::default() };
        let mut placement = Placement::on_network(&words, &start, method, costs).unwrap();
        let message = |from, to| RankMessage { from, to, bytes: 10_000_000, count: 10 };
        let below = (0..ranks - 2).flat_map(|r| [message(r, r + 2), message(r + 2, r)]);
        let beside = (0..ranks / 2).map(|row| 2 * row);
        let beside = beside.flat_map(|r| [message(r, r + 1), message(r + 1, r)]);
        placement.measure(&below.chain(beside).collect::<Vec<_>>(), 10.0);
        placement
    }

    /// The nodes with one rank each where `at` says so.
    fn nodes(count: usize, at: &[JobNode]) -> Vec<Node> {
        let ranks = |node| at.iter().filter(|at| **at == node).count() as u32;
        (0..count as JobNode).map(|n| Node { ranks: ranks(n), ..Node::open(1) }).collect()
    }

    fn rearranged(
        placement: &Placement,
        nodes: &[Node],
        at: &[JobNode],
        left_s: f64,
    ) -> Result<Rearrangement, String> {
        let at: Vec<Option<JobNode>> = at.iter().copied().map(Some).collect();
        let costs = vec![0.5; at.len()];
        let terms = Terms { method: placement.method(), left_s, costs: &costs };
        placement.rearrange(JobNodes { nodes, at: &at }, &terms)
    }

    #[test]
    fn after_a_failure_the_method_of_the_policy_is_carried_out_if_that_pays() {
        // Node 2 has failed, and its rank is on node 6, the first spare.
        let at = [0, 1, 6, 3, 4, 5];
        let mut nodes = nodes(8, &at);
        nodes[2].state = NodeState::Failed;
        let to = |method, left_s| {
            let placement = on_network("mesh:4x2", 8, 6, method);
            let found = rearranged(&placement, &nodes, &at, left_s).unwrap();
            let moves: Vec<_> = found.moves.iter().map(|m| (m.rank, m.to)).collect();
            (moves, found.pays())
        };
        assert_eq!(to(Method::Slide(1), 3600.0), (vec![(2, 4), (4, 6)], true));
        let plane = vec![(2, 4), (3, 5), (4, 6), (5, 7)];
        assert_eq!(to(Method::Slide(2), 3600.0), (plane.clone(), true));
        assert_eq!(to(Method::Slide(2), 1.0), (plane, false), "nothing pays within a second");
        assert_eq!(to(Method::Best0D, 3600.0), (vec![], false));
        assert!(to(Method::Search, 3600.0).1);
    }

    #[test]
    fn a_slide_that_no_node_can_make_is_refused() {
        let check = |nodes, ranks, method| on_network("mesh:4x2", nodes, ranks, method).check();
        assert_eq!(check(8, 6, Method::Slide(2)), Ok(()));
        assert_eq!(check(7, 6, Method::Slide(1)), Ok(()));
        for (nodes, method) in [(7, Method::Slide(2)), (6, Method::Slide(1))] {
            let error = check(nodes, 6, method).unwrap_err();
            assert!(error.contains("keep planes free, such as --spares '2d(2,1)'"), "{error}");
        }
        assert_eq!(check(6, 6, Method::Search), Ok(()));
        assert!(check(8, 6, Method::Slide(3)).unwrap_err().contains("at most 2d"));
    }

    #[test]
    fn a_badly_placed_job_is_placed_anew() {
        // Twelve ranks in a mesh of their own shape, but mixed up.
        let at = [7, 2, 11, 4, 9, 0, 5, 10, 1, 6, 3, 8];
        let placement = on_network("mesh:6x2", 12, 12, Method::Search);
        let found = rearranged(&placement, &nodes(12, &at), &at, 1e6).unwrap();
        assert!(found.pays() && found.then.share < 0.6 * found.now.share, "{found:?}");
        let mut then = at;
        found.moves.iter().for_each(|m| then[m.rank as usize] = m.to);
        let mut all = then.to_vec();
        all.sort_unstable();
        assert_eq!(all, (0..12).collect::<Vec<_>>(), "one rank a node");
        // Where it is well placed nothing moves.
        let home: Vec<JobNode> = (0..12).collect();
        let found = rearranged(&placement, &nodes(12, &home), &home, 1e6).unwrap();
        assert_eq!((found.moves.len(), found.gain_s), (0, 0.0));
    }

    #[test]
    fn it_is_said_why_nothing_can_be_proposed() {
        let at = [0, 1, 2, 3];
        let placement = on_network("mesh:4x2", 8, 4, Method::Search);
        let refused = |placement: &Placement, at: &[Option<JobNode>]| {
            let terms = Terms { method: Method::Search, left_s: 1.0, costs: &[] };
            let nodes = nodes(8, &[]);
            placement.rearrange(JobNodes { nodes: &nodes, at }, &terms).unwrap_err()
        };
        let all = at.map(Some);
        assert!(refused(&Placement::default(), &all).contains("--network"));
        assert!(
            refused(&placement, &[Some(0), None, Some(2), Some(3)]).contains("rank 1 has ended")
        );
        assert!(refused(&placement, &[Some(9), Some(1), Some(2), Some(3)]).contains("no place"));
        let mut unmeasured = on_network("mesh:4x2", 8, 4, Method::Search);
        unmeasured.network.as_mut().unwrap().measured = None;
        assert!(refused(&unmeasured, &all).contains("not measured yet"));
    }
}
