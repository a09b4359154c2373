//! One plan after a failure, for the caller that carries it out: which ranks move where.

use std::collections::HashSet;

use eyrie_topology::{Network, NetworkNode, TopologyError};

use crate::cost::CostModel;
use crate::job::Job;
use crate::method::Method;
use crate::objective::Weights;
use crate::outcome::PlanError;
use crate::planning_input::{Failures, Planner};
use crate::traffic::Rank;
use crate::walk::Walk;

/// A rank that changes its node: one of the network in a [`Plan`], one of the job
/// ([`crate::JobNode`]) in a balance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    pub rank: Rank,
    pub from: NetworkNode,
    pub to: NetworkNode,
}

/// What a controller does next.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Ranks to move together; the target of one may be the node that another leaves.
    pub moves: Vec<Move>,
    /// Node of each rank afterwards.
    pub placement: Vec<NetworkNode>,
    /// Messages of one step on the busiest directed link: before any failure, and with this plan.
    pub busiest_messages_before: u64,
    pub busiest_messages: u64,
    /// Seconds of communication in an iteration, and divided by those before any failure.
    pub step_s: f64,
    pub ratio: f64,
    /// A description of what was done.
    pub steps: Vec<String>,
}

/// Where the ranks of `failed` nodes go, by the search: never worse than any published method.
///
/// `job.at` has the node of each rank (of a newly failed node: its last one). `failed` lists every
/// failed node so far; `spares` the live nodes without a rank that may be used, preferred first.
/// Errors: a node that does not exist or is both spare and failed, or fewer free nodes than
/// displaced ranks.
///
/// ```
/// use eyrie_placement::spares::{self, Arrangement, SpareSet};
/// use eyrie_placement::{choose, Traffic, Weights};
///
/// let parsed = eyrie_topology::spec::parse("torus:7x7")?;
/// let (network, grid) = (parsed.network.as_ref(), parsed.layout.as_ref());
/// let spares = SpareSet::parse("2d(2,1)")?;
/// let node = |name: &str, grid: &_| spares::resolve(name, network, grid, &[]);
/// let laid = spares::lay(network, grid, None, &spares, Arrangement::Contiguous, &node)?;
/// let traffic = Traffic::parse("stencil5", &laid.shape, 1 << 20)?;
/// let job = spares::job(&laid, traffic)?;
///
/// let failed = [node("2,3", &laid.layout)?];
/// let plan = choose(network, &job, &failed, &laid.spares, &Weights::default())?;
/// assert_eq!((plan.busiest_messages_before, plan.busiest_messages), (1, 1));
/// assert!(plan.moves.iter().any(|m| m.from == failed[0]));
/// assert!(!plan.placement.contains(&failed[0]));
/// # Ok::<(), eyrie_placement::PlanError>(())
/// ```
pub fn choose(
    network: &dyn Network,
    job: &Job,
    failed: &[NetworkNode],
    spares: &[NetworkNode],
    weights: &Weights,
) -> Result<Plan, PlanError> {
    choose_by(Method::Search, network, job, failed, spares, weights)
}

