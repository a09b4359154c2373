//! Which ranks of a running job should change their nodes, given what each rank computes and what
//! its node can do: so that the busiest node has less to do, or so that fewer nodes have ranks.
//! Moves nothing and measures nothing. It must never make the busiest node busier, or name a move
//! that costs more than it brings.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::{JobNode, Node};
use crate::plan::Move;
use crate::traffic::Rank;

/// A place: processors that ranks can use. Nodes on one host may have the same place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Processors {
    /// The number of processors.
    pub count: f64,
    /// How many of them other processes keep busy, which are no ranks of the job.
    pub others: f64,
}

impl Processors {
    /// What is left for ranks. Other processes never take all: the kernel shares.
    pub fn free(&self) -> f64 {
        (self.count - self.others).max(self.count / 20.0)
    }
}

/// A rank and its load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankLoad {
    pub rank: Rank,
    pub node: JobNode,
    /// Processors that its computation keeps busy, on average.
    pub uses: f64,
    /// Bytes that are sent when it moves.
    pub memory: u64,
    /// Seconds that the job may lose when it moves.
    pub cost: f64,
}

/// A measurement of the whole job.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measured {
    pub places: Vec<Processors>,
    pub nodes: Vec<Node>,
    /// By node: its processors, by their index in the list of places.
    pub place_of: Vec<usize>,
    pub ranks: Vec<RankLoad>,
}

impl Measured {
    /// The load of each place: what its ranks use, divided by what it has for them.
    pub fn loads(&self) -> Vec<f64> {
        let mut loads = vec![0.0; self.places.len()];
        for load in &self.ranks {
            let place = self.place_of[load.node as usize];
            loads[place] += load.uses / self.places[place].free();
        }
        loads
    }
}

/// Moves that belong together: one, or those of two ranks that change places.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    pub moves: Vec<Move>,
    /// The load of the busiest place after it.
    pub then: f64,
    /// Seconds that it costs.
    pub cost: f64,
}

/// The moves that pay, and the load that they lead to.
#[derive(Debug, Clone, PartialEq)]
pub struct Balance {
    /// The load of the busiest place before: 1 when its ranks cannot use more of it.
    pub before: f64,
    /// The steps to take, in this order.
    pub steps: Vec<Change>,
    /// Steps that would lower the load further, but cost more than they bring.
    pub too_dear: Vec<Change>,
}

impl Balance {
    pub fn after(&self) -> f64 {
        self.steps.last().map_or(self.before, |step| step.then)
    }

    pub fn moves(&self) -> impl Iterator<Item = Move> + '_ {
        self.steps.iter().flat_map(|step| step.moves.iter().copied())
    }
}

/// A gain below this may be chance: two measurements of the same job differ by more.
pub const NOISE: f64 = 0.05;
/// Loads that differ by less are equal.
const EPSILON: f64 = 1e-9;

/// What links carry when these ranks have gone to these nodes: of several steps after which nodes
/// are as busy, give or take what is chance, the one with the least is taken.
pub type Carried<'a> = &'a dyn Fn(&[(Rank, JobNode)]) -> Option<u64>;

/// Moves that lower the load of the busiest place, as long as they pay within `payback` seconds: in
/// each of these seconds the job gains as much as the busiest place is less busy.
pub fn balance(measured: &Measured, payback: f64, carried: Option<Carried<'_>>) -> Balance {
    let mut state = Arrangement::new(measured);
    state.carried = carried;
    let before = state.busiest();
    let mut steps = Vec::new();
    while let Some(step) = state.next() {
        steps.push(step);
    }
    let worth = paying(before, &steps, payback);
    let too_dear = steps.split_off(worth);
    Balance { before, steps, too_dear }
}

/// How many of the steps to take: as many as gain most, provided that no last part of them costs
/// more than it brings. Such a part may also begin after a step that may be chance by itself.
fn paying(before: f64, steps: &[Change], payback: f64) -> usize {
    let mut best = 0;
    let mut most = 0.0;
    let mut load = before;
    let mut cost = 0.0;
    for (taken, step) in (1..).zip(steps) {
        cost += step.cost;
        let gain = (before - step.then) * payback - cost;
        let gains = gain > most + EPSILON;
        if gains && load - step.then > NOISE {
            (best, load) = (taken, step.then);
        }
        most = gain.max(most);
    }
    best
}

