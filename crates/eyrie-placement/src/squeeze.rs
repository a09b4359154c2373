//! Squeezing: the job goes on without the failed node, and its neighbours share the work. No rank
//! moves and no spare is needed, but the program must be able to redistribute its work ("Overhead
//! of using spare nodes", IJHPCA 2020).

use std::collections::{BTreeMap, BTreeSet};

use eyrie_topology::{coords, NetworkNode, RouteError};

use crate::evaluate::Evaluator;
use crate::job::Job;
use crate::traffic::{Phase, Rank, RankMessage, Traffic};

/// A squeezed job.
#[derive(Debug, Clone, PartialEq)]
pub struct Squeezed {
    /// What the remaining ranks send; failed ranks send nothing.
    pub traffic: Traffic,
    /// Most communication partners of one rank.
    pub partners: usize,
    /// Most work of one rank; 1 is its own work before.
    pub work: f64,
    /// (N − n) / N with n of N ranks lost.
    pub efficiency: f64,
}

/// Shares the work of ranks on failed nodes among their neighbours on one axis of the job's grid:
/// half and half between two, or all to the only one. It uses the axis with the lowest busiest
/// link.
pub fn squeeze(
    job: &Job,
    shape: &[usize],
    evaluator: &Evaluator,
    failed: &[NetworkNode],
) -> Result<Option<Squeezed>, RouteError> {
    let failed: BTreeSet<NetworkNode> = failed.iter().copied().collect();
    let lost: BTreeSet<Rank> =
        (0..job.ranks() as Rank).filter(|&r| failed.contains(&job.at[r as usize])).collect();
    let mut best = None;
    for axis in 0..shape.len() {
        let Some(squeezed) = along(job, shape, axis, &lost) else { continue };
        let evaluator = Evaluator { network: evaluator.network, traffic: &squeezed.traffic };
        let score = evaluator.count(job.at.clone())?.score;
        let key = (score, squeezed.work.to_bits());
        if best.as_ref().is_none_or(|(k, _)| key < *k) {
            best = Some((key, squeezed));
        }
    }
    Ok(best.map(|(_, squeezed)| squeezed))
}

fn along(job: &Job, shape: &[usize], axis: usize, lost: &BTreeSet<Rank>) -> Option<Squeezed> {
    // The heirs of a lost rank: the nearest live ranks below and above it on the axis.
    let mut heirs: BTreeMap<Rank, Vec<(Rank, f64)>> = BTreeMap::new();
    let stride = coords::strides(shape)[axis] as Rank;
    for &rank in lost {
        let at = coords::of(rank as usize, shape)[axis];
        let below = (1..=at).map(|d| rank - d as Rank * stride).find(|r| !lost.contains(r));
        let above =
            (1..shape[axis] - at).map(|d| rank + d as Rank * stride).find(|r| !lost.contains(r));
        let live: Vec<Rank> = below.into_iter().chain(above).collect();
        if live.is_empty() {
            return None;
        }
        heirs.insert(rank, live.iter().map(|&r| (r, 1.0 / live.len() as f64)).collect());
    }
    let mut work = vec![1.0; job.ranks()];
    for shares in heirs.values() {
        for &(r, share) in shares {
            work[r as usize] += share;
        }
    }
    let own = |rank: Rank| heirs.get(&rank).cloned().unwrap_or_else(|| vec![(rank, 1.0)]);
    let mut partners = vec![BTreeSet::new(); job.ranks()];
    let phases = job
        .traffic
        .phases
        .iter()
        .map(|phase| {
            let mut bytes: BTreeMap<(Rank, Rank), f64> = BTreeMap::new();
            for m in &phase.messages {
                for (from, to, share) in split(m, &own) {
                    *bytes.entry((from, to)).or_default() += share * m.bytes as f64;
                    partners[from as usize].insert(to);
                    partners[to as usize].insert(from);
                }
            }
            let message = |((from, to), bytes): (&(Rank, Rank), &f64)| RankMessage {
                from: *from,
                to: *to,
                bytes: bytes.round() as u64,
                count: 1,
            };
            Phase::new(job.ranks(), phase.repeat, bytes.iter().map(message).collect())
        })
        .collect();
    Some(Squeezed {
        traffic: Traffic { name: "squeezed".into(), ranks: job.ranks(), phases },
        partners: partners.iter().map(BTreeSet::len).max().unwrap_or(0),
        work: work.iter().copied().fold(1.0, f64::max),
        efficiency: 1.0 - lost.len() as f64 / job.ranks() as f64,
    })
}

/// Splits a message when lost ranks have heirs: each gets its share. The border between an heir and
/// the rank it inherits from disappears; half of it and half of the far border make up the face
/// between the two heirs.
fn split(m: &RankMessage, own: &impl Fn(Rank) -> Vec<(Rank, f64)>) -> Vec<(Rank, Rank, f64)> {
    let (senders, receivers) = (own(m.from), own(m.to));
    let mut out = Vec::new();
    for &(from, a) in &senders {
        for &(to, b) in &receivers {
            if from != to {
                out.push((from, to, a * b));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_topology::cartesian::Cartesian;
    use eyrie_topology::{Layout, Network};

    fn squeezed(failed: &[NetworkNode]) -> Squeezed {
        let mesh = Cartesian::mesh(&[5, 5]);
        let traffic = Traffic::parse("stencil5", &[5, 5], 1000).unwrap();
        let job =
            Job::new(Layout::natural(&mesh).unwrap(), (0..25).collect(), traffic.clone()).unwrap();
        let evaluator = Evaluator { network: &mesh as &dyn Network, traffic: &traffic };
        squeeze(&job, &[5, 5], &evaluator, failed).unwrap().unwrap()
    }

    #[test]
    fn one_failure_gives_half_more_work_and_six_partners() {
        let s = squeezed(&[12]);
        assert_eq!((s.partners, s.work), (6, 1.5));
        assert!((s.efficiency - 24.0 / 25.0).abs() < 1e-12);
        // The two heirs exchange a whole face, the orthogonal neighbours half a face with each.
        let bytes = |from, to| {
            let messages = &s.traffic.phases[0].messages;
            messages.iter().find(|m| (m.from, m.to) == (from, to)).map(|m| m.bytes)
        };
        let row = bytes(11, 13).is_some();
        let ((a, b), side) = if row { ((11, 13), 7) } else { ((7, 17), 11) };
        assert_eq!((bytes(a, b), bytes(b, a)), (Some(1000), Some(1000)));
        assert_eq!((bytes(side, a), bytes(side, b)), (Some(500), Some(500)));
        assert!(s.traffic.phases[0].messages.iter().all(|m| m.from != 12 && m.to != 12));
    }

    #[test]
    fn a_corner_may_have_one_heir_only() {
        assert_eq!(squeezed(&[0]).work, 2.0);
    }
}
