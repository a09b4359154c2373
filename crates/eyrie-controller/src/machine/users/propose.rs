//! Which ranks should move and what that brings, by what was measured, in the words of a proposal.
//! Pure; the plan itself is eyrie-placement's.

use crate::machine::outbox::speed::Speed;
use eyrie_interface::proposal::{Goal, NodeShare, Proposal, RankShare};
use eyrie_placement::balance::{
    balance, consolidate, Balance, Carried, Change, Measured, Processors, RankLoad, TooFew, NOISE,
};
use eyrie_placement::{Links, Move, NodeState};
use eyrie_units::{counted, time};
use eyrie_wire::control::{NodeUsage, RankUsage};
use eyrie_wire::{NodeId, Rank};
use std::collections::BTreeMap;
use std::time::Duration;

/// A node that was measured.
pub struct Seen<'a> {
    pub node: NodeId,
    pub usage: &'a NodeUsage,
    /// Ranks may come to it.
    pub open: bool,
    pub slots: u32,
    /// The ranks that run on it.
    pub ranks: Vec<&'a RankUsage>,
}

/// What should be done to come to the goal.
///
/// # Errors
/// Why it cannot be reached, for the user.
pub fn propose(
    goal: Goal,
    seen: &[Seen<'_>],
    speed: &Speed,
    links: Option<&Links<'_>>,
) -> Result<Proposal, String> {
    let known = Known::new(seen, speed);
    let after = |moves: &[(u32, u32)]| {
        let on = |(rank, at): &(u32, u32)| (*rank, known.nodes[*at as usize].0);
        links?.busiest_after(&moves.iter().map(on).collect::<Vec<_>>())
    };
    let carried = links.is_some().then_some(&after as Carried<'_>);
    match goal {
        Goal::Balance { payback } => {
            let found = balance(&known.measured, payback.as_secs_f64(), carried);
            Ok(known.balanced(seen, &found, payback))
        }
        Goal::Consolidate { nodes } => {
            let found = consolidate(&known.measured, nodes as usize, carried)
                .map_err(|why| too_few(why, nodes, known.measured.ranks.len()))?;
            let left = found.left.iter().map(|at| known.nodes[*at as usize]).collect();
            let why = format!(
                "{}, {} in all",
                counted(found.moves.len() as u64, "move"),
                eyrie_units::bytes(known.bytes(&found.moves))
            );
            Ok(known.shown(seen, &[], &found.moves, left, why))
        }
    }
}

fn too_few(why: TooFew, nodes: u32, ranks: usize) -> String {
    match why {
        TooFew::Already(used) => {
            let have = if used == 1 { "has" } else { "have" };
            let used = counted(used as u64, "node");
            format!("{used} {have} ranks, which is no more than {nodes}: nothing is to be done")
        }
        TooFew::Slots(slots) => format!(
            "{ranks} ranks do not fit into the {slots} slots of {nodes} nodes: give more --nodes"
        ),
    }
}

/// The measurement as it is planned with; nodes are numbered as they stand in the list.
struct Known {
    nodes: Vec<NodeId>,
    measured: Measured,
}

impl Known {
    fn new(seen: &[Seen<'_>], speed: &Speed) -> Known {
        let place_of = places(seen);
        let count = place_of.iter().max().map_or(0, |last| last + 1);
        let processors = (0..count).map(|place| processors(seen, &place_of, place)).collect();
        let node = |s: &Seen<'_>| eyrie_placement::Node {
            state: if s.open { NodeState::Open } else { NodeState::Closed },
            ranks: s.ranks.len() as u32,
            ..eyrie_placement::Node::open(s.slots)
        };
        let nodes = seen.iter().map(node).collect();
        let ranks = (0..).zip(seen).flat_map(|(at, s)| {
            s.ranks.iter().map(move |usage| RankLoad {
                rank: usage.instance.rank.0,
                node: at,
                uses: share(usage.used.saturating_sub(usage.polled), s.usage.over),
                memory: usage.memory,
                cost: speed.cost(usage.memory).as_secs_f64(),
            })
        });
        let measured = Measured { ranks: ranks.collect(), nodes, place_of, places: processors };
        Known { nodes: seen.iter().map(|s| s.node).collect(), measured }
    }

    fn bytes(&self, moves: &[Move]) -> u64 {
        let of = |m: &Move| self.measured.ranks.iter().find(|load| load.rank == m.rank);
        moves.iter().filter_map(of).map(|load| load.memory).sum()
    }

    fn balanced(&self, seen: &[Seen<'_>], found: &Balance, payback: Duration) -> Proposal {
        let moves: Vec<Move> = found.moves().collect();
        let why = match found.too_dear.first() {
            _ if !moves.is_empty() => format!(
                "the busiest node computes {} of the time now, and {} after these moves: each \
                 second then takes {}",
                percent(found.before),
                percent(found.after()),
                time(Duration::from_secs_f64((1.0 - found.before + found.after()).max(0.0))),
            ),
            Some(_) => self.too_dear(found.before, &found.too_dear, payback),
            None => self.even(found.before),
        };
        self.shown(seen, &found.steps, &moves, Vec::new(), why)
    }

    /// Why nothing of what would make the busiest node less busy is done.
    fn too_dear(&self, before: f64, changes: &[Change], payback: Duration) -> String {
        let moves: Vec<String> = (changes.iter().flat_map(|change| &change.moves))
            .map(|m| format!("rank {} to node {}", m.rank, self.nodes[m.to as usize]))
            .collect();
        let moves = moves.join(", ");
        let then = changes.last().map_or(before, |change| change.then);
        let gain = before - then;
        let cost = changes.iter().map(|change| change.cost).sum::<f64>();
        if gain <= NOISE {
            return format!(
                "no move pays: the busiest node computes {} of the time, and {moves} would change \
                 that by less than what is chance",
                percent(before)
            );
        }
        let after = |seconds: f64| time(Duration::from_secs_f64(seconds.min(1e9)));
        format!(
            "no move pays: the busiest node computes {} of the time; {moves} would make that {}, \
             but may cost {}, which has paid after {} (--payback is {})",
            percent(before),
            percent(then),
            after(cost),
            after(cost / gain),
            time(payback),
        )
    }

    fn even(&self, before: f64) -> String {
        let measured = &self.measured;
        let alone = measured.ranks.iter().max_by(|a, b| a.uses.total_cmp(&b.uses));
        let of_place = |load: &RankLoad| {
            let place = measured.place_of[load.node as usize];
            load.uses / measured.places[place].free()
        };
        match alone.filter(|load| load.uses.max(of_place(load)) >= before - 0.01) {
            _ if measured.places.len() < 2 => {
                "no move brings anything: all nodes have the same processors".into()
            }
            Some(load) => format!(
                "no move brings anything: rank {} alone computes {} of the time",
                load.rank,
                percent(load.uses)
            ),
            None => format!(
                "no move brings anything: the busiest node computes {} of the time, and no move \
                 makes that less",
                percent(before)
            ),
        }
    }

    /// What the user is shown; `steps` say what single moves bring.
    fn shown(
        &self,
        seen: &[Seen<'_>],
        steps: &[Change],
        moves: &[Move],
        left: Vec<NodeId>,
        why: String,
    ) -> Proposal {
        let mut after = self.measured.clone();
        for load in &mut after.ranks {
            let gone = moves.iter().find(|m| m.rank == load.rank);
            load.node = gone.map_or(load.node, |m| m.to);
        }
        let now = self.measured.loads();
        let then = after.loads();
        let busiest = |loads: &[f64]| loads.iter().copied().fold(0.0, f64::max);
        let over = seen.iter().map(|s| s.usage.over).max().unwrap_or_default();
        Proposal {
            over: over.as_secs_f64(),
            nodes: self.node_shares(&now, &then),
            ranks: self.rank_shares(seen, steps, moves),
            left,
            busiest: busiest(&now),
            then: busiest(&then),
            why,
        }
    }

    fn node_shares(&self, now: &[f64], then: &[f64]) -> Vec<NodeShare> {
        let place_of = &self.measured.place_of;
        let share = |(at, place): (usize, &usize)| {
            let Processors { count, others } = self.measured.places[*place];
            let here = self.measured.ranks.iter().filter(|load| load.node as usize == at);
            let first = place_of.iter().position(|other| other == place);
            NodeShare {
                node: self.nodes[at],
                processors: count,
                others,
                computing: here.map(|load| load.uses).sum(),
                busy: now[*place],
                then: then[*place],
                same_as: first.filter(|first| *first != at).map(|first| self.nodes[first]),
            }
        };
        place_of.iter().enumerate().map(share).collect()
    }

    fn rank_shares(&self, seen: &[Seen<'_>], steps: &[Change], moves: &[Move]) -> Vec<RankShare> {
        let mut before = self.measured.loads().into_iter().fold(0.0, f64::max);
        let mut brings = BTreeMap::new();
        for step in steps {
            brings.extend(step.moves.first().map(|m| (m.rank, before - step.then)));
            before = step.then;
        }
        let usages = seen.iter().flat_map(|s| s.ranks.iter().map(|usage| (usage, s.usage.over)));
        let share = |(load, (usage, over)): (&RankLoad, (&&RankUsage, Duration))| RankShare {
            rank: Rank(load.rank),
            node: self.nodes[load.node as usize],
            computing: load.uses,
            polling: share(usage.polled, over),
            memory: load.memory,
            to: (moves.iter().find(|m| m.rank == load.rank)).map(|m| self.nodes[m.to as usize]),
            cost: load.cost,
            brings: brings.get(&load.rank).copied(),
        };
        let mut all: Vec<RankShare> = self.measured.ranks.iter().zip(usages).map(share).collect();
        all.sort_by_key(|share| share.rank);
        all
    }
}

/// For each node the number of its place: nodes with a processor in common have the same one.
fn places(seen: &[Seen<'_>]) -> Vec<usize> {
    let mut places: Vec<usize> = (0..seen.len()).collect();
    for a in 0..seen.len() {
        for b in 0..a {
            let (one, other) = (seen[a].usage, seen[b].usage);
            let common = one.kernel == other.kernel
                && one.processors.iter().any(|n| other.processors.contains(n));
            if common {
                let (from, to) = (places[a], places[b]);
                places.iter_mut().filter(|place| **place == from).for_each(|place| *place = to);
            }
        }
    }
    let mut known: Vec<usize> = Vec::new();
    for place in &mut places {
        let at = known.iter().position(|other| other == place).unwrap_or_else(|| {
            known.push(*place);
            known.len() - 1
        });
        *place = at;
    }
    places
}

/// The processors of a place, and how many of them are busy with what is no rank of the job.
fn processors(seen: &[Seen<'_>], place_of: &[usize], place: usize) -> Processors {
    let here: Vec<&Seen<'_>> =
        seen.iter().zip(place_of).filter(|(_, of)| **of == place).map(|(s, _)| s).collect();
    let numbers: std::collections::BTreeSet<u32> =
        here.iter().flat_map(|s| s.usage.processors.iter().copied()).collect();
    let limit: u32 = here.iter().map(|s| s.usage.limit).sum();
    let busy = here.iter().map(|s| share(s.usage.busy, s.usage.over)).fold(0.0, f64::max);
    let of_ranks: f64 =
        here.iter().flat_map(|s| s.usage.ranks.iter().map(|r| share(r.used, s.usage.over))).sum();
    let count = f64::from(limit.min(numbers.len() as u32).max(1));
    Processors { count, others: (busy - of_ranks).clamp(0.0, count) }
}

fn share(used: Duration, over: Duration) -> f64 {
    used.as_secs_f64() / over.as_secs_f64().max(1e-9)
}

fn percent(share: f64) -> String {
    format!("{:.0} %", (share * 100.0).min(100.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::Incarnation;
    use eyrie_wire::{Rank, RankInstance};

    const PAYBACK: Goal = Goal::Balance { payback: Duration::from_secs(60) };

    /// A node with one processor, and for each rank the share of a second that it computes.
    fn usage(processor: u32, ranks: &[(Rank, u64)]) -> NodeUsage {
        let rank = |(rank, ms): &(Rank, u64)| RankUsage {
            instance: RankInstance { rank: *rank, incarnation: Incarnation(1) },
            used: Duration::from_millis(ms + 50),
            polled: Duration::from_millis(50),
            memory: 1 << 20,
        };
        NodeUsage {
            over: Duration::from_secs(1),
            kernel: "k".into(),
            processors: vec![processor],
            limit: 1,
            busy: Duration::from_secs(1),
            ranks: ranks.iter().map(rank).collect(),
        }
    }

    fn proposed(goal: Goal, usages: &[NodeUsage]) -> Result<Proposal, String> {
        let seen = |(node, usage): (usize, &'_ NodeUsage)| -> NodeId {
            assert!(usage.limit > 0);
            NodeId(node as u32)
        };
        let nodes: Vec<NodeId> = usages.iter().enumerate().map(seen).collect();
        let seen: Vec<Seen<'_>> = (nodes.iter().zip(usages))
            .map(|(node, usage)| Seen {
                node: *node,
                usage,
                open: true,
                slots: 4,
                ranks: usage.ranks.iter().collect(),
            })
            .collect();
        propose(goal, &seen, &Speed::default(), None)
    }

    #[test]
    fn what_is_polled_is_not_computed() {
        let found =
            proposed(PAYBACK, &[usage(0, &[(Rank(0), 900)]), usage(1, &[(Rank(1), 0)])]).unwrap();
        assert!((found.ranks[0].computing - 0.9).abs() < 1e-9, "{found:?}");
        assert!((found.ranks[1].computing, found.ranks[1].polling) == (0.0, 0.05), "{found:?}");
        assert!(found.why.contains("rank 0 alone computes 90 %"), "{}", found.why);
    }

    #[test]
    fn moves_come_with_what_they_bring() {
        let mut usages = [usage(0, &[(Rank(0), 400), (Rank(1), 400)]), usage(1, &[(Rank(2), 100)])];
        usages[1].busy = Duration::from_millis(150);
        let found = proposed(PAYBACK, &usages).unwrap();
        let moved: Vec<_> = found.ranks.iter().filter_map(|r| Some((r.rank, r.to?))).collect();
        assert_eq!(moved, [(Rank(0), NodeId(1))]);
        // Others have a tenth of the first node, and nothing of the second one.
        let brings = found.ranks[0].brings.unwrap_or(0.0);
        assert!((found.busiest - found.then - brings).abs() < 1e-9, "{found:?}");
        assert!(found.why.contains("after these moves"), "{}", found.why);
    }

    #[test]
    fn nodes_with_the_same_processors_are_one_place() {
        let usages = [usage(0, &[(Rank(0), 400), (Rank(1), 400)]), usage(0, &[])];
        let found = proposed(PAYBACK, &usages).unwrap();
        assert_eq!(found.nodes[1].same_as, Some(NodeId(0)));
        assert!(found.why.contains("the same processors"), "{}", found.why);
        let mut elsewhere = usages;
        elsewhere[1].kernel = "other".into();
        elsewhere[1].busy = Duration::ZERO;
        assert!(proposed(PAYBACK, &elsewhere)
            .unwrap()
            .ranks
            .iter()
            .any(|r| r.to == Some(NodeId(1))));
    }

    #[test]
    fn fewer_nodes_or_why_not() {
        let usages = [usage(0, &[(Rank(0), 10), (Rank(1), 10)]), usage(1, &[(Rank(2), 10)])];
        let found = proposed(Goal::Consolidate { nodes: 1 }, &usages).unwrap();
        assert_eq!((found.left, found.ranks[2].to), (vec![NodeId(1)], Some(NodeId(0))));
        let refused = |nodes, usages: &[NodeUsage]| {
            proposed(Goal::Consolidate { nodes }, usages).unwrap_err()
        };
        assert!(refused(2, &usages).starts_with("2 nodes have ranks"));
        let full = [
            usage(0, &[(Rank(0), 1), (Rank(1), 1), (Rank(3), 1), (Rank(4), 1)]),
            usage(1, &[(Rank(2), 10)]),
        ];
        assert!(refused(1, &full).contains("4 slots of 1 nodes"));
    }
}