/// Where ranks are during the search for moves.
struct Arrangement<'a> {
    measured: &'a Measured,
    /// By place: its load.
    loads: Vec<f64>,
    /// The nodes with the ranks that are on each.
    nodes: Vec<Node>,
    node_of: Vec<JobNode>,
    /// Ranks that have moved: a rank moves once.
    moved: Vec<bool>,
    carried: Option<Carried<'a>>,
    /// The lowest possible load: no move speeds up a rank that computes all the time.
    least: f64,
}

/// A possible step. Ranks are given by their index.
struct Candidate {
    rank: usize,
    to: JobNode,
    /// The rank that goes the other way.
    back: Option<usize>,
    /// The higher load of the two places after it.
    then: f64,
    cost: f64,
}

impl<'a> Arrangement<'a> {
    fn new(measured: &'a Measured) -> Arrangement<'a> {
        // A rank with several threads can use as many processors.
        let alone = |load: &RankLoad| load.uses / load.uses.ceil().max(1.0);
        let mut state = Arrangement {
            measured,
            loads: measured.loads(),
            nodes: measured.nodes.iter().map(|node| Node { ranks: 0, ..*node }).collect(),
            node_of: measured.ranks.iter().map(|load| load.node).collect(),
            moved: vec![false; measured.ranks.len()],
            carried: None,
            least: measured.ranks.iter().map(alone).fold(0.0, f64::max),
        };
        for load in &measured.ranks {
            state.nodes[load.node as usize].ranks += 1;
        }
        state
    }

    fn place(&self, node: JobNode) -> usize {
        self.measured.place_of[node as usize]
    }

    fn share(&self, uses: f64, place: usize) -> f64 {
        uses / self.measured.places[place].free()
    }

    fn busiest(&self) -> f64 {
        self.loads.iter().copied().fold(self.least, f64::max)
    }

    /// The next step that lowers the load of the busiest place, if there is one.
    fn next(&mut self) -> Option<Change> {
        let by_load =
            |(a, x): &(usize, &f64), (b, y): &(usize, &f64)| x.total_cmp(y).then(b.cmp(a));
        let (busiest, load) = self.loads.iter().enumerate().max_by(by_load)?;
        let load = *load;
        if load <= self.least + EPSILON {
            return None;
        }
        let mut all = self.candidates(busiest);
        let (best, _) = all.iter().enumerate().min_by(|(_, a), (_, b)| better(a, b))?;
        all.swap(0, best);
        let least = all[0].then;
        all.retain(|step| step.then < load - EPSILON && step.then <= least + NOISE);
        let best = self.of_alike(&all, |step| self.moves_of(step))?;
        Some(self.take(all.swap_remove(best)))
    }

    /// The first of these, or on a known network the one with which the busiest link has the least
    /// to carry.
    fn of_alike<T>(
        &self,
        alike: &[T],
        moves: impl Fn(&T) -> Vec<(Rank, JobNode)>,
    ) -> Option<usize> {
        let carried = |at: usize| {
            let mut after = self.gone();
            after.extend(moves(&alike[at]));
            self.carried.and_then(|carried| carried(&after)).unwrap_or(u64::MAX)
        };
        match (self.carried, alike.len()) {
            (Some(_), 2..) => (0..alike.len()).min_by_key(|at| (carried(*at), *at)),
            (_, number) => (number > 0).then_some(0),
        }
    }

    /// The ranks that have moved, and where they are.
    fn gone(&self) -> Vec<(Rank, JobNode)> {
        let moved = (0..self.moved.len()).filter(|rank| self.moved[*rank]);
        moved.map(|rank| (self.measured.ranks[rank].rank, self.node_of[rank])).collect()
    }

    fn moves_of(&self, step: &Candidate) -> Vec<(Rank, JobNode)> {
        let number = |rank: usize| self.measured.ranks[rank].rank;
        let back = step.back.map(|back| (number(back), self.node_of[step.rank]));
        std::iter::once((number(step.rank), step.to)).chain(back).collect()
    }

    /// All possible steps with a rank of this place.
    fn candidates(&self, from: usize) -> Vec<Candidate> {
        let here = |rank: &usize| self.place(self.node_of[*rank]) == from;
        let ranks: Vec<usize> =
            (0..self.node_of.len()).filter(|r| here(r) && !self.moved[*r]).collect();
        let others: Vec<usize> =
            (0..self.node_of.len()).filter(|r| !here(r) && !self.moved[*r]).collect();
        let targets: Vec<JobNode> =
            (0..self.loads.len()).filter(|to| *to != from).filter_map(|to| self.room(to)).collect();
        let mut all = Vec::new();
        for rank in ranks {
            all.extend(targets.iter().map(|to| self.candidate(rank, *to, None)));
            let lighter = |back: &&usize| {
                let this = self.node_of[rank];
                let other = self.node_of[**back];
                self.measured.ranks[**back].uses < self.measured.ranks[rank].uses
                    && self.measured.nodes[this as usize].is_open()
                    && self.measured.nodes[other as usize].is_open()
            };
            let swaps = others.iter().filter(lighter);
            all.extend(swaps.map(|back| self.candidate(rank, self.node_of[*back], Some(*back))));
        }
        all
    }

    /// The node of a place that has most room for further ranks.
    fn room(&self, place: usize) -> Option<JobNode> {
        let room = |node: &JobNode| self.nodes[*node as usize].room();
        let nodes = (0..self.measured.nodes.len() as JobNode).filter(|node| {
            let is_open = self.nodes[*node as usize].is_open();
            is_open && self.place(*node) == place && room(node) > 0
        });
        nodes.max_by_key(|node| (room(node), std::cmp::Reverse(*node)))
    }

    fn candidate(&self, rank: usize, to: JobNode, back: Option<usize>) -> Candidate {
        let ranks = &self.measured.ranks;
        let from = self.place(self.node_of[rank]);
        let into = self.place(to);
        let comes = back.map_or(0.0, |back| ranks[back].uses);
        let there = self.loads[into] + self.share(ranks[rank].uses - comes, into);
        let here = self.loads[from] - self.share(ranks[rank].uses - comes, from);
        let cost = ranks[rank].cost + back.map_or(0.0, |back| ranks[back].cost);
        Candidate { rank, to, back, then: here.max(there), cost }
    }

    fn take(&mut self, step: Candidate) -> Change {
        let Candidate { rank, to, back, cost, .. } = step;
        let from = self.node_of[rank];
        let mut moves = vec![self.go(rank, to)];
        moves.extend(back.map(|back| self.go(back, from)));
        Change { moves, then: self.busiest(), cost }
    }

    fn go(&mut self, rank: usize, to: JobNode) -> Move {
        let from = std::mem::replace(&mut self.node_of[rank], to);
        let RankLoad { rank: number, uses, .. } = self.measured.ranks[rank];
        let (here, there) = (self.place(from), self.place(to));
        self.loads[here] -= self.share(uses, here);
        self.loads[there] += self.share(uses, there);
        self.nodes[from as usize].ranks -= 1;
        self.nodes[to as usize].ranks += 1;
        self.moved[rank] = true;
        Move { rank: number, from, to }
    }
}

/// Orders by the lower load, then by the cheaper step.
fn better(a: &Candidate, b: &Candidate) -> Ordering {
    let alike = (a.then - b.then).abs() <= EPSILON;
    let by_load = if alike { Ordering::Equal } else { a.then.total_cmp(&b.then) };
    let key = |c: &Candidate| (c.back.is_some(), c.rank, c.to, c.back);
    by_load.then(a.cost.total_cmp(&b.cost)).then(key(a).cmp(&key(b)))
}

/// A way to have ranks on fewer nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consolidation {
    /// Nodes that keep their ranks and get the others.
    pub kept: BTreeSet<JobNode>,
    /// Nodes whose ranks leave.
    pub left: BTreeSet<JobNode>,
    pub moves: Vec<Move>,
}

