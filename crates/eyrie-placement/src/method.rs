//! The published methods, one step each: a displaced rank gets a node. Every method says when it is
//! stuck.

use eyrie_topology::{NetworkNode, RouteError};

use crate::evaluate::{Counted, Evaluator, Scratch};
use crate::job::{Job, Occupancy};
use crate::slide::Slide;
use crate::traffic::Rank;

/// How ranks of failed nodes get a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Method {
    /// Neighbours share the work; the program must support it.
    Squeeze,
    /// The first free spare of the list, for all ranks of the node.
    FirstFree,
    /// The free spare with the fewest messages on the busiest link, for all ranks of the node.
    Best0D,
    /// The best slide of k dimensions.
    Slide(usize),
    /// The highest feasible dimension first, down to best 0D.
    Hybrid,
    /// Never worse than the best of all these.
    Search,
}

/// The forms of a method, for `--help` and errors.
pub const FORMS: &str = "squeeze, first-free, 0d, 1d, 2d, 3d (any nd), hybrid, search or all";

/// The word for all methods.
pub const ALL: &str = "all";

impl Method {
    /// The methods that a text names, comma-separated, for a grid of so many axes.
    ///
    /// # Errors
    /// Names the first word that is no method, or none for such a grid.
    pub fn named(text: &str, axes: usize) -> Result<Vec<Method>, String> {
        if text == ALL {
            let mut methods = vec![Method::Squeeze];
            methods.extend(Method::published(axes));
            methods.push(Method::Search);
            return Ok(methods);
        }
        text.split(',')
            .map(|name| match Method::parse(name.trim()) {
                Some(Method::Slide(k)) if k > axes => {
                    Err(format!("{k}d: the grid has {axes} axes, so at most {axes}d"))
                }
                Some(method) => Ok(method),
                None => Err(format!("`{name}`: {FORMS}")),
            })
            .collect()
    }

    pub fn parse(text: &str) -> Option<Method> {
        Some(match text {
            "squeeze" => Method::Squeeze,
            "first-free" => Method::FirstFree,
            "0d" => Method::Best0D,
            "hybrid" => Method::Hybrid,
            "search" => Method::Search,
            _ => {
                let k: usize = text.strip_suffix('d')?.parse().ok()?;
                return (1..=16).contains(&k).then_some(Method::Slide(k));
            }
        })
    }

    pub fn name(&self) -> String {
        match self {
            Method::Squeeze => "squeeze".into(),
            Method::FirstFree => "first-free".into(),
            Method::Best0D => "0d".into(),
            Method::Slide(k) => format!("{k}d"),
            Method::Hybrid => "hybrid".into(),
            Method::Search => "search".into(),
        }
    }

    /// The published substitution methods for a grid of n axes.
    pub fn published(n: usize) -> Vec<Method> {
        let mut methods = vec![Method::FirstFree, Method::Best0D];
        methods.extend((1..=n).map(Method::Slide));
        methods.push(Method::Hybrid);
        methods
    }
}

/// Ranks and nodes with their link loads, and the steps that led here.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub occupancy: Occupancy,
    pub counted: Counted,
    pub steps: Vec<String>,
}

/// The moves of a step, and its description.
pub struct Step {
    pub moves: Vec<(Rank, NetworkNode)>,
    pub words: String,
}

/// What a step uses besides the candidate.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    pub job: &'a Job,
    pub evaluator: Evaluator<'a>,
    /// In the order of "first free".
    pub spares: &'a [NetworkNode],
}

