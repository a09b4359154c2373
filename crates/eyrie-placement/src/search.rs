//! The search. A beam search tries orders of failures, slides of every dimension and substitutes,
//! from where the job is and from where it started. A local search on the busiest links follows.
//! Its caller ([`crate::plan`]) adds every published method's placement to the candidates, so that
//! it is never worse than the best of them.

use std::collections::HashSet;

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::SeedableRng;

use eyrie_topology::{NetworkNode, RouteError};

use crate::evaluate::{moved, place, Scratch};
use crate::method::{next_displaced, Candidate, Setting, Step};
use crate::objective::{PlanCost, Ranking};
use crate::traffic::{Rank, Traffic};

/// How much the search tries: less for larger jobs, so that a plan stays within seconds.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Candidates kept at each level of the beam.
    pub width: usize,
    /// Orders of the failures tried.
    pub orders: usize,
    /// Rounds of local search.
    pub rounds: usize,
}

impl Effort {
    /// The effort for a job with this traffic: less for more messages, and for collectives, where
    /// each round is counted.
    pub fn for_traffic(traffic: &Traffic) -> Self {
        match traffic.messages() {
            0..=1_000 if traffic.phases.len() == 1 => Effort { width: 6, orders: 8, rounds: 12 },
            0..=4_000 if traffic.phases.len() == 1 => Effort { width: 4, orders: 4, rounds: 8 },
            0..=40_000 => Effort { width: 3, orders: 3, rounds: 6 },
            40_001..=200_000 => Effort { width: 2, orders: 1, rounds: 2 },
            _ => Effort { width: 1, orders: 1, rounds: 0 },
        }
    }
}

/// Substitutes kept for each candidate before the beam is cut.
const SUBSTITUTES: usize = 6;

/// Good candidates reached from each of `starts` (whose displaced ranks are on `failed` nodes),
/// best first. `floor` is the load before any failure: once it is reached no more orders are tried.
pub fn candidates(
    setting: &Setting,
    starts: &[&Candidate],
    failed: &[NetworkNode],
    ranking: &Ranking,
    floor: u64,
    effort: Effort,
    scratch: &mut Scratch,
) -> Result<Vec<Candidate>, RouteError> {
    let mut found: Vec<Candidate> = Vec::new();
    'starts: for start in starts {
        let displaced = |&&n: &&NetworkNode| next_displaced(&start.occupancy, &[n]).is_some();
        let displaced: Vec<NetworkNode> = failed.iter().filter(displaced).copied().collect();
        for order in orders(&displaced, effort.orders) {
            found.extend(beam(setting, start, &order, ranking, effort.width, scratch)?);
            found.sort_by_key(|p| ranking.proxy(p));
            let mut seen = HashSet::new();
            found.retain(|s| seen.insert(s.occupancy.rank_at.clone()));
            found.truncate(effort.width.max(2));
            if ranking.load_only()
                && found.first().is_some_and(|s| s.counted.score.messages <= floor)
            {
                break 'starts;
            }
        }
    }
    let mut polished = Vec::new();
    for candidate in found.iter().take(2) {
        if effort.rounds > 0 && candidate.counted.score.messages > floor {
            polished.push(polish(setting, candidate, ranking, effort.rounds, scratch)?);
        }
    }
    found.extend(polished);
    found.sort_by_key(|p| ranking.proxy(p));
    Ok(found)
}

/// The given order, its reverse and seeded shuffles, without repetition.
fn orders(failed: &[NetworkNode], most: usize) -> Vec<Vec<NetworkNode>> {
    let mut rng =
        SmallRng::seed_from_u64(failed.iter().fold(1, |a, &n| a * 31 + u64::from(n) % 7919));
    let mut orders = vec![failed.to_vec()];
    let all: usize =
        (1..=failed.len()).try_fold(1usize, |a, b| a.checked_mul(b)).unwrap_or(usize::MAX);
    let mut reversed = failed.to_vec();
    reversed.reverse();
    for attempt in 0..4 * most {
        let next = if attempt == 0 {
            reversed.clone()
        } else {
            let mut order = failed.to_vec();
            order.shuffle(&mut rng);
            order
        };
        if orders.len() >= most.min(all) {
            break;
        }
        if !orders.contains(&next) {
            orders.push(next);
        }
    }
    orders
}

/// Handles the displaced ranks in this order, keeping the best `width` candidates after each.
fn beam(
    setting: &Setting,
    start: &Candidate,
    order: &[NetworkNode],
    ranking: &Ranking,
    width: usize,
    scratch: &mut Scratch,
) -> Result<Vec<Candidate>, RouteError> {
    let mut level = vec![start.clone()];
    let mut done = Vec::new();
    while !level.is_empty() {
        let mut next: Vec<(PlanCost, usize, Step)> = Vec::new();
        for (i, candidate) in level.iter().enumerate() {
            if let Some(rank) = next_displaced(&candidate.occupancy, order) {
                let keep = |proxy, step| next.push((proxy, i, step));
                expand(setting, candidate, rank, ranking, scratch, keep);
            }
        }
        done.extend(
            level.iter().filter(|s| next_displaced(&s.occupancy, order).is_none()).cloned(),
        );
        next.sort_by(|a, b| a.0.cmp(&b.0).then(a.2.moves.len().cmp(&b.2.moves.len())));
        let mut seen = HashSet::new();
        let mut following = Vec::new();
        for (_, i, step) in next {
            if following.len() == width {
                break;
            }
            if seen.insert(moved(&level[i].occupancy.rank_at, &step.moves)) {
                following.push(setting.take(&level[i], step, scratch)?);
            }
        }
        level = following;
    }
    Ok(done)
}