/// Why ranks do not fit on that few nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooFew {
    /// This many nodes have ranks, and they are no more than are asked for.
    Already(usize),
    /// The nodes with the most room have this many slots.
    Slots(u64),
}

/// Which `number` nodes the ranks should go to, so that the fewest bytes move: the nodes that have
/// most of them already, with room for all. Each rank goes where the load is lowest.
///
/// # Errors
/// When there is nothing to do, or no room.
pub fn consolidate(
    measured: &Measured,
    number: usize,
    carried: Option<Carried<'_>>,
) -> Result<Consolidation, TooFew> {
    let used: BTreeSet<JobNode> = measured.ranks.iter().map(|load| load.node).collect();
    if used.len() <= number {
        return Err(TooFew::Already(used.len()));
    }
    let kept = keep(measured, &used, number)?;
    let left: BTreeSet<JobNode> = used.difference(&kept).copied().collect();
    let mut state = Arrangement::new(measured);
    state.carried = carried;
    let mut leave: Vec<usize> =
        (0..measured.ranks.len()).filter(|r| left.contains(&measured.ranks[*r].node)).collect();
    // The heaviest first, as they are hardest to place.
    leave.sort_by(|a, b| measured.ranks[*b].uses.total_cmp(&measured.ranks[*a].uses));
    let mut moves = Vec::new();
    for rank in leave {
        let to = emptiest(&state, &kept, rank).ok_or(TooFew::Slots(slots(measured, &kept)))?;
        moves.push(state.go(rank, to));
    }
    moves.sort_by_key(|m| m.rank);
    Ok(Consolidation { kept, left, moves })
}

