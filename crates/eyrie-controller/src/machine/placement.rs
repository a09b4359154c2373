//! What eyrie-placement is told of the job, whenever ranks need nodes. For displaced ranks it is
//! asked once for each event, with all ranks that are displaced by it. Decides nothing itself.

use crate::machine::config::Config;
use crate::machine::moves::Moves;
use crate::machine::nodes::Nodes;
use crate::machine::ranks::Ranks;
use crate::machine::state::NodeStateName;
use eyrie_placement::{Assignment, Choice, Displaced, JobNode, JobNodes, NodeState, Placement};
use eyrie_wire::{NodeId, Rank};
use std::collections::BTreeSet;

/// Nodes for these ranks, which are displaced by the same event.
pub fn assign(placement: &Placement, to: Destinations<'_>, ranks: &[Rank]) -> Vec<Assignment> {
    if ranks.is_empty() {
        return Vec::new();
    }
    let displaced: Vec<Displaced> = ranks.iter().map(|rank| to.displaced(*rank)).collect();
    placement.assign(to.occupied(ranks).cluster(), &displaced)
}

/// The nodes of a job, and where its ranks are.
pub struct Occupied {
    nodes: Vec<eyrie_placement::Node>,
    at: Vec<Option<JobNode>>,
}

impl Occupied {
    pub fn cluster(&self) -> JobNodes<'_> {
        JobNodes { nodes: &self.nodes, at: &self.at }
    }
}

/// What decides where ranks can go.
#[derive(Clone, Copy)]
pub struct Destinations<'a> {
    pub config: &'a Config,
    pub nodes: &'a Nodes,
    pub ranks: &'a Ranks,
    pub moves: &'a Moves,
}

impl Destinations<'_> {
    /// The nodes with the ranks that run there, but for these ranks. One that goes elsewhere counts
    /// there, and one that has died counts nowhere until it is assigned a node.
    pub fn occupied(self, without: &[Rank]) -> Occupied {
        let mut at = vec![None; self.ranks.len()];
        let without: BTreeSet<Rank> = without.iter().copied().collect();
        let mut nodes: Vec<eyrie_placement::Node> =
            self.nodes.iter().map(|(node, _)| self.placement_node(node)).collect();
        for r in self.ranks.living() {
            #[cfg(test)]
            tests::LOOKED_AT.set(tests::LOOKED_AT.get() + 1);
            let coming = self.assigned_node(r.rank()).filter(|_| !without.contains(&r.rank()));
            let place = coming.map_or(r.node(), |(to, _)| to);
            at[r.rank().index()] = Some(place.0);
            let Some((to, choice)) = coming.filter(|(to, _)| *to != r.node()) else {
                if r.on_node().is_some() {
                    nodes[r.node().index()].ranks += 1;
                }
                continue;
            };
            let node = &mut nodes[to.index()];
            node.ranks += 1;
            match choice {
                // It stays free for the ranks of a lost node until the rank has come.
                Choice::Asked => continue,
                Choice::Spare if node.is_free_spare => node.replaces = Some(r.node().0),
                Choice::Spare | Choice::Shared | Choice::Same => {}
            }
            node.is_free_spare = false;
        }
        Occupied { nodes, at }
    }

    /// A node without the ranks that are on it.
    fn placement_node(self, node: NodeId) -> eyrie_placement::Node {
        let entry = &self.nodes[node];
        let state = match (entry.is_up(), entry.is_drained()) {
            (false, _) => NodeState::Failed,
            (true, true) => NodeState::Closed,
            (true, false) => NodeState::Open,
        };
        let slots = self.config.slots.get(node.index()).copied().flatten().unwrap_or(u32::MAX);
        let is_free_spare = entry.is_free_spare();
        let replaces = entry.replaces().map(|node| node.0);
        eyrie_placement::Node { state, slots, ranks: 0, is_free_spare, replaces }
    }

    /// A rank that needs a node: not the one that it is to leave, nor one that may be at fault or
    /// is not well, if another can take it.
    fn displaced(self, rank: Rank) -> Displaced {
        let r = &self.ranks[rank];
        let mut avoids = Vec::new();
        let moving = self.moves.get(rank).filter(|moving| moving.asked_for().is_none());
        if let Some(moving) = moving {
            avoids.push(moving.from().0);
        }
        if r.node_may_be_at_fault() {
            avoids.push(r.node().0);
        }
        avoids.extend(self.nodes.unwell().map(|node| node.0));
        Displaced { rank: rank.0, from: r.node().0, avoids }
    }

    /// Ranks whose node is dead, and that have no other to go to. A rank that moves and whose node
    /// is up is asked for again by its move.
    pub fn ranks_without_node(self) -> Vec<Rank> {
        let needs_one = |rank: &Rank| {
            let node = self.ranks[*rank].node();
            self.nodes[node].state() == NodeStateName::Dead && self.assigned_node(*rank).is_none()
        };
        self.ranks.unfinished().filter(needs_one).collect()
    }

    /// The node that the rank was asked to go to, or was assigned, while it can take ranks.
    pub fn assigned_node(self, rank: Rank) -> Option<(NodeId, Choice)> {
        let asked = self.moves.get(rank).and_then(|moving| moving.asked_for());
        let asked = asked.map(|to| (to, Choice::Asked));
        let assigned = self.ranks[rank].goes_to().map(|a| (NodeId(a.to), a.choice));
        let takes_ranks = |(node, _): &(NodeId, Choice)| {
            self.nodes.get(*node).is_some_and(|entry| entry.is_up() && !entry.is_drained())
        };
        asked.filter(takes_ranks).or(assigned.filter(takes_ranks))
    }
}

