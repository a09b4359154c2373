//! One method applied to failures, batch after batch: [`Walk::fail`] takes a batch and returns the
//! outcome. All decisions are those of the method and the objective.

use std::collections::HashSet;

use eyrie_topology::{coords, NetworkNode, RouteError};

use crate::evaluate::{Evaluator, Scratch};
use crate::fluid;
use crate::job::Occupancy;
use crate::method::{Candidate, Method};
use crate::objective::{PlanCost, Ranking};
use crate::outcome::{Outcome, Placed, PlanError, Stuck};
use crate::planning_input::{Broken, Failures, Planner};
use crate::search;
use crate::squeeze;

/// A method while it is applied to failures.
pub struct Walk<'c> {
    planner: &'c Planner<'c>,
    method: Method,
    reached: Reached,
    /// For the search: the state of each published method by itself; `None` once it is stuck.
    alone: Vec<(Method, Option<Reached>)>,
    failed: Vec<NetworkNode>,
    batches: usize,
    scratch: Scratch,
}

/// The state that a method has reached.
#[derive(Clone)]
struct Reached {
    candidate: Candidate,
    /// Ranks moved in all failures together.
    moved: usize,
}

impl<'c> Walk<'c> {
    /// Starts where the job is now; the nodes of `earlier`, which exist, have failed before and
    /// have no ranks.
    pub(crate) fn new(
        planner: &'c Planner<'c>,
        method: Method,
        earlier: &[NetworkNode],
    ) -> Result<Self, RouteError> {
        let reached = Reached { candidate: planner.now(earlier)?, moved: 0 };
        let published = match method {
            Method::Search => Method::published(planner.job.layout.dims().len()),
            _ => Vec::new(),
        };
        let alone = published.into_iter().map(|m| (m, Some(reached.clone()))).collect();
        let evaluator = Evaluator { network: planner.network, traffic: &planner.job.traffic };
        let scratch = evaluator.scratch();
        Ok(Walk { planner, method, reached, alone, failed: earlier.to_vec(), batches: 0, scratch })
    }

    /// The node of each rank now.
    pub fn placement(&self) -> &[NetworkNode] {
        &self.reached.candidate.occupancy.rank_at
    }

    /// The nodes of `batch` fail together. After an outcome that is stuck the walk has ended.
    ///
    /// # Errors
    /// When a node does not exist or has failed before, or a route is too long to be counted.
    pub fn fail(&mut self, batch: &[NetworkNode]) -> Result<Outcome, PlanError> {
        Failures::new(self.planner.network, &[self.failed.clone(), batch.to_vec()])?;
        self.fail_checked(batch)
    }

    /// As [`Walk::fail`], for nodes that were checked where they were read.
    pub(crate) fn fail_checked(&mut self, batch: &[NetworkNode]) -> Result<Outcome, PlanError> {
        self.failed.extend(batch);
        let broken = self.planner.broken(batch, &self.failed);
        let result = match self.method {
            Method::Squeeze => self.planner.squeeze(&broken)?,
            // Dead routers cut ranks off from each other: this method cannot go on.
            _ => match self.step(&broken).unwrap_or_else(|e| Err(self.stuck(e.to_string()))) {
                Ok(reached) => {
                    self.reached = reached;
                    Ok(self.planner.placed(&self.reached, &broken)?)
                }
                Err(stuck) => Err(stuck),
            },
        };
        let result = match (self.method, result) {
            (Method::Search, Ok(placed)) if self.planner.weights.may_squeeze => {
                Ok(self.planner.or_squeezed(placed, &broken)?)
            }
            (_, result) => result,
        };
        self.batches += 1;
        Ok(Outcome { method: self.method, result })
    }

    fn stuck(&self, why: String) -> Stuck {
        Stuck { after: self.batches, why }
    }

    fn step(&mut self, broken: &Broken) -> Result<Result<Reached, Stuck>, RouteError> {
        let reached = match self.method {
            Method::Search => self.search(broken)?,
            method => {
                let from = self.reached.clone();
                self.planner.advance(method, from, broken, &mut self.scratch)?
            }
        };
        Ok(reached.map_err(|why| self.stuck(why)))
    }