impl Setting<'_> {
    /// Slides of k dimensions that have a spare at the end of every line.
    pub fn slides(
        &self,
        occupancy: &Occupancy,
        rank: Rank,
        k: usize,
        free_form: bool,
    ) -> Vec<Step> {
        let start = occupancy.rank_at[rank as usize];
        Slide::all(self.job.layout.dims().len(), k, free_form)
            .into_iter()
            .filter_map(|slide| {
                let moves = slide.moves(occupancy, &self.job.layout, start)?;
                let words = format!("{} from {}", slide.describe(), self.name(start));
                Some(Step { moves, words })
            })
            .collect()
    }

    /// The steps that move all ranks of this one's node to a node with room for them, one for each
    /// such node. Where there is none, those that move it alone.
    pub fn substitutes(&self, occupancy: &Occupancy, rank: Rank) -> Vec<Step> {
        let together: Vec<Rank> = occupancy.ranks_on(occupancy.rank_at[rank as usize]).collect();
        let steps = self.substitutes_of(occupancy, &together);
        if steps.is_empty() && together.len() > 1 {
            return self.substitutes_alone(occupancy, rank);
        }
        steps
    }

    /// The steps that move a rank, and no other, to a node with room for it.
    pub fn substitutes_alone(&self, occupancy: &Occupancy, rank: Rank) -> Vec<Step> {
        self.substitutes_of(occupancy, &[rank])
    }

    /// The steps that move these ranks, which are on one node.
    fn substitutes_of(&self, occupancy: &Occupancy, ranks: &[Rank]) -> Vec<Step> {
        let node = occupancy.rank_at[ranks[0] as usize];
        let from = self.name(node);
        let named = named(ranks);
        let free = occupancy.with_room(ranks.len(), self.spares).into_iter();
        // Its own node has room where not all of its slots are used.
        free.filter(|to| *to != node)
            .map(|to| Step {
                moves: ranks.iter().map(|rank| (*rank, to)).collect(),
                words: format!("{named} from {from} to {}", self.name(to)),
            })
            .collect()
    }

    /// A node's name: its coordinates in the grid, or the network's name for it.
    pub fn name(&self, node: NetworkNode) -> String {
        self.evaluator.network.vertex_name(node)
    }

    /// The step with the fewest messages on the busiest link, the first of several.
    fn best(&self, candidate: &Candidate, steps: Vec<Step>, scratch: &mut Scratch) -> Option<Step> {
        let moves: Vec<_> = steps.iter().map(|s| s.moves.clone()).collect();
        let scores = self.evaluator.score_all(&candidate.counted, &moves, scratch);
        let scored = scores.into_iter().zip(steps).filter_map(|(score, step)| Some((score?, step)));
        let ranked = scored.enumerate();
        ranked.min_by_key(|(i, (score, _))| (score.messages, *i)).map(|(_, (_, step))| step)
    }

    /// Finds a node for `rank` by a published method, or says why it is stuck.
    pub fn step(
        &self,
        method: Method,
        candidate: &Candidate,
        rank: Rank,
        scratch: &mut Scratch,
    ) -> Result<Result<Step, String>, RouteError> {
        let at = || self.name(candidate.occupancy.rank_at[rank as usize]);
        let no_spare = || format!("no free spare for rank {rank} of {}", at());
        let step = match method {
            Method::FirstFree => {
                self.substitutes(&candidate.occupancy, rank).into_iter().next().ok_or_else(no_spare)
            }
            Method::Best0D => {
                let steps = self.substitutes(&candidate.occupancy, rank);
                self.best(candidate, steps, scratch).ok_or_else(no_spare)
            }
            Method::Slide(k) => {
                let steps = self.slides(&candidate.occupancy, rank, k, false);
                self.best(candidate, steps, scratch).ok_or_else(|| {
                    format!("no {k}D slide from {}: no line of ranks ends at a free spare", at())
                })
            }
            Method::Hybrid => {
                for k in (1..=self.job.layout.dims().len()).rev() {
                    let steps = self.slides(&candidate.occupancy, rank, k, false);
                    if let Some(step) = self.best(candidate, steps, scratch) {
                        return Ok(Ok(step));
                    }
                }
                return self.step(Method::Best0D, candidate, rank, scratch);
            }
            Method::Squeeze | Method::Search => Err(format!("{} is no single step", method.name())),
        };
        Ok(step)
    }

    /// Takes steps until no rank is displaced. Ranks are handled in the order of `failed` nodes.
    pub fn settle(
        &self,
        method: Method,
        mut candidate: Candidate,
        failed: &[NetworkNode],
        scratch: &mut Scratch,
    ) -> Result<Result<Candidate, String>, RouteError> {
        while let Some(rank) = next_displaced(&candidate.occupancy, failed) {
            match self.step(method, &candidate, rank, scratch)? {
                Err(stuck) => return Ok(Err(stuck)),
                Ok(step) => candidate = self.take(&candidate, step, scratch)?,
            }
        }
        Ok(Ok(candidate))
    }

    /// The candidate after a step.
    pub fn take(
        &self,
        candidate: &Candidate,
        step: Step,
        scratch: &mut Scratch,
    ) -> Result<Candidate, RouteError> {
        let mut occupancy = candidate.occupancy.clone();
        occupancy.apply(&step.moves);
        let counted = self.evaluator.apply(&candidate.counted, &step.moves, scratch)?;
        let mut steps = candidate.steps.clone();
        steps.push(step.words);
        Ok(Candidate { occupancy, counted, steps })
    }
}

/// Ranks as a step names them.
fn named(ranks: &[Rank]) -> String {
    let numbers: Vec<String> = ranks.iter().map(Rank::to_string).collect();
    format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, numbers.join(", "))
}

/// The first displaced rank in the order of the failed nodes.
pub fn next_displaced(occupancy: &Occupancy, failed: &[NetworkNode]) -> Option<Rank> {
    failed.iter().find_map(|&node| occupancy.ranks_on(node).next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for method in [Method::Squeeze, Method::Search].into_iter().chain(Method::published(3)) {
            assert_eq!(Method::parse(&method.name()), Some(method));
        }
        assert_eq!(Method::parse("17d"), None);
        assert_eq!(Method::parse("best"), None);
    }
}