#[cfg(test)]
mod tests {
    use crate::machine::io::Mark;
    use crate::machine::outbox::consequence::LostNode;
    use crate::machine::{said, Command, Config, Event, Machine, ToPeer};
    use eyrie_wire::control::{RankReport, ToAgent};
    use eyrie_wire::{Incarnation, NodeId, Rank, RankInstance, RouterId};
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    use std::cell::Cell;
    use std::time::Duration;

    thread_local! {
        /// How often a rank was looked at to count the ranks of its node.
        pub static LOOKED_AT: Cell<u64> = const { Cell::new(0) };
    }

    /// Four ranks on the first of these nodes, with two routers; all of it is up and runs.
    fn running(nodes: u32) -> Machine {
        running_on(nodes, [NodeId(0); 4])
    }

    /// The same with the ranks on these nodes.
    fn running_on(nodes: u32, start: [NodeId; 4]) -> Machine {
        let config =
            Config { ranks: 4, nodes, start: start.to_vec(), routers: 2, ..Config::of_one_rank() };
        let mut machine = Machine::new(config);
        for node in 0..nodes {
            machine.handle(Duration::ZERO, said::joined(NodeId(node)));
        }
        for rank in 0..4 {
            let instance = RankInstance { rank: Rank(rank), incarnation: Incarnation(1) };
            let fetched = Duration::ZERO;
            let restored = Duration::ZERO;
            for report in [RankReport::Started { fetched, restored }, RankReport::ProviderLoaded] {
                machine.handle(Duration::ZERO, said::rank(instance, report));
            }
        }
        machine
    }

    #[test]
    fn the_ranks_of_a_drained_node_are_spread_before_any_of_them_has_moved() {
        let mut machine = running(3);
        machine.handle(Duration::ZERO, Event::Drain { request: None, node: NodeId(0) });
        let to: Vec<Option<NodeId>> = machine.moves().map(|(_, moving)| moving.goes_to()).collect();
        assert_eq!(to, [1, 2, 1, 2].map(|node| Some(NodeId(node))));
    }

    #[test]
    fn ranks_of_a_node_that_has_not_come_yet_wait_for_it() {
        let config = Config {
            ranks: 4,
            nodes: 2,
            spares: 2,
            start: [0, 0, 1, 1].map(NodeId).to_vec(),
            heartbeat_timeout: Duration::from_secs(5),
            ..Config::of_one_rank()
        };
        let mut machine = Machine::new(config);
        let mut now = Duration::ZERO;
        // The loss of a node is what displaces ranks: those of the lost one.
        let came = [0, 2, 3].map(|node| said::joined(NodeId(node)));
        for event in came.into_iter().chain([Event::AgentGone(NodeId(3))]) {
            machine.handle(now, event);
            for _ in 0..4 {
                now += Duration::from_secs(1);
                for command in machine.handle(now, Event::Tick) {
                    if let Some((node, ToAgent::Heartbeat { n })) = said::to_agent(&command) {
                        machine.handle(now, said::heartbeat(node, *n));
                    }
                }
            }
        }
        let assigned: Vec<Rank> =
            machine.ranks.iter().filter(|r| r.goes_to().is_some()).map(|r| r.rank()).collect();
        assert!(assigned.is_empty(), "{assigned:?}");
    }

    #[test]
    fn a_rank_that_loses_where_it_was_going_does_not_move_to_where_it_is() {
        let mut machine = running(2);
        let to = None;
        let manner = eyrie_interface::Manner::default();
        let ranks = vec![Rank(0)];
        machine.handle(Duration::ZERO, Event::Migrate { request: None, ranks, to, manner });
        let to: Vec<_> = machine.moves().map(|(_, moving)| moving.goes_to()).collect();
        assert_eq!(to, [Some(NodeId(1))]);
        machine.handle(Duration::ZERO, Event::AgentGone(NodeId(1)));
        let to: Vec<_> = machine.moves().map(|(_, moving)| moving.goes_to()).collect();
        assert_eq!(to, [None], "it waits for a node");
    }

    #[test]
    fn a_rank_that_moves_counts_where_it_goes_and_not_where_it_is() {
        let mut machine = running_on(3, [1, 1, 0, 2].map(NodeId));
        let to = Some(NodeId(0));
        let manner = eyrie_interface::Manner::default();
        let ranks = vec![Rank(0)];
        machine.handle(Duration::ZERO, Event::Migrate { request: None, ranks, to, manner });
        machine.handle(Duration::ZERO, Event::AgentGone(NodeId(2)));
        let goes_to = machine.ranks[Rank(3)].goes_to().map(|a| NodeId(a.to));
        assert_eq!(goes_to, Some(NodeId(1)), "node 0 has two then, and node 1 has one");
    }

