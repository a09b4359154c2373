//! Plans: every method on the same failures, its cost, and the choice between them.

use std::collections::HashSet;

use eyrie_topology::detour::{Detour, DetourReport};
use eyrie_topology::{coords, Network, NodeId, RouteError, TopologyError};

use crate::cost::Machine;
use crate::evaluate::{Counted, Evaluator, Score, Scratch};
use crate::fluid;
use crate::job::{Job, Rank, State};
use crate::method::{Method, Setting, Standing};
use crate::search;
use crate::squeeze::{self, Squeezed};

/// What a plan is chosen by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Objective {
    /// The lowest busiest link, then the shortest step, then the fewest moves. Traffic of several rounds, or without
    /// any bytes, is not told by its busiest link: there the step comes first.
    BusiestLink,
    /// The shortest time for what is left: iterations × step + moves.
    TotalTime { iterations: u64 },
    /// The lowest `per_message × busiest link + per_move × ranks moved`.
    Weighted { per_message: f64, per_move: f64 },
}

/// What moves cost and how a plan is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    pub objective: Objective,
    /// Seconds for each rank that moves: its image through the store, one after another.
    pub move_s: f64,
    /// Most seconds that the moves of one plan may take. The moves of failed ranks cannot be avoided.
    pub budget_s: Option<f64>,
    /// The program can redistribute its work, so the search may choose squeezing.
    pub may_squeeze: bool,
}

impl Default for Weights {
    fn default() -> Self {
        Weights {
            objective: Objective::BusiestLink,
            move_s: 1.0,
            budget_s: None,
            may_squeeze: false,
        }
    }
}

/// Why no plan was made.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    #[error(transparent)]
    Input(#[from] TopologyError),
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error("{0}")]
    Stuck(String),
}

/// A rank that changes its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    pub rank: Rank,
    pub from: NodeId,
    pub to: NodeId,
}

/// Where a method cannot go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stuck {
    /// Failures handled before, one by one or in groups.
    pub after: usize,
    pub why: String,
}

/// What a method reaches.
#[derive(Debug, Clone)]
pub struct Placed {
    /// Node of each rank; for squeezing lost ranks keep their failed node and send nothing.
    pub placement: Vec<NodeId>,
    pub score: Score,
    pub loads: Counted,
    /// Seconds of communication in an iteration.
    pub step_s: f64,
    /// `step_s` over the same before any failure.
    pub ratio: f64,
    /// Ranks moved in all failures together, the failed ones among them.
    pub moved: usize,
    /// What was done, in words.
    pub steps: Vec<String>,
    /// Iterations after which the moves beyond the cheapest method's are paid for: `None` if never.
    pub break_even: Option<u64>,
    pub squeezed: Option<Squeezed>,
}

/// One method's result.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub method: Method,
    pub result: Result<Placed, Stuck>,
}

/// What a controller does next.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Ranks to move at once; the target of one may be the node that another leaves.
    pub moves: Vec<Move>,
    /// Node of each rank afterwards.
    pub placement: Vec<NodeId>,
    /// Messages of one step on the busiest directed link: before any failure, and with this plan.
    pub busiest_messages_before: u64,
    pub busiest_messages: u64,
    /// Seconds of communication in an iteration, and over that before any failure.
    pub step_s: f64,
    pub ratio: f64,
    /// What was done, in words.
    pub steps: Vec<String>,
}

/// Where the ranks of `failed` nodes go, by the search: never worse than any published method.
///
/// `job.at` is where the ranks are (those of newly failed nodes: were); `failed` lists every failed node so far; `spares` the
/// live nodes without a rank that may be used, preferred first.
/// Errors: a node that does not exist or is both spare and failed, or fewer free nodes than ranks to place.
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
    failed: &[NodeId],
    spares: &[NodeId],
    weights: &Weights,
) -> Result<Plan, PlanError> {
    choose_by(Method::Search, network, job, failed, spares, weights)
}