fn slots<'a>(measured: &Measured, nodes: impl IntoIterator<Item = &'a JobNode>) -> u64 {
    nodes.into_iter().map(|node| u64::from(measured.nodes[*node as usize].slots)).sum()
}

/// The nodes with most bytes of ranks. If these have too little room, others with more room replace
/// those with the fewest bytes for each slot that is gained.
fn keep(
    measured: &Measured,
    used: &BTreeSet<JobNode>,
    number: usize,
) -> Result<BTreeSet<JobNode>, TooFew> {
    let mut bytes: BTreeMap<JobNode, u64> = BTreeMap::new();
    for load in &measured.ranks {
        *bytes.entry(load.node).or_default() += load.memory;
    }
    let of = |node: JobNode| bytes.get(&node).copied().unwrap_or(0);
    let open = |node: &JobNode| measured.nodes[*node as usize].is_open();
    let mut rest: Vec<JobNode> = used.iter().copied().filter(open).collect();
    rest.sort_by_key(|node| (std::cmp::Reverse(of(*node)), *node));
    let mut kept: Vec<JobNode> = rest.drain(..number.min(rest.len())).collect();
    let ranks = measured.ranks.len() as u64;
    let room = |node: JobNode| i64::from(measured.nodes[node as usize].slots);
    while slots(measured, &kept) < ranks {
        let pairs = (0..kept.len()).flat_map(|k| (0..rest.len()).map(move |r| (k, r)));
        let won = |(k, r): &(usize, usize)| room(rest[*r]) - room(kept[*k]);
        let price = |(k, r): &(usize, usize)| {
            (of(kept[*k]) as f64 - of(rest[*r]) as f64) / won(&(*k, *r)) as f64
        };
        let best = pairs.filter(|p| won(p) > 0).min_by(|a, b| price(a).total_cmp(&price(b)));
        let Some((k, r)) = best else { return Err(TooFew::Slots(slots(measured, &kept))) };
        std::mem::swap(&mut kept[k], &mut rest[r]);
    }
    Ok(kept.into_iter().collect())
}