/// Every slide of every dimension and the best substitutes for `rank`.
fn expand(
    setting: &Setting,
    candidate: &Candidate,
    rank: Rank,
    ranking: &Ranking,
    scratch: &mut Scratch,
    mut keep: impl FnMut(PlanCost, Step),
) {
    let axes = setting.job.layout.dims().len();
    let slides: Vec<Step> =
        (1..=axes).flat_map(|k| setting.slides(&candidate.occupancy, rank, k, true)).collect();
    let substitutes = setting.substitutes(&candidate.occupancy, rank);
    let alone = one_of_several(setting, candidate, rank);
    for (steps, most) in [(slides, usize::MAX), (substitutes, SUBSTITUTES), (alone, SUBSTITUTES)] {
        let moves: Vec<_> = steps.iter().map(|s| s.moves.clone()).collect();
        let scores = setting.evaluator.score_all(&candidate.counted, &moves, scratch);
        let mut scored: Vec<_> = scores
            .into_iter()
            .zip(steps)
            .filter_map(|(score, step)| {
                let moved = ranking.moved_after(&candidate.occupancy.rank_at, &step.moves);
                Some((ranking.proxy_of(score?, moved), step))
            })
            .collect();
        scored.sort_by_key(|a| a.0);
        for (proxy, step) in scored.into_iter().take(most) {
            keep(proxy, step);
        }
    }
}

/// The steps that take a rank away from the others on its node.
fn one_of_several(setting: &Setting, candidate: &Candidate, rank: Rank) -> Vec<Step> {
    let occupancy = &candidate.occupancy;
    match occupancy.ranks_on(occupancy.rank_at[rank as usize]).nth(1) {
        Some(_) => setting.substitutes_alone(occupancy, rank),
        None => Vec::new(),
    }
}

/// Hot ranks whose moves are tried in a round of local search.
const HOT_RANKS: usize = 6;
/// Free nodes tried for each hot rank.
const FREE_NODES: usize = 24;

/// Moves, slides or swaps ranks whose messages cross the busiest link, as long as that helps.
fn polish(
    setting: &Setting,
    candidate: &Candidate,
    ranking: &Ranking,
    rounds: usize,
    scratch: &mut Scratch,
) -> Result<Candidate, RouteError> {
    let mut best = candidate.clone();
    for _ in 0..rounds {
        let mut steps = neighbours(setting, &best)?;
        // Two ranks of a plane slide it the same way.
        let mut seen = HashSet::new();
        steps.retain(|step| seen.insert(step.moves.clone()));
        let moves: Vec<_> = steps.iter().map(|s| s.moves.clone()).collect();
        let scores = setting.evaluator.score_all(&best.counted, &moves, scratch);
        let proxies = scores.into_iter().zip(steps).filter_map(|(score, step)| {
            let moved = ranking.moved_after(&best.occupancy.rank_at, &step.moves);
            Some((ranking.proxy_of(score?, moved), step))
        });
        match proxies.min_by(|a, b| a.0.cmp(&b.0)) {
            Some((proxy, step)) if proxy < ranking.proxy(&best) => {
                best = setting.take(&best, step, scratch)?;
            }
            _ => break,
        }
    }
    Ok(best)
}

fn neighbours(setting: &Setting, candidate: &Candidate) -> Result<Vec<Step>, RouteError> {
    let busiest = candidate.counted.busiest_link(setting.evaluator.network);
    let Some((phase, link)) = busiest else { return Ok(Vec::new()) };
    let traffic = setting.evaluator.traffic;
    let mut hot: Vec<Rank> = Vec::new();
    let mut route = Vec::new();
    for m in &traffic.phases[phase].messages {
        let placed = place(m, &candidate.counted.placement);
        route.clear();
        setting.evaluator.network.route(placed.from, placed.to, &mut route)?;
        if route.contains(&link) {
            hot.extend(
                [m.from, m.to].iter().filter(|r| !hot.contains(r)).copied().collect::<Vec<_>>(),
            );
        }
        if hot.len() >= HOT_RANKS {
            break;
        }
    }
    let mut steps = Vec::new();
    let axes = setting.job.layout.dims().len();
    for &rank in &hot {
        steps.extend(setting.substitutes(&candidate.occupancy, rank).into_iter().take(FREE_NODES));
        steps.extend(one_of_several(setting, candidate, rank).into_iter().take(FREE_NODES));
        steps.extend((1..=axes).flat_map(|k| setting.slides(&candidate.occupancy, rank, k, true)));
        let phase = &traffic.phases[phase];
        for &i in phase.of_rank(rank).iter().take(16) {
            let m = &phase.messages[i as usize];
            let other = if m.from == rank { m.to } else { m.from };
            let at = |r: Rank| candidate.occupancy.rank_at[r as usize];
            let words = format!("swap ranks {rank} and {other}");
            steps.push(Step { moves: vec![(rank, at(other)), (other, at(rank))], words });
        }
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_do_not_repeat_and_start_with_the_given_one() {
        let orders = orders(&[4, 9, 2], 8);
        assert_eq!(orders.len(), 6);
        assert_eq!(orders[0], [4, 9, 2]);
        let distinct: HashSet<_> = orders.iter().collect();
        assert_eq!(distinct.len(), 6);
        assert_eq!(super::orders(&[1], 8).len(), 1);
    }
}