/// The same by the method that the user chooses. Squeezing, which moves no rank and needs the
/// grid's extents, is only in [`Planner::run`].
pub fn choose_by(
    method: Method,
    network: &dyn Network,
    job: &Job,
    failed: &[NetworkNode],
    spares: &[NetworkNode],
    weights: &Weights,
) -> Result<Plan, PlanError> {
    let planner = Planner::new(network, job, spares, CostModel::default(), *weights)?;
    if let Some(&n) = spares.iter().find(|n| failed.contains(n)) {
        let name = network.vertex_name(n);
        let why = format!("spare {name} is also failed: only live nodes can be spares");
        return Err(TopologyError(why).into());
    }
    Failures::new(network, &[failed.to_vec()])?;
    if method == Method::Squeeze {
        return Err(PlanError::Stuck("squeezing moves no rank: it is no substitution".into()));
    }
    let occupied: HashSet<NetworkNode> = job.at.iter().copied().collect();
    let (displacing, earlier): (Vec<NetworkNode>, Vec<NetworkNode>) =
        failed.iter().partition(|n| occupied.contains(n));
    let outcome = Walk::new(&planner, method, &earlier)?.fail_checked(&displacing)?;
    let placed = outcome.result.map_err(|stuck| PlanError::Stuck(stuck.why))?;
    let pairs = job.at.iter().zip(&placed.placement).enumerate();
    let moves = pairs
        .filter(|(_, (from, to))| from != to)
        .map(|(rank, (&from, &to))| Move { rank: rank as Rank, from, to })
        .collect();
    Ok(Plan {
        moves,
        busiest_messages_before: planner.before().score.messages,
        busiest_messages: placed.score.messages,
        step_s: placed.step_s,
        ratio: placed.ratio,
        placement: placed.placement,
        steps: placed.steps,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objective::Objective;
    use crate::spares::{self, Arrangement, SpareSet};
    use crate::traffic::Traffic;
    use eyrie_topology::{spec, Layout};

    pub fn laid(network: &str, spares: &str) -> (spec::Parsed, spares::Laid) {
        let parsed = spec::parse(network).unwrap();
        let spares = SpareSet::parse(spares).unwrap();
        let resolve = |_: &str, _: &Layout| unreachable!();
        let laid = spares::lay(
            parsed.network.as_ref(),
            parsed.layout.as_ref(),
            None,
            &spares,
            Arrangement::Contiguous,
            &resolve,
        )
        .unwrap();
        (parsed, laid)
    }

    #[test]
    fn choose_moves_the_failed_rank_and_keeps_the_load() {
        let (parsed, laid) = laid("torus:7x7", "2d(2,1)");
        let traffic = Traffic::parse("stencil5", &laid.shape, 1 << 20).unwrap();
        let mut job = spares::job(&laid, traffic).unwrap();
        let failed = [laid.home[8]];
        let network = parsed.network.as_ref();
        let plan = choose(network, &job, &failed, &laid.spares, &Weights::default()).unwrap();
        assert_eq!(plan.busiest_messages, 1);
        assert!(plan.moves.iter().any(|m| m.rank == 8 && m.from == failed[0]));
        assert!(!plan.placement.contains(&failed[0]));
        // The next failure, from where the job is now.
        job.at = plan.placement.clone();
        let failed = [failed[0], job.at[20]];
        let spares: Vec<NetworkNode> =
            laid.spares.iter().copied().filter(|n| !failed.contains(n)).collect();
        let plan = choose(network, &job, &failed, &spares, &Weights::default()).unwrap();
        assert_eq!(plan.busiest_messages, 1);
        assert!(failed.iter().all(|n| !plan.placement.contains(n)));
    }

    #[test]
    fn choose_by_uses_the_given_method() {
        let (parsed, laid) = laid("torus:7x7", "2d(2,1)");
        let traffic = Traffic::parse("stencil5", &laid.shape, 1 << 20).unwrap();
        let job = spares::job(&laid, traffic).unwrap();
        let by = |method| {
            let network = parsed.network.as_ref();
            choose_by(method, network, &job, &[laid.home[8]], &laid.spares, &Weights::default())
        };
        let plan = by(Method::Best0D).unwrap();
        assert_eq!(plan.moves.len(), 1);
        assert!(plan.busiest_messages > plan.busiest_messages_before && plan.ratio > 1.5);
        assert!(matches!(by(Method::Squeeze), Err(PlanError::Stuck(_))));
    }

    #[test]
    fn few_iterations_left_move_few_ranks_and_many_move_many() {
        let (parsed, laid) = laid("mesh:9x9", "2d(2,1)");
        let traffic = Traffic::parse("stencil5", &laid.shape, 1 << 20).unwrap();
        let job = spares::job(&laid, traffic).unwrap();
        let failed = [laid.home[27]];
        let moves = |iterations| {
            let objective = Objective::TotalTime { iterations };
            let weights = Weights { objective, ..Weights::default() };
            choose(parsed.network.as_ref(), &job, &failed, &laid.spares, &weights)
                .unwrap()
                .moves
                .len()
        };
        assert_eq!(moves(1), 1);
        assert!(moves(1_000_000) > 8);
        let weights = Weights { budget_s: Some(6.5), ..Weights::default() };
        let plan = choose(parsed.network.as_ref(), &job, &failed, &laid.spares, &weights).unwrap();
        assert!(plan.moves.len() <= 6, "{}", plan.moves.len());
    }

    #[test]
    fn bad_input_is_named() {
        let (parsed, laid) = laid("mesh:4x4", "2d(2,1)");
        let traffic = Traffic::parse("stencil5", &laid.shape, 8).unwrap();
        let job = spares::job(&laid, traffic).unwrap();
        let fail = |failed: &[NetworkNode]| {
            let weights = Weights::default();
            choose(parsed.network.as_ref(), &job, failed, &laid.spares, &weights)
                .unwrap_err()
                .to_string()
        };
        assert!(fail(&[16]).contains("node 16 is outside the network: 0 to 15"));
        assert!(fail(&[0, 0]).contains("0,0 is given twice"));
        assert!(fail(&[laid.spares[0]]).contains("is also failed"));
        assert!(fail(&[0; 17]).contains("17 failed nodes"));
        assert!(fail(&(0..9).filter(|n| n % 4 != 3).chain([9, 10]).collect::<Vec<_>>())
            .contains("only"));
    }
}
