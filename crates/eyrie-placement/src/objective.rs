//! The criteria by which a plan is chosen, and the comparison of placements by them. Counts and
//! step times come from elsewhere: nothing is evaluated here.

use std::str::FromStr;

use eyrie_topology::NetworkNode;

use crate::evaluate::Score;
use crate::method::Candidate;
use crate::traffic::Rank;

/// The criterion by which a plan is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Objective {
    /// The lowest busiest link, then the shortest step, then the fewest moves. For traffic of
    /// several rounds, or without any bytes, the busiest link says little: there the step is first.
    BusiestLink,
    /// The shortest time for the rest of the job: iterations × step + moves.
    TotalTime { iterations: u64 },
    /// The lowest `per_message × busiest link + per_move × ranks moved`.
    Weighted { per_message: f64, per_move: f64 },
}

/// `load=1,moved=0.01`: the weights of a message on the busiest link, and of a rank that moves.
impl FromStr for Objective {
    type Err = String;

    fn from_str(text: &str) -> Result<Objective, String> {
        let mut per_message = 0.0;
        let mut per_move = 0.0;
        for part in text.split(',') {
            let value = part.split_once('=').and_then(|(k, v)| Some((k, v.parse::<f64>().ok()?)));
            match value.filter(|(_, v)| v.is_finite() && *v >= 0.0) {
                Some(("load", v)) => per_message = v,
                Some(("moved", v)) => per_move = v,
                _ => {
                    return Err(format!(
                        "`{part}`: write load=NUMBER,moved=NUMBER, both at least 0"
                    ))
                }
            }
        }
        Ok(Objective::Weighted { per_message, per_move })
    }
}

/// How long it takes to move a rank, as an option has it where that was not said.
pub const MOVE_COST: &str = "1s";

/// What moves cost and how a plan is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    pub objective: Objective,
    /// Seconds for each rank that moves: images go through the store, one after the other.
    pub move_s: f64,
    /// Most seconds that the moves of one plan may take. The moves of displaced ranks cannot be
    /// avoided.
    pub budget_s: Option<f64>,
    /// Whether the program can redistribute its work, so that the search may choose squeezing.
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

/// The cost of a placement by the weights, the most important figure first.
#[derive(Debug, Clone, Copy)]
pub struct PlanCost([f64; 4]);

impl PartialEq for PlanCost {
    fn eq(&self, other: &PlanCost) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for PlanCost {}

impl Ord for PlanCost {
    fn cmp(&self, other: &PlanCost) -> std::cmp::Ordering {
        self.0
            .iter()
            .zip(&other.0)
            .map(|(a, b)| a.total_cmp(b))
            .find(|o| o.is_ne())
            .unwrap_or(std::cmp::Ordering::Equal)
    }
}

impl PartialOrd for PlanCost {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Ranks placements by the weights, relative to where the job is now.
pub struct Ranking<'a> {
    pub weights: Weights,
    /// Bytes per second of a link.
    pub bandwidth: f64,
    pub now: &'a [NetworkNode],
    /// Whether the step comes before the busiest link (see [`Objective::BusiestLink`]).
    pub time_first: bool,
}

impl Ranking<'_> {
    /// Ranks that are not where they are now.
    pub fn moved(&self, placement: &[NetworkNode]) -> usize {
        self.now.iter().zip(placement).filter(|(a, b)| a != b).count()
    }

    /// The same after further moves; the placement is not copied.
    pub fn moved_after(&self, placement: &[NetworkNode], moves: &[(Rank, NetworkNode)]) -> usize {
        let away = |rank: Rank, node: NetworkNode| usize::from(self.now[rank as usize] != node);
        let change = moves.iter().fold(0i64, |sum, &(rank, to)| {
            sum + away(rank, to) as i64 - away(rank, placement[rank as usize]) as i64
        });
        (self.moved(placement) as i64 + change) as usize
    }

    /// Whether only the load decides.
    pub fn load_only(&self) -> bool {
        self.weights.objective == Objective::BusiestLink
            && self.weights.budget_s.is_none()
            && !self.time_first
    }

    pub fn proxy(&self, candidate: &Candidate) -> PlanCost {
        self.proxy_of(candidate.counted.score, self.moved(&candidate.occupancy.rank_at))
    }

    pub fn proxy_of(&self, score: Score, moved: usize) -> PlanCost {
        let step_s = score.bytes as f64 / self.bandwidth;
        let squares = score.squares as f64;
        let [over, first, ..] = self.cost(score.messages, step_s, moved).0;
        PlanCost([over, first, squares, moved as f64])
    }

    /// The exact cost: seconds over the budget, then the objective.
    pub fn cost(&self, messages: u64, step_s: f64, moved: usize) -> PlanCost {
        let moves_s = self.weights.move_s * moved as f64;
        let over = self.weights.budget_s.map_or(0.0, |budget| (moves_s - budget).max(0.0));
        let load = messages as f64;
        let moved = moved as f64;
        PlanCost(match self.weights.objective {
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