    /// A saved job of so many ranks that goes on, on so many nodes with spares. Its last node, a
    /// spare, has yet to come, which it waits for.
    fn going_on(ranks: u32, nodes: u32, spares: u32) -> Machine {
        let start = eyrie_placement::assign::spread(ranks, nodes).map(NodeId).collect();
        let config = Config { ranks, nodes, spares, start, ..Config::of_one_rank() };
        let saved = Machine::new(config.clone()).saved();
        let mut machine = Machine::go_on(config, saved);
        for node in 0..nodes + spares - 1 {
            machine.handle(Duration::ZERO, said::joined(NodeId(node)));
        }
        machine
    }

    #[test]
    fn a_large_job_that_goes_on_looks_at_each_rank_once() {
        let ranks = 20_000;
        let nodes = 200;
        let mut machine = going_on(ranks, nodes, 1);
        let before = LOOKED_AT.get();
        let commands = machine.handle(Duration::ZERO, said::joined(NodeId(nodes)));
        assert_eq!(commands.iter().filter_map(said::start).count(), ranks as usize);
        assert_eq!(LOOKED_AT.get() - before, u64::from(ranks));
    }

    /// A job that goes on, whose ranks are about to return: some of their nodes are lost or drained
    /// since it was saved, and a spare may be, too. The last node of those that start with ranks is
    /// up.
    fn returning(random: &mut StdRng) -> Machine {
        let (nodes, spares) = (random.gen_range(2..8), random.gen_range(1..4));
        let mut machine = going_on(random.gen_range(nodes..40), nodes, spares);
        machine.out.start();
        assert!(machine.ranks.iter_mut().all(|r| r.go_on(Duration::ZERO)));
        let others: Vec<NodeId> =
            (0..nodes + spares - 1).filter(|n| *n != nodes - 1).map(NodeId).collect();
        let lost = others.iter().filter(|_| random.gen_bool(0.4));
        let lost = lost.map(|node| LostNode::gone(*node, "its agent is gone".into())).collect();
        machine.watch().declare_dead(lost);
        for node in others.iter().filter(|_| random.gen_bool(0.2)) {
            machine.nodes[*node].close();
        }
        machine
    }

    #[test]
    fn ranks_that_return_together_go_where_each_would_go_alone() {
        let mut displaced = 0;
        for seed in 0..200 {
            let nodes_of_ranks = |together: bool| -> Vec<(NodeId, NodeId)> {
                let mut machine = returning(&mut StdRng::seed_from_u64(seed));
                let returning: Vec<RankInstance> =
                    machine.ranks.iter().map(|r| r.instance()).collect();
                let before: Vec<NodeId> = machine.ranks.iter().map(|r| r.node()).collect();
                if together {
                    machine.recovery().assign_returning(&returning);
                }
                for instance in returning {
                    machine.recovery().bring_back(instance, Mark::default());
                }
                before.into_iter().zip(machine.ranks.iter().map(|r| r.node())).collect()
            };
            let together = nodes_of_ranks(true);
            assert_eq!(together, nodes_of_ranks(false), "seed {seed}");
            let mut machine = returning(&mut StdRng::seed_from_u64(seed));
            let takes_ranks = |machine: &mut Machine, node: NodeId| {
                machine.nodes[node].is_up() && !machine.nodes[node].is_drained()
            };
            for (before, now) in together {
                assert!(takes_ranks(&mut machine, now), "seed {seed}: node {now}");
                displaced += u32::from(before != now);
                assert_eq!(before == now, takes_ranks(&mut machine, before), "seed {seed}");
            }
        }
        assert!(displaced > 1000, "{displaced} ranks were displaced");
    }

    /// The routers confirm the fences of the ranks in this order.
    fn nodes_after_loss(order: [Rank; 4]) -> Vec<(Rank, NodeId)> {
        let mut machine = running(3);
        machine.handle(Duration::ZERO, Event::AgentGone(NodeId(0)));
        let mut started = Vec::new();
        for rank in order {
            for router in 0..2 {
                let instance = RankInstance { rank, incarnation: Incarnation(2) };
                let fenced = said::fenced(RouterId(router), instance, 0);
                for command in machine.handle(Duration::ZERO, fenced) {
                    if let Command::Send(ToPeer::Agent(node, ToAgent::Start(start))) = command {
                        started.push((start.instance.rank, node));
                    }
                }
            }
        }
        started.sort_unstable();
        started
    }

    #[test]
    fn where_ranks_of_a_lost_node_go_does_not_depend_on_which_is_fenced_first() {
        let wanted = [(0, 1), (1, 2), (2, 1), (3, 2)].map(|(r, n)| (Rank(r), NodeId(n)));
        assert_eq!(nodes_after_loss([Rank(0), Rank(1), Rank(2), Rank(3)]), wanted);
        assert_eq!(nodes_after_loss([Rank(1), Rank(0), Rank(3), Rank(2)]), wanted);
    }
}
