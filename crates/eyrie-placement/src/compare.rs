//! Plans for one job on one network: every method on the same failures, and how they compare.

use eyrie_topology::detour::{Detour, DetourReport};
use eyrie_topology::{NetworkNode, RouteError};

use crate::method::Method;
use crate::outcome::{Outcome, PlanError, Stuck};
use crate::planning_input::{Failures, Planner};
use crate::walk::Walk;

/// What [`Planner::plan`] does.
pub enum Progress {
    /// A method begins: its number among those that were asked for, or none for the one that they
    /// are compared with.
    Begins(Method, Option<usize>),
    Ends(Box<Outcome>),
}

impl Planner<'_> {
    /// A method at its start, where the job is now; the nodes of `earlier` have failed before and
    /// have no ranks.
    ///
    /// # Errors
    /// When a node of `earlier` does not exist or is given twice.
    pub fn walk(&self, method: Method, earlier: &[NetworkNode]) -> Result<Walk<'_>, PlanError> {
        Failures::new(self.network, &[earlier.to_vec()])?;
        Ok(Walk::new(self, method, earlier)?)
    }

    /// The outcome of a method after all these failures, or where it is stuck.
    pub fn run(&self, method: Method, failures: &Failures) -> Result<Outcome, PlanError> {
        let nothing = Stuck { after: 0, why: "no failure is given".into() };
        let mut outcome = Outcome { method, result: Err(nothing) };
        let mut walk = Walk::new(self, method, &[])?;
        for batch in failures.batches() {
            outcome = walk.fail_checked(batch)?;
            if outcome.result.is_err() {
                break;
            }
        }
        Ok(outcome)
    }

    /// Runs all of these methods, and 0D to compare them with if it is none of them. The outcomes
    /// come in order.
    pub fn plan(
        &self,
        methods: &[Method],
        failures: &Failures,
        report: &mut dyn FnMut(Progress),
    ) -> Result<(), PlanError> {
        for (number, &method) in methods.iter().enumerate() {
            report(Progress::Begins(method, Some(number)));
            report(Progress::Ends(Box::new(self.run(method, failures)?)));
        }
        if !methods.contains(&Method::Best0D) {
            report(Progress::Begins(Method::Best0D, None));
            // Where it is stuck or cut off there is nothing to compare with.
            if let Ok(outcome) = self.run(Method::Best0D, failures) {
                report(Progress::Ends(Box::new(outcome)));
            }
        }
        Ok(())
    }

    /// The outcomes of all of these methods, with break-even.
    pub fn compare(
        &self,
        methods: &[Method],
        failures: &Failures,
    ) -> Result<Vec<Outcome>, PlanError> {
        let mut outcomes = Vec::new();
        self.plan(methods, failures, &mut |progress| {
            if let Progress::Ends(outcome) = progress {
                outcomes.push(*outcome);
            }
        })?;
        self.weigh(&mut outcomes, methods);
        Ok(outcomes)
    }

    /// Fills in break-even, against the outcome that moves the fewest ranks, and leaves out what
    /// was only to compare with.
    pub fn weigh(&self, outcomes: &mut Vec<Outcome>, methods: &[Method]) {
        let cheapest = outcomes
            .iter()
            .filter(|o| o.method != Method::Squeeze)
            .filter_map(|o| o.result.as_ref().ok())
            .min_by(|a, b| a.moved.cmp(&b.moved).then(a.step_s.total_cmp(&b.step_s)))
            .map(|p| (p.moved, p.step_s));
        if let Some((moved, step_s)) = cheapest {
            for placed in outcomes.iter_mut().filter_map(|o| o.result.as_mut().ok()) {
                let extra_s = self.weights.move_s * (placed.moved as f64 - moved as f64);
                placed.break_even = break_even(extra_s, step_s - placed.step_s);
            }
        }
        outcomes.truncate(methods.len());
    }

    /// How routing round dead routers changes the routes of a placement; `None` where routers
    /// forward.
    pub fn detours(
        &self,
        failed: &[NetworkNode],
        placement: &[NetworkNode],
    ) -> Result<Option<DetourReport>, RouteError> {
        if self.routers_forward || !self.network.nodes_forward() {
            return Ok(None);
        }
        let detour = Detour::new(self.network, failed.iter().copied());
        let pairs: Vec<(NetworkNode, NetworkNode)> = self
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