/// The same by the method that the user wants. Squeezing, which moves no rank and needs the grid's extents, is
/// [`Planner::run`]'s alone.
pub fn choose_by(
    method: Method,
    network: &dyn Network,
    job: &Job,
    failed: &[NodeId],
    spares: &[NodeId],
    weights: &Weights,
) -> Result<Plan, PlanError> {
    let planner = Planner::new(network, job, spares, Machine::default(), *weights)?;
    if let Some(&n) = spares.iter().find(|n| failed.contains(n)) {
        let name = network.vertex_name(n);
        let why = format!("spare {name} is also failed: only live nodes can be spares");
        return Err(TopologyError(why).into());
    }
    if method == Method::Squeeze {
        return Err(PlanError::Stuck("squeezing moves no rank: it is no substitution".into()));
    }
    let before: HashSet<NodeId> = job.at.iter().copied().collect();
    let (new, old): (Vec<NodeId>, Vec<NodeId>) = failed.iter().partition(|n| before.contains(n));
    let outcome = planner.run_after(&old, method, &[new])?;
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

/// Comparable cost of a placement before its step time is known.
#[derive(Debug, Clone, Copy)]
pub struct Proxy([f64; 4]);

impl PartialEq for Proxy {
    fn eq(&self, other: &Proxy) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Proxy {}

impl Ord for Proxy {
    fn cmp(&self, other: &Proxy) -> std::cmp::Ordering {
        self.0
            .iter()
            .zip(&other.0)
            .map(|(a, b)| a.total_cmp(b))
            .find(|o| o.is_ne())
            .unwrap_or(std::cmp::Ordering::Equal)
    }
}

impl PartialOrd for Proxy {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Ranks placements by the weights, relative to where the job is now.
pub struct Ranking<'a> {
    weights: Weights,
    bandwidth: f64,
    now: &'a [NodeId],
    /// The step comes before the busiest link (see [`Objective::BusiestLink`]).
    time_first: bool,
}

impl Ranking<'_> {
    /// Ranks that are not where they are now.
    pub fn moved(&self, placement: &[NodeId]) -> usize {
        self.now.iter().zip(placement).filter(|(a, b)| a != b).count()
    }

    /// The same after further moves, without copying the placement.
    pub fn moved_after(&self, placement: &[NodeId], moves: &[(Rank, NodeId)]) -> usize {
        let away = |rank: Rank, node: NodeId| usize::from(self.now[rank as usize] != node);
        let change = moves.iter().fold(0i64, |sum, &(rank, to)| {
            sum + away(rank, to) as i64 - away(rank, placement[rank as usize]) as i64
        });
        (self.moved(placement) as i64 + change) as usize
    }

    /// Whether nothing but the load decides.
    pub fn load_only(&self) -> bool {
        self.weights.objective == Objective::BusiestLink
            && self.weights.budget_s.is_none()
            && !self.time_first
    }

    pub fn proxy(&self, standing: &Standing) -> Proxy {
        self.proxy_of(standing.counted.score, self.moved(&standing.state.rank_at))
    }

    pub fn proxy_of(&self, score: Score, moved: usize) -> Proxy {
        let step_s = score.bytes as f64 / self.bandwidth;
        let squares = score.squares as f64;
        let [over, first, ..] = self.cost(score.messages, step_s, moved).0;
        Proxy([over, first, squares, moved as f64])
    }

    /// The exact cost: seconds over the budget, then the objective.
    pub fn cost(&self, messages: u64, step_s: f64, moved: usize) -> Proxy {
        let moves_s = self.weights.move_s * moved as f64;
        let over = self.weights.budget_s.map_or(0.0, |budget| (moves_s - budget).max(0.0));
        let (load, moved) = (messages as f64, moved as f64);
        Proxy(match self.weights.objective {
            Objective::BusiestLink if self.time_first => [over, step_s, load, moved],
            Objective::BusiestLink => [over, load, step_s, moved],
            Objective::TotalTime { iterations } => {
                [over, iterations as f64 * step_s + moves_s, load, moved]
            }
            Objective::Weighted { per_message, per_move } => {
                [over, per_message * load + per_move * moved, step_s, moved]
            }
        })
    }
}

/// Plans for one job on one network.
pub struct Planner<'a> {
    network: &'a dyn Network,
    job: &'a Job,
    spares: &'a [NodeId],
    machine: Machine,
    weights: Weights,
    routers_forward: bool,
    shape: Vec<usize>,
    /// The job at home with nothing failed.
    before: Counted,
    before_s: f64,
}