    /// The search: the best of the beam's candidates, of every published method from the search's
    /// state, of every published method by itself through all failures so far, and of the same from
    /// home at once.
    fn search(&mut self, broken: &Broken) -> Result<Result<Reached, String>, RouteError> {
        let planner = self.planner;
        let setting = planner.setting(broken);
        let now = self.reached.candidate.occupancy.rank_at.clone();
        let ranking = planner.ranking(&now);
        // Where dead routers cut live ranks off, neither start may be countable.
        let displaced = planner.displaced(self.reached.candidate.clone(), broken);
        let mut found = self.by_published_methods(&displaced, &now, broken);
        let home = if planner.job.home != now && broken.failed.len() <= 64 {
            planner.at_home(broken).ok()
        } else {
            None
        };
        if let Some(home) = &home {
            for (method, _) in &self.alone {
                let settled =
                    setting.settle(*method, home.clone(), &broken.failed, &mut self.scratch);
                found.extend(settled.ok().and_then(Result::ok));
            }
        }
        let starts: Vec<&Candidate> = displaced.iter().chain(&home).collect();
        let floor = planner.before.score.messages;
        let least = found.iter().map(|s| s.counted.score.messages).min();
        if !ranking.load_only() || least.is_none_or(|least| least > floor) {
            let effort = search::Effort::for_traffic(&planner.job.traffic);
            let failed = &broken.failed;
            let scratch = &mut self.scratch;
            let more =
                search::candidates(&setting, &starts, failed, &ranking, floor, effort, scratch);
            // If dead routers cut the beam off, the published methods remain.
            found.extend(more.into_iter().flatten().take(4));
        }
        let Some(best) = planner.pick(found, &ranking, &setting.evaluator)? else {
            return Ok(Err(no_room(&displaced?.occupancy, planner.spares)));
        };
        let moved = self.reached.moved + ranking.moved(&best.occupancy.rank_at);
        Ok(Ok(Reached { candidate: best, moved }))
    }

    /// The outcomes of every published method, by itself and from the search's state.
    fn by_published_methods(
        &mut self,
        displaced: &Result<Candidate, RouteError>,
        now: &[NetworkNode],
        broken: &Broken,
    ) -> Vec<Candidate> {
        let planner = self.planner;
        let scratch = &mut self.scratch;
        let setting = planner.setting(broken);
        let mut found = Vec::new();
        for (method, alone) in &mut self.alone {
            let elsewhere = alone.as_ref().is_none_or(|r| r.candidate.occupancy.rank_at != *now);
            if let Some(own) = alone.take() {
                // If dead routers cut a method's own choice off, that method is stuck, not the
                // search.
                *alone = planner.advance(*method, own, broken, scratch).ok().and_then(Result::ok);
                found.extend(alone.iter().map(|r| r.candidate.clone()));
            }
            if let (true, Ok(displaced)) = (elsewhere, displaced) {
                let settled = setting.settle(*method, displaced.clone(), &broken.batch, scratch);
                found.extend(settled.ok().and_then(Result::ok));
            }
        }
        found
    }
}