/// The node with room on which the rank makes the lowest load.
fn emptiest(state: &Arrangement<'_>, kept: &BTreeSet<JobNode>, rank: usize) -> Option<JobNode> {
    let measured = state.measured;
    let has_room = |node: &&JobNode| state.nodes[**node as usize].room() > 0;
    let then = |node: &JobNode| {
        let place = state.place(*node);
        state.loads[place] + state.share(measured.ranks[rank].uses, place)
    };
    let count = |node: &JobNode| (state.nodes[*node as usize].ranks, *node);
    let mut alike: Vec<JobNode> = kept.iter().copied().filter(|node| has_room(&node)).collect();
    alike.sort_by(|a, b| then(a).total_cmp(&then(b)).then(count(a).cmp(&count(b))));
    let least = alike.first().map(then)?;
    alike.retain(|node| then(node) <= least + NOISE);
    let number = measured.ranks[rank].rank;
    state.of_alike(&alike, |to| vec![(number, *to)]).map(|at| alike[at])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::NodeState;
    use proptest::prelude::*;

    const SECONDS: f64 = 60.0;

    /// Nodes with one processor each, and ranks (node, uses).
    fn measured(nodes: usize, slots: u32, ranks: &[(JobNode, f64)]) -> Measured {
        let load = |(rank, (node, uses)): (usize, &(JobNode, f64))| RankLoad {
            rank: rank as Rank,
            node: *node,
            uses: *uses,
            memory: 1 << 20,
            cost: 0.1,
        };
        Measured {
            places: vec![Processors { count: 1.0, others: 0.0 }; nodes],
            nodes: vec![Node::open(slots); nodes],
            place_of: (0..nodes).collect(),
            ranks: ranks.iter().enumerate().map(load).collect(),
        }
    }

    fn moved(balance: &Balance) -> Vec<(Rank, JobNode)> {
        balance.moves().map(|m| (m.rank, m.to)).collect()
    }

    #[test]
    fn a_heavy_rank_changes_places_with_a_light_one_where_there_is_no_slot() {
        let found =
            balance(&measured(2, 2, &[(0, 0.17), (0, 0.17), (1, 0.5), (1, 0.5)]), SECONDS, None);
        assert_eq!(found.steps.len(), 1);
        assert_eq!(moved(&found), [(2, 0), (0, 1)]);
        assert!((found.before - 1.0).abs() < 1e-6 && (found.after() - 0.67).abs() < 1e-6);
    }

    #[test]
    fn an_empty_node_gets_a_rank_and_a_closed_one_does_not() {
        let mut two = measured(2, 4, &[(0, 0.5), (0, 0.5)]);
        assert_eq!(moved(&balance(&two, SECONDS, None)), [(0, 1)]);
        two.nodes[1].state = NodeState::Closed;
        assert_eq!(moved(&balance(&two, SECONDS, None)), []);
        (two.nodes[1], two.place_of[1]) = (Node::open(4), 0);
        assert_eq!(moved(&balance(&two, SECONDS, None)), [], "the same processors");
    }

    #[test]
    fn other_processes_take_their_part_of_a_node() {
        let mut two = measured(2, 4, &[(0, 0.3), (0, 0.2), (1, 0.5)]);
        two.places[0].others = 0.5;
        assert_eq!(moved(&balance(&two, SECONDS, None)), [(1, 1)]);
    }

    #[test]
    fn no_move_speeds_up_a_rank_that_computes_all_the_time() {
        let found = balance(&measured(2, 4, &[(0, 1.0), (0, 0.0), (1, 0.2)]), SECONDS, None);
        assert_eq!((moved(&found), found.too_dear), (vec![], vec![]));
    }

    #[test]
    fn no_rank_moves_by_chance() {
        let found =
            balance(&measured(2, 2, &[(0, 0.18), (0, 0.52), (1, 0.17), (1, 0.50)]), SECONDS, None);
        assert_eq!((moved(&found), found.too_dear.len()), (vec![], 1));
    }

    #[test]
    fn a_move_that_costs_more_than_it_brings_is_named_and_not_done() {
        let mut two = measured(2, 4, &[(0, 0.5), (0, 0.5)]);
        two.ranks.iter_mut().for_each(|load| load.cost = 31.0);
        let found = balance(&two, SECONDS, None);
        assert_eq!((moved(&found), found.too_dear.len()), (vec![], 1));
        assert_eq!(moved(&balance(&two, 2.0 * SECONDS, None)), [(0, 1)]);
    }

    #[test]
    fn ranks_go_where_most_of_them_are_already() {
        let mut three = measured(3, 4, &[(0, 0.1), (1, 0.1), (1, 0.1), (2, 0.1)]);
        let found = consolidate(&three, 1, None).unwrap();
        assert_eq!(found.kept, [1].into());
        assert_eq!(found.left, [0, 2].into());
        assert_eq!(
            found.moves.iter().map(|m| (m.rank, m.to)).collect::<Vec<_>>(),
            [(0, 1), (3, 1)]
        );
        assert_eq!(consolidate(&three, 3, None), Err(TooFew::Already(3)));
        three.nodes[1].slots = 2;
        assert_eq!(consolidate(&three, 1, None).unwrap().kept, [0].into());
        three.nodes.iter_mut().for_each(|node| node.slots = 2);
        assert_eq!(consolidate(&three, 1, None), Err(TooFew::Slots(2)));
        assert_eq!(consolidate(&three, 2, None).unwrap().left, [2].into());
    }

    /// Any measurement of up to six nodes on up to four places.
    fn any_measured() -> impl Strategy<Value = Measured> {
        let place = (1u32..5, 0.0..1.0).prop_map(|(processors, share): (u32, f64)| {
            let count = f64::from(processors);
            Processors { count, others: count * share }
        });
        let node = (any::<bool>(), 0usize..4, 1u32..6);
        let rank = (0u32..6, 0.0..1.5, 0u64..1 << 30, 0.0..5.0);
        let places = prop::collection::vec(place, 4..5);
        let nodes = prop::collection::vec(node, 6..7);
        (places, nodes, prop::collection::vec(rank, 0..16)).prop_map(|(places, nodes, ranks)| {
            let place_of = nodes.iter().map(|(_, place, _)| *place).collect();
            let state = |open| if open { NodeState::Open } else { NodeState::Closed };
            let node = |(open, _, slots)| Node { state: state(open), ..Node::open(slots) };
            let nodes = nodes.into_iter().map(node).collect();
            let ranks = (0..).zip(ranks).map(|(rank, (node, uses, memory, cost))| RankLoad {
                rank,
                node,
                uses,
                memory,
                cost,
            });
            Measured { places, nodes, place_of, ranks: ranks.collect() }
        })
    }

    /// The measurement after these moves.
    fn after(measured: &Measured, moves: &[Move]) -> Measured {
        let mut measured = measured.clone();
        for m in moves {
            let load = measured.ranks.iter_mut().find(|load| load.rank == m.rank).unwrap();
            assert_eq!(load.node, m.from);
            load.node = m.to;
        }
        measured
    }

    fn counts(measured: &Measured) -> Vec<u32> {
        let of = |node| measured.ranks.iter().filter(|load| load.node == node).count() as u32;
        (0..measured.nodes.len() as JobNode).map(of).collect()
    }

    /// Checks that no rank comes to a closed or full node, and that none moves twice.
    fn are_allowed(measured: &Measured, moves: &[Move]) {
        let ranks: BTreeSet<Rank> = moves.iter().map(|m| m.rank).collect();
        assert_eq!(ranks.len(), moves.len(), "{moves:?}");
        let before = counts(measured);
        let then = counts(&after(measured, moves));
        for m in moves {
            let node = &measured.nodes[m.to as usize];
            assert!(node.is_open() && m.from != m.to, "{m:?}");
            let most = node.slots.max(before[m.to as usize]);
            assert!(then[m.to as usize] <= most, "{m:?} goes to a full node");
        }
    }

    proptest! {
        #[test]
        fn no_balance_makes_the_busiest_place_busier_nor_costs_more_than_it_brings(
            measured in any_measured(), payback in 0.0..100.0
        ) {
            let found = balance(&measured, payback, None);
            let moves: Vec<Move> = found.moves().collect();
            are_allowed(&measured, &moves);
            let then = Arrangement::new(&after(&measured, &moves)).busiest();
            prop_assert!((then - found.after()).abs() < 1e-6);
            prop_assert!(then <= found.before + EPSILON);
            // Every last part of the plan, down to a single step, has brought what it cost.
            let cost = |steps: &[Change]| steps.iter().map(|step| step.cost).sum::<f64>();
            for kept in 0..found.steps.len() {
                let earlier = if kept == 0 { found.before } else { found.steps[kept - 1].then };
                let gain = (earlier - then) * payback;
                prop_assert!(gain > cost(&found.steps[kept..]));
            }
            for step in &found.steps {
                for m in &step.moves {
                    let place = |node: JobNode| measured.place_of[node as usize];
                    prop_assert!(place(m.from) != place(m.to));
                }
            }
        }

        #[test]
        fn consolidated_ranks_are_on_that_many_nodes_with_room(
            measured in any_measured(), number in 1usize..6
        ) {
            if let Ok(found) = consolidate(&measured, number, None) {
                are_allowed(&measured, &found.moves);
                let then = after(&measured, &found.moves);
                let used: BTreeSet<JobNode> = then.ranks.iter().map(|load| load.node).collect();
                prop_assert!(found.kept.len() <= number && used.is_subset(&found.kept));
                prop_assert!(found.left.is_disjoint(&found.kept));
            }
        }
    }
}