/// A method on its way through the failures.
#[derive(Clone)]
struct Track {
    standing: Standing,
    moved: usize,
}

/// The network after a group of failures.
struct Stage<'a> {
    detour: Option<Detour<'a>>,
    network: &'a dyn Network,
    failed: Vec<NodeId>,
    all_failed: Vec<NodeId>,
}

impl Stage<'_> {
    fn network(&self) -> &dyn Network {
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
        spares: &'a [NodeId],
        machine: Machine,
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
        let before_s = fluid::step_time(&evaluator, &before, &machine)?;
        let shape = vec![job.ranks()];
        let routers_forward = true;
        Ok(Planner {
            network,
            job,
            spares,
            machine,
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

    /// The extents of the job's grid of ranks, which squeezing needs (default: a line).
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

    fn check(&self, failed: &[NodeId]) -> Result<(), TopologyError> {
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

    fn stage(&self, failed: Vec<NodeId>, all_failed: Vec<NodeId>) -> Stage<'a> {
        let around = !self.routers_forward && self.network.nodes_forward();
        Stage {
            detour: around.then(|| Detour::new(self.network, all_failed.iter().copied())),
            network: self.network,
            failed,
            all_failed,
        }
    }

    /// Runs a method through groups of failures: one group all at once, several one after another.
    pub fn run(&self, method: Method, groups: &[Vec<NodeId>]) -> Result<Outcome, PlanError> {
        self.run_after(&[], method, groups)
    }

    fn run_after(
        &self,
        old: &[NodeId],
        method: Method,
        groups: &[Vec<NodeId>],
    ) -> Result<Outcome, PlanError> {
        let failed: Vec<NodeId> = old.iter().chain(groups.iter().flatten()).copied().collect();
        self.check(&failed)?;
        let mut left = groups.iter();
        let trail = self.follow(old, method, &mut |_| left.next().cloned())?;
        let nothing = || Outcome {
            method,
            result: Err(Stuck { after: 0, why: "no failure is given".into() }),
        };
        Ok(trail.into_iter().next_back().unwrap_or_else(nothing))
    }

    /// A method's outcome after each group of failures. `next` is told where the ranks are and says which nodes fail
    /// then; the trail ends when it says `None` or the method is stuck.
    pub fn trail(
        &self,
        method: Method,
        next: &mut dyn FnMut(&[NodeId]) -> Option<Vec<NodeId>>,
    ) -> Result<Vec<Outcome>, PlanError> {
        self.follow(&[], method, next)
    }

    fn follow(
        &self,
        old: &[NodeId],
        method: Method,
        next: &mut dyn FnMut(&[NodeId]) -> Option<Vec<NodeId>>,
    ) -> Result<Vec<Outcome>, PlanError> {
        let start = self.start(old)?;
        let methods = Method::published(self.job.layout.dims().len());
        let mut alone: Vec<(Method, Option<Track>)> = match method {
            Method::Search => methods.into_iter().map(|m| (m, Some(start.clone()))).collect(),
            _ => Vec::new(),
        };
        let (mut track, mut outcomes, mut all) = (start, Vec::new(), old.to_vec());
        let mut scratch = Evaluator { network: self.network, traffic: &self.job.traffic }.scratch();
        while let Some(group) = next(&track.standing.state.rank_at) {
            all.extend(&group);
            self.check(&all)?;
            let stage = self.stage(group, all.clone());
            let after = outcomes.len();
            let result = match method {
                Method::Squeeze => self.squeeze(&stage)?,
                _ => {
                    let advanced = match method {
                        Method::Search => {
                            self.search(&track, &mut alone, &stage, after, &mut scratch)
                        }
                        _ => self.advance(method, track.clone(), &stage, after, &mut scratch),
                    };
                    // Ranks that dead routers cut off from each other: this method cannot go on.
                    let advanced =
                        advanced.unwrap_or_else(|e| Err(Stuck { after, why: e.to_string() }));
                    match advanced {
                        Ok(next) => {
                            track = next;
                            Ok(self.placed(&track, &stage)?)
                        }
                        Err(stuck) => Err(stuck),
                    }
                }
            };
            let result = match (method, result) {
                (Method::Search, Ok(placed)) if self.weights.may_squeeze => {
                    Ok(self.or_squeezed(placed, &stage)?)
                }
                (_, result) => result,
            };
            let stuck = result.is_err();
            outcomes.push(Outcome { method, result });
            if stuck {
                break;
            }
        }
        Ok(outcomes)
    }

    /// All of these methods, with break-even against the one that moves the fewest ranks (0D, if only others are asked for).
    pub fn compare(
        &self,
        methods: &[Method],
        groups: &[Vec<NodeId>],
    ) -> Result<Vec<Outcome>, PlanError> {
        let mut outcomes =
            methods.iter().map(|&m| self.run(m, groups)).collect::<Result<Vec<_>, _>>()?;
        outcomes.extend(Self::reference(methods).and_then(|m| self.run(m, groups).ok()));
        self.weigh(&mut outcomes);
        outcomes.truncate(methods.len());
        Ok(outcomes)
    }

    /// The method to [`Self::weigh`] the others against, where it is not among them.
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
                let extra_s = self.weights.move_s * (placed.moved as f64 - moved as f64);
                placed.break_even = break_even(extra_s, step_s - placed.step_s);
            }
        }
    }

    /// The job now, before the next failure.
    fn start(&self, old: &[NodeId]) -> Result<Track, RouteError> {
        let mut state = State::new(self.network.nodes(), &self.job.at, &self.job.home, self.spares);
        old.iter().for_each(|&n| state.fail(n));
        let counted = if self.job.at == self.job.home {
            self.before.clone()
        } else {
            let evaluator = Evaluator { network: self.network, traffic: &self.job.traffic };
            evaluator.count(self.job.at.clone())?
        };
        Ok(Track { standing: Standing { state, counted, steps: Vec::new() }, moved: 0 })
    }

    fn setting<'s>(&'s self, stage: &'s Stage) -> Setting<'s> {
        Setting {
            job: self.job,
            evaluator: Evaluator { network: stage.network(), traffic: &self.job.traffic },
            spares: self.spares,
        }
    }

    /// A standing after the stage's failures, nothing moved yet.
    fn struck(&self, mut standing: Standing, stage: &Stage) -> Result<Standing, RouteError> {
        stage.all_failed.iter().for_each(|&n| standing.state.fail(n));
        if stage.detour.is_some() {
            standing.counted = self.setting(stage).evaluator.count(standing.counted.placement)?;
        }
        Ok(standing)
    }

    fn advance(
        &self,
        method: Method,
        track: Track,
        stage: &Stage,
        after: usize,
        scratch: &mut Scratch,
    ) -> Result<Result<Track, Stuck>, RouteError> {
        let was = track.standing.state.rank_at.clone();
        let struck = self.struck(track.standing, stage)?;
        Ok(match self.setting(stage).settle(method, struck, &stage.failed, scratch)? {
            Ok(standing) => {
                let pairs = was.iter().zip(&standing.state.rank_at);
                let moved = track.moved + pairs.filter(|(a, b)| a != b).count();
                Ok(Track { standing, moved })
            }
            Err(why) => Err(Stuck { after, why }),
        })
    }

    fn placed(&self, track: &Track, stage: &Stage) -> Result<Placed, RouteError> {
        let evaluator = Evaluator { network: stage.network(), traffic: &self.job.traffic };
        let counted = track.standing.counted.clone();
        let step_s = fluid::step_time(&evaluator, &counted, &self.machine)?;
        Ok(Placed {
            placement: track.standing.state.rank_at.clone(),
            score: counted.score,
            loads: counted,
            step_s,
            ratio: ratio(step_s, self.before_s),
            moved: track.moved,
            steps: track.standing.steps.clone(),
            break_even: None,
            squeezed: None,
        })
    }

    fn squeeze(&self, stage: &Stage) -> Result<Result<Placed, Stuck>, RouteError> {
        let evaluator = Evaluator { network: stage.network(), traffic: &self.job.traffic };
        if self.job.traffic.phases.len() != 1
            || self.shape.iter().product::<usize>() != self.job.ranks()
        {
            let why = "only a step of one phase on a grid of ranks can be squeezed".into();
            return Ok(Err(Stuck { after: 0, why }));
        }
        let squeezed = squeeze::squeeze(self.job, &self.shape, &evaluator, &stage.all_failed)?;
        let Some(squeezed) = squeezed else {
            let why = format!(
                "a line of {} has no live rank left to take over",
                coords::format_dims(&self.shape)
            );
            return Ok(Err(Stuck { after: 0, why }));
        };
        let evaluator = Evaluator { traffic: &squeezed.traffic, ..evaluator };
        let counted = evaluator.count(self.job.at.clone())?;
        let step_s = fluid::step_time(&evaluator, &counted, &self.machine)?;
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

    /// Search: the best of the beam's standings, of every published method from where the search is, of every
    /// published method by itself through all failures so far, and of the same from home at once.
    fn search(
        &self,
        track: &Track,
        alone: &mut [(Method, Option<Track>)],
        stage: &Stage,
        after: usize,
        scratch: &mut Scratch,
    ) -> Result<Result<Track, Stuck>, RouteError> {
        let setting = self.setting(stage);
        let was = &track.standing.state.rank_at;
        let ranking = self.ranking(was);
        // Where dead routers cut live ranks off, neither start may be countable.
        let struck = self.struck(track.standing.clone(), stage);
        let mut found: Vec<Standing> = Vec::new();
        for (method, alone) in alone.iter_mut() {
            let elsewhere = alone.as_ref().is_none_or(|t| t.standing.state.rank_at != *was);
            if let Some(own) = alone.take() {
                // A method whose own choice is cut off by dead routers is out, not the search.
                *alone =
                    self.advance(*method, own, stage, after, scratch).ok().and_then(Result::ok);
                found.extend(alone.iter().map(|t| t.standing.clone()));
            }
            if let (true, Ok(struck)) = (elsewhere, &struck) {
                let settled = setting.settle(*method, struck.clone(), &stage.failed, scratch);
                found.extend(settled.ok().and_then(Result::ok));
            }
        }
        let home = match self.job.home != *was && stage.all_failed.len() <= 64 {
            true => self.at_home(stage).ok(),
            false => None,
        };
        if let Some(home) = &home {
            for (method, _) in alone.iter() {
                let settled = setting.settle(*method, home.clone(), &stage.all_failed, scratch);
                found.extend(settled.ok().and_then(Result::ok));
            }
        }
        let starts: Vec<&Standing> = struck.iter().chain(&home).collect();
        let floor = self.before.score.messages;
        let least = found.iter().map(|s| s.counted.score.messages).min();
        if !ranking.load_only() || least.is_none_or(|least| least > floor) {
            let effort = search::Effort::for_traffic(&self.job.traffic);
            let failed = &stage.all_failed;
            let more =
                search::candidates(&setting, &starts, failed, &ranking, floor, effort, scratch);
            // A beam that dead routers cut off leaves the published methods.
            found.extend(more.into_iter().flatten().take(4));
        }
        let Some(best) = self.pick(found, &ranking, &setting.evaluator)? else {
            let struck = struck?;
            let why = format!(
                "{} ranks need a node but only {} live nodes are free",
                struck.state.displaced().len(),
                struck.state.free(self.spares).len()
            );
            return Ok(Err(Stuck { after, why }));
        };
        let moved = track.moved + ranking.moved(&best.state.rank_at);
        Ok(Ok(Track { standing: best, moved }))
    }

    /// Squeezing instead, where the program allows it and it costs less.
    fn or_squeezed(&self, placed: Placed, stage: &Stage) -> Result<Placed, RouteError> {
        let ranking = self.ranking(&self.job.at);
        let cost = |p: &Placed| ranking.cost(p.score.messages, p.step_s, p.moved);
        Ok(match self.squeeze(stage)? {
            Ok(squeezed) if cost(&squeezed) < cost(&placed) => squeezed,
            _ => placed,
        })
    }

    fn ranking<'n>(&self, now: &'n [NodeId]) -> Ranking<'n> {
        Ranking {
            weights: self.weights,
            bandwidth: self.machine.bandwidth,
            now,
            time_first: self.job.traffic.time_first(),
        }
    }

    /// The job at home after all failures so far.
    fn at_home(&self, stage: &Stage) -> Result<Standing, RouteError> {
        let state = State::new(self.network.nodes(), &self.job.home, &self.job.home, self.spares);
        let standing = Standing { state, counted: self.before.clone(), steps: Vec::new() };
        self.struck(standing, stage)
    }

    /// The standing with the lowest exact cost. Step times are computed only where they can decide.
    fn pick(
        &self,
        mut found: Vec<Standing>,
        ranking: &Ranking,
        evaluator: &Evaluator,
    ) -> Result<Option<Standing>, RouteError> {
        let mut seen = HashSet::new();
        found.retain(|s| seen.insert(s.state.rank_at.clone()));
        if ranking.load_only() {
            let least = found.iter().map(|s| s.counted.score.messages).min();
            found.retain(|s| Some(s.counted.score.messages) == least);
        }
        let cost = |standing: &Standing, step_s| {
            let moved = ranking.moved(&standing.state.rank_at);
            ranking.cost(standing.counted.score.messages, step_s, moved)
        };
        let least = |s: &Standing| fluid::least_step_time(evaluator, &s.counted, &self.machine);
        let mut order: Vec<(f64, usize)> =
            found.iter().enumerate().map(|(i, s)| (least(s), i)).collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut best: Option<(Proxy, usize)> = None;
        for (least_s, i) in order {
            let standing = &found[i];
            if best.is_some_and(|(lowest, _)| cost(standing, least_s) > lowest) {
                continue;
            }
            let step_s = fluid::step_time(evaluator, &standing.counted, &self.machine)?;
            // Of several with the same cost the first that was found.
            let this = (cost(standing, step_s), i);
            if best.is_none_or(|best| this < best) {
                best = Some(this);
            }
        }
        Ok(best.map(|(_, i)| found.swap_remove(i)))
    }

    /// What routing round dead routers does to the routes of a placement; `None` where routers forward.
    pub fn detours(
        &self,
        failed: &[NodeId],
        placement: &[NodeId],
    ) -> Result<Option<DetourReport>, RouteError> {
        if self.routers_forward || !self.network.nodes_forward() {
            return Ok(None);
        }
        let detour = Detour::new(self.network, failed.iter().copied());
        let pairs: Vec<(NodeId, NodeId)> = self
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

fn out_of_range(node: NodeId, nodes: usize) -> TopologyError {
    TopologyError(format!("node {node} is outside the network: 0 to {}", nodes - 1))
}

fn ratio(step_s: f64, before_s: f64) -> f64 {
    if before_s > 0.0 {
        step_s / before_s
    } else {
        1.0
    }
}

/// Iterations until a gain of `gain_s` each has paid `extra_s`.
fn break_even(extra_s: f64, gain_s: f64) -> Option<u64> {
    if extra_s <= 0.0 {
        return (gain_s >= 0.0).then_some(0);
    }
    (gain_s > 1e-12).then(|| (extra_s / gain_s).ceil() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spares::{self, Arrangement, SpareSet};
    use crate::Traffic;
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
        let spares: Vec<NodeId> =
            laid.spares.iter().copied().filter(|n| !failed.contains(n)).collect();
        let plan = choose(network, &job, &failed, &spares, &Weights::default()).unwrap();
        assert_eq!(plan.busiest_messages, 1);
        assert!(failed.iter().all(|n| !plan.placement.contains(n)));
    }

    #[test]
    fn choose_by_takes_the_method_that_is_asked_for() {
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
        let fail = |failed: &[NodeId]| {
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

    #[test]
    fn break_even_counts_iterations() {
        assert_eq!(break_even(10.0, 0.5), Some(20));
        assert_eq!(break_even(10.0, 0.0), None);
        assert_eq!(break_even(0.0, 0.1), Some(0));
        assert_eq!(break_even(-1.0, -0.1), None);
    }
}