impl Planner<'_> {
    /// Applies a published method to one batch, or says why it is stuck.
    fn advance(
        &self,
        method: Method,
        from: Reached,
        broken: &Broken,
        scratch: &mut Scratch,
    ) -> Result<Result<Reached, String>, RouteError> {
        let was = from.candidate.occupancy.rank_at.clone();
        let displaced = self.displaced(from.candidate, broken)?;
        let settled = self.setting(broken).settle(method, displaced, &broken.batch, scratch)?;
        Ok(settled.map(|candidate| {
            let pairs = was.iter().zip(&candidate.occupancy.rank_at);
            let moved = from.moved + pairs.filter(|(a, b)| a != b).count();
            Reached { candidate, moved }
        }))
    }

    fn placed(&self, reached: &Reached, broken: &Broken) -> Result<Placed, RouteError> {
        let evaluator = Evaluator { network: broken.network(), traffic: &self.job.traffic };
        let counted = reached.candidate.counted.clone();
        let step_s = fluid::step_time(&evaluator, &counted, &self.costs)?;
        Ok(Placed {
            placement: reached.candidate.occupancy.rank_at.clone(),
            score: counted.score,
            loads: counted,
            step_s,
            ratio: ratio(step_s, self.before_s),
            moved: reached.moved,
            steps: reached.candidate.steps.clone(),
            break_even: None,
            squeezed: None,
        })
    }

    fn squeeze(&self, broken: &Broken) -> Result<Result<Placed, Stuck>, RouteError> {
        let evaluator = Evaluator { network: broken.network(), traffic: &self.job.traffic };
        if self.job.traffic.phases.len() != 1
            || self.shape.iter().product::<usize>() != self.job.ranks()
        {
            let why = "only a step of one phase on a grid of ranks can be squeezed".into();
            return Ok(Err(Stuck { after: 0, why }));
        }
        let squeezed = squeeze::squeeze(self.job, &self.shape, &evaluator, &broken.failed)?;
        let Some(squeezed) = squeezed else {
            let why = format!(
                "a line of {} has no live rank left to take over",
                coords::format_dims(&self.shape)
            );
            return Ok(Err(Stuck { after: 0, why }));
        };
        let evaluator = Evaluator { traffic: &squeezed.traffic, ..evaluator };
        let counted = evaluator.count(self.job.at.clone())?;
        let step_s = fluid::step_time(&evaluator, &counted, &self.costs)?;
        Ok(Ok(Placed {
            placement: self.job.at.clone(),
            score: counted.score,
            loads: counted,
            step_s,
            ratio: ratio(step_s, self.before_s),
            moved: 0,
            steps: vec![format!("neighbours share the work, {:.1}x at most", squeezed.work)],
            break_even: None,
            squeezed: Some(squeezed),
        }))
    }

    /// Squeezing instead, if the program allows it and it costs less.
    fn or_squeezed(&self, placed: Placed, broken: &Broken) -> Result<Placed, RouteError> {
        let ranking = self.ranking(&self.job.at);
        let cost = |p: &Placed| ranking.cost(p.score.messages, p.step_s, p.moved);
        Ok(match self.squeeze(broken)? {
            Ok(squeezed) if cost(&squeezed) < cost(&placed) => squeezed,
            _ => placed,
        })
    }

    /// The candidate with the lowest exact cost. Step times are computed only where they can
    /// decide.
    pub(crate) fn pick(
        &self,
        mut found: Vec<Candidate>,
        ranking: &Ranking,
        evaluator: &Evaluator,
    ) -> Result<Option<Candidate>, RouteError> {
        let mut seen = HashSet::new();
        found.retain(|s| seen.insert(s.occupancy.rank_at.clone()));
        if ranking.load_only() {
            let least = found.iter().map(|s| s.counted.score.messages).min();
            found.retain(|s| Some(s.counted.score.messages) == least);
        }
        let cost = |candidate: &Candidate, step_s| {
            let moved = ranking.moved(&candidate.occupancy.rank_at);
            ranking.cost(candidate.counted.score.messages, step_s, moved)
        };
        let least = |s: &Candidate| fluid::least_step_time(evaluator, &s.counted, &self.costs);
        let mut order: Vec<(f64, usize)> =
            found.iter().enumerate().map(|(i, s)| (least(s), i)).collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut best: Option<(PlanCost, usize)> = None;
        for (least_s, i) in order {
            let candidate = &found[i];
            if best.is_some_and(|(lowest, _)| cost(candidate, least_s) > lowest) {
                continue;
            }
            let step_s = fluid::step_time(evaluator, &candidate.counted, &self.costs)?;
            // Of several with the same cost the first one found is chosen.
            let this = (cost(candidate, step_s), i);
            if best.is_none_or(|best| this < best) {
                best = Some(this);
            }
        }
        Ok(best.map(|(_, i)| found.swap_remove(i)))
    }
}

/// Why displaced ranks find no nodes.
fn no_room(occupancy: &Occupancy, spares: &[NetworkNode]) -> String {
    let displaced = occupancy.displaced().len();
    let free = occupancy.with_room(1, spares);
    if occupancy.slots() == 1 {
        let free = free.len();
        return format!("{displaced} ranks need a node but only {free} live nodes are free");
    }
    let room: usize = free.iter().map(|node| occupancy.room(*node)).sum();
    format!("{displaced} ranks need a node but live nodes have room for {room} only")
}

fn ratio(step_s: f64, before_s: f64) -> f64 {
    if before_s > 0.0 {
        step_s / before_s
    } else {
        1.0
    }
}
