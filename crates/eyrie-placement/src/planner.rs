//! Plans for one job on one network: every method on the same failures, and how they compare.

use eyrie_topology::detour::{Detour, DetourReport};
use eyrie_topology::{Network, NodeId, RouteError};

use crate::case::Case;
use crate::cost::CostModel;
use crate::evaluate::Counted;
use crate::job::Job;
use crate::method::Method;
use crate::objective::Weights;
use crate::outcome::{Outcome, PlanError, Stuck};
use crate::walk::Walk;

/// Plans for one job on one network.
pub struct Planner<'a>(Case<'a>);

impl<'a> Planner<'a> {
    /// Counts the job at home. Errors name a spare or rank that is outside the network.
    pub fn new(
        network: &'a dyn Network,
        job: &'a Job,
        spares: &'a [NodeId],
        costs: CostModel,
        weights: Weights,
    ) -> Result<Self, PlanError> {
        Case::new(network, job, spares, costs, weights).map(Planner)
    }

    /// Whether a dead node's router still forwards messages of others (default: it does).
    pub fn routers_forward(mut self, forward: bool) -> Self {
        self.0.routers_forward = forward;
        self
    }

    /// The extents of the job's grid of ranks, needed for squeezing (default: a line).
    pub fn shape(mut self, shape: &[usize]) -> Self {
        self.0.shape = shape.to_vec();
        self
    }

    /// Seconds of communication in an iteration before any failure.
    pub fn before_s(&self) -> f64 {
        self.0.before_s
    }

    /// Link loads before any failure.
    pub fn before(&self) -> &Counted {
        &self.0.before
    }

    /// A method at its start, where the job is now; the nodes of `earlier` have failed before.
    pub fn walk(&self, method: Method, earlier: &[NodeId]) -> Result<Walk<'_>, PlanError> {
        Walk::new(&self.0, method, earlier)
    }

    /// The outcome of a method after the last of these batches, each of which fails together, or
    /// where it is stuck.
    pub fn run(&self, method: Method, batches: &[Vec<NodeId>]) -> Result<Outcome, PlanError> {
        self.0.check(&batches.concat())?;
        let nothing = Stuck { after: 0, why: "no failure is given".into() };
        let mut outcome = Outcome { method, result: Err(nothing) };
        let mut walk = self.walk(method, &[])?;
        for batch in batches {
            outcome = walk.fail(batch)?;
            if outcome.result.is_err() {
                break;
            }
        }
        Ok(outcome)
    }

    /// All of these methods, with break-even against the one that moves the fewest ranks (0D, if
    /// none of them is a reference).
    pub fn compare(
        &self,
        methods: &[Method],
        batches: &[Vec<NodeId>],
    ) -> Result<Vec<Outcome>, PlanError> {
        let mut outcomes =
            methods.iter().map(|&m| self.run(m, batches)).collect::<Result<Vec<_>, _>>()?;
        outcomes.extend(Self::reference(methods).and_then(|m| self.run(m, batches).ok()));
        self.weigh(&mut outcomes);
        outcomes.truncate(methods.len());
        Ok(outcomes)
    }

    /// The method to [`Self::weigh`] the others against, if it is not among them.
    pub fn reference(methods: &[Method]) -> Option<Method> {
        (!methods.contains(&Method::Best0D)).then_some(Method::Best0D)
    }

    /// Fills in break-even, against the outcome that moves the fewest ranks.
    pub fn weigh(&self, outcomes: &mut [Outcome]) {
        let cheapest = outcomes
            .iter()
            .filter(|o| o.method != Method::Squeeze)
            .filter_map(|o| o.result.as_ref().ok())
            .min_by(|a, b| a.moved.cmp(&b.moved).then(a.step_s.total_cmp(&b.step_s)))
            .map(|p| (p.moved, p.step_s));
        if let Some((moved, step_s)) = cheapest {
            for placed in outcomes.iter_mut().filter_map(|o| o.result.as_mut().ok()) {
                let extra_s = self.0.weights.move_s * (placed.moved as f64 - moved as f64);
                placed.break_even = break_even(extra_s, step_s - placed.step_s);
            }
        }
    }

    /// How routing round dead routers changes the routes of a placement; `None` where routers
    /// forward.
    pub fn detours(
        &self,
        failed: &[NodeId],
        placement: &[NodeId],
    ) -> Result<Option<DetourReport>, RouteError> {
        if self.0.routers_forward || !self.0.network.nodes_forward() {
            return Ok(None);
        }
        let detour = Detour::new(self.0.network, failed.iter().copied());
        let pairs: Vec<(NodeId, NodeId)> = self
            .0
            .job
            .traffic
            .phases
            .iter()
            .flat_map(|p| &p.messages)
            .map(|m| (placement[m.from as usize], placement[m.to as usize]))
            .collect();
        detour.report(&pairs).map(Some)
    }
}

/// Iterations until a gain of `gain_s` in each has paid for `extra_s`.
fn break_even(extra_s: f64, gain_s: f64) -> Option<u64> {
    if extra_s <= 0.0 {
        return (gain_s >= 0.0).then_some(0);
    }
    (gain_s > 1e-12).then(|| (extra_s / gain_s).ceil() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn break_even_counts_iterations() {
        assert_eq!(break_even(10.0, 0.5), Some(20));
        assert_eq!(break_even(10.0, 0.0), None);
        assert_eq!(break_even(0.0, 0.1), Some(0));
        assert_eq!(break_even(-1.0, -0.1), None);
    }
}
