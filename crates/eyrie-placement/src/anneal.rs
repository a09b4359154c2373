//! Better placements of a job whose ranks all live: ranks change places, or go to nodes with room.
//! First every step is the best one of those tried (few moves), then simulated annealing leads away
//! from where the job is (Kirkpatrick, Gelatt and Vecchi, Science 220, 1983). The sum of squared
//! link loads is what falls: the busiest link alone does not say which of two steps is better. The
//! same input has the same result: chance is seeded. Never decides whether moves pay.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use eyrie_topology::{NetworkNode, RouteError};

use crate::evaluate::Scratch;
use crate::method::{Candidate, Setting, Step};
use crate::traffic::Rank;

/// Most steps of the descent, and steps that each of them is chosen from.
const STEPS: usize = 48;
const TRIED: usize = 1500;
/// Steps that annealing tries, in all and for each rank, and messages of moved ranks that it may
/// count for all of them.
const ANNEALED: usize = 20_000;
const TRIED_EACH: usize = 500;
const COUNTED: usize = 2_000_000;
/// The first and the last temperature, as shares of the sum of squares of a rank.
const HOT: f64 = 0.5;
const COLD: f64 = 0.005;

/// Candidates that lead from `start` to better placements: each step of the descent, and what
/// annealing has found.
///
/// # Errors
/// Where the network has no routes for the traffic.
pub fn candidates(
    setting: &Setting,
    start: &Candidate,
    scratch: &mut Scratch,
) -> Result<Vec<Candidate>, RouteError> {
    let mut random = SmallRng::seed_from_u64(start.occupancy.rank_at.len() as u64);
    let mut found = descend(setting, start, &mut random, scratch)?;
    let annealed = anneal(setting, start, &mut random, scratch)?;
    found.extend(descend(setting, &annealed, &mut random, scratch)?.pop());
    found.push(annealed);
    Ok(found)
}

/// Takes the best of the steps tried, as long as one helps.
fn descend(
    setting: &Setting,
    start: &Candidate,
    random: &mut SmallRng,
    scratch: &mut Scratch,
) -> Result<Vec<Candidate>, RouteError> {
    let mut path: Vec<Candidate> = Vec::new();
    for _ in 0..STEPS {
        let here = path.last().unwrap_or(start);
        let moves = steps(here, random);
        let scores = setting.evaluator.score_all(&here.counted, &moves, scratch);
        let scored = scores.into_iter().zip(moves).enumerate();
        let scored = scored.filter_map(|(n, (score, moves))| Some((score?.squares, n, moves)));
        match scored.min_by_key(|(squares, n, _)| (*squares, *n)) {
            Some((squares, _, moves)) if squares < here.counted.score.squares => {
                let next = taken(setting, here, moves, scratch)?;
                path.push(next);
            }
            _ => break,
        }
    }
    Ok(path)
}

/// All steps from here, or as many as are tried.
fn steps(here: &Candidate, random: &mut SmallRng) -> Vec<Vec<(Rank, NetworkNode)>> {
    let ranks = here.occupancy.rank_at.len();
    let free = here.occupancy.with_room(1, &[]);
    if ranks * (ranks + free.len()) <= 2 * TRIED {
        let swaps = (0..ranks).flat_map(|a| (0..a).map(move |b| (a as Rank, b as Rank)));
        let swaps = swaps.filter_map(|(a, b)| swap(here, a, b));
        let to_free = (0..ranks as Rank).flat_map(|a| free.iter().map(move |to| vec![(a, *to)]));
        return swaps.chain(to_free).collect();
    }
    (0..TRIED).filter_map(|_| any_step(here, &free, random)).collect()
}

/// Two ranks of different nodes change places.
fn swap(here: &Candidate, a: Rank, b: Rank) -> Option<Vec<(Rank, NetworkNode)>> {
    let at = |rank: Rank| here.occupancy.rank_at[rank as usize];
    (at(a) != at(b)).then(|| vec![(a, at(b)), (b, at(a))])
}

/// A rank changes places with another one, or goes to a node with room; each as often as there are
/// such partners.
fn any_step(
    here: &Candidate,
    free: &[NetworkNode],
    random: &mut SmallRng,
) -> Option<Vec<(Rank, NetworkNode)>> {
    let ranks = here.occupancy.rank_at.len();
    let rank = random.gen_range(0..ranks) as Rank;
    match random.gen_range(0..ranks + free.len()) {
        other if other < ranks => swap(here, rank, other as Rank),
        to => Some(vec![(rank, free[to - ranks])]),
    }
}

fn taken(
    setting: &Setting,
    here: &Candidate,
    moves: Vec<(Rank, NetworkNode)>,
    scratch: &mut Scratch,
) -> Result<Candidate, RouteError> {
    let words = match moves[..] {
        [(a, _), (b, _)] => format!("ranks {a} and {b} change places"),
        _ => {
            let to =
                |(rank, to): &(Rank, NetworkNode)| format!("rank {rank} to {}", setting.name(*to));
            moves.iter().map(to).collect::<Vec<_>>().join(", ")
        }
    };
    setting.take(here, Step { moves, words }, scratch)
}

/// Also takes steps that do not help, ever more seldom. The best placement on the way.
fn anneal(
    setting: &Setting,
    start: &Candidate,
    random: &mut SmallRng,
    scratch: &mut Scratch,
) -> Result<Candidate, RouteError> {
    let ranks = start.occupancy.rank_at.len().max(1);
    let messages = setting.evaluator.traffic.messages().max(1);
    let tried = (COUNTED * ranks / (4 * messages)).min(ANNEALED).min(TRIED_EACH * ranks);
    let scale = start.counted.score.squares as f64 / ranks as f64;
    let mut here = start.clone();
    let mut best = start.clone();
    for n in 0..tried {
        let share = n as f64 / tried as f64;
        let temperature = scale * HOT * (COLD / HOT).powf(share);
        let free = here.occupancy.with_room(1, &[]);
        let Some(moves) = any_step(&here, &free, random) else { continue };
        let Ok(score) = setting.evaluator.score_moves(&here.counted, &moves, scratch) else {
            continue;
        };
        let worse = score.squares as f64 - here.counted.score.squares as f64;
        if worse > 0.0 && !random.gen_bool((-worse / temperature).exp().clamp(0.0, 1.0)) {
            continue;
        }
        here.occupancy.apply(&moves);
        here.counted = setting.evaluator.apply(&here.counted, &moves, scratch)?;
        if here.counted.score.squares < best.counted.score.squares {
            best = here.clone();
        }
    }
    if best.counted.score < start.counted.score {
        best.steps.push("ranks are placed anew".into());
    }
    Ok(best)
}
