//! A job on its nodes, and which rank is on which node while the methods change it step by step.

use eyrie_topology::{refuse, Layout, NetworkNode, TopologyError};

use crate::cluster::NodeState;
use crate::traffic::{Rank, Traffic};

/// The end of a list of ranks.
const NO_RANK: Rank = Rank::MAX;

/// Ranks, where they started, where they are, and what they send.
#[derive(Debug, Clone)]
pub struct Job {
    pub layout: Layout,
    /// Most ranks that a node may have.
    pub slots: u32,
    /// Node of each rank when the job started.
    pub home: Vec<NetworkNode>,
    /// Node of each rank now (or, for ranks of a failed node, until now).
    pub at: Vec<NetworkNode>,
    pub traffic: Traffic,
}

impl Job {
    /// A job that has just started, with one rank a node: `home[rank]` is the rank's node.
    ///
    /// # Errors
    /// As [`Job::on_slots`].
    pub fn new(
        layout: Layout,
        home: Vec<NetworkNode>,
        traffic: Traffic,
    ) -> Result<Self, TopologyError> {
        Job::on_slots(layout, home, 1, traffic)
    }

    /// The same with up to `slots` ranks a node.
    ///
    /// # Errors
    /// When the traffic is of other ranks, a node has more ranks than slots, or is no cell of the
    /// grid.
    pub fn on_slots(
        layout: Layout,
        home: Vec<NetworkNode>,
        slots: u32,
        traffic: Traffic,
    ) -> Result<Self, TopologyError> {
        if home.len() != traffic.ranks {
            return refuse!(
                "{} ranks are placed but the traffic has {}",
                home.len(),
                traffic.ranks
            );
        }
        let mut ranks = std::collections::HashMap::new();
        for &node in &home {
            let ranks = ranks.entry(node).or_insert(0);
            *ranks += 1;
            if *ranks > slots {
                return match slots {
                    1 => refuse!("node {node} has two ranks: one rank a node"),
                    _ => refuse!("node {node} has more than {slots} ranks: it has {slots} slots"),
                };
            }
        }
        if let Some(outside) = home.iter().find(|&&n| layout.cell(n).is_none()) {
            return refuse!("node {outside} is not a cell of the grid");
        }
        Ok(Job { layout, slots, at: home.clone(), home, traffic })
    }

    pub fn ranks(&self) -> usize {
        self.home.len()
    }
}

/// Nodes and ranks while a plan is made. A rank on a failed node is displaced: it still has to
/// move.
#[derive(Debug, Clone)]
pub struct Occupancy {
    pub rank_at: Vec<NetworkNode>,
    pub node: Vec<NodeState>,
    /// Most ranks that a node may have.
    slots: u32,
    /// The lowest rank on each node, and behind each rank the next one on its node.
    first_on: Vec<Rank>,
    next: Vec<Rank>,
}

impl Occupancy {
    /// The ranks of `job` at `at`, further live nodes `spares`, nothing failed yet. Nodes that
    /// ranks have left (the job's `home`) count as the job's.
    pub fn new(
        network_nodes: usize,
        job: &Job,
        at: &[NetworkNode],
        spares: &[NetworkNode],
    ) -> Self {
        let mut occupancy = Occupancy {
            rank_at: at.to_vec(),
            node: vec![NodeState::Closed; network_nodes],
            slots: job.slots,
            first_on: vec![NO_RANK; network_nodes],
            next: vec![NO_RANK; at.len()],
        };
        for &n in job.home.iter().chain(spares).chain(at) {
            occupancy.node[n as usize] = NodeState::Open;
        }
        // From the last one: each is put before all others of its node.
        for (rank, &n) in at.iter().enumerate().rev() {
            occupancy.put(rank as Rank, n);
        }
        occupancy
    }

    pub fn fail(&mut self, node: NetworkNode) {
        self.node[node as usize] = NodeState::Failed;
    }

    /// The ranks on a node, ascending.
    pub fn ranks_on(&self, node: NetworkNode) -> impl Iterator<Item = Rank> + '_ {
        let listed = |rank: Rank| Some(rank).filter(|rank| *rank != NO_RANK);
        let next = move |rank: &Rank| listed(self.next[*rank as usize]);
        std::iter::successors(listed(self.first_on[node as usize]), next)
    }

    /// How many ranks can be put on a node.
    pub fn room(&self, node: NetworkNode) -> usize {
        match self.node[node as usize] {
            NodeState::Open => (self.slots as usize).saturating_sub(self.ranks_on(node).count()),
            NodeState::Closed | NodeState::Failed => 0,
        }
    }

    /// The most ranks that a node may have.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Nodes with room for so many ranks: first those of `order`, then the others by number.
    pub fn with_room(&self, ranks: usize, order: &[NetworkNode]) -> Vec<NetworkNode> {
        let has_room = |n: &NetworkNode| self.room(*n) >= ranks;
        let mut free: Vec<NetworkNode> = order.iter().copied().filter(has_room).collect();
        let listed: std::collections::HashSet<NetworkNode> = free.iter().copied().collect();
        let others = 0..self.node.len() as NetworkNode;
        free.extend(others.filter(|n| has_room(n) && !listed.contains(n)));
        free
    }

    /// Ranks on failed nodes.
    pub fn displaced(&self) -> Vec<Rank> {
        (0..self.rank_at.len() as Rank)
            .filter(|&r| self.node[self.rank_at[r as usize] as usize] == NodeState::Failed)
            .collect()
    }

    /// Moves ranks together; every target must have room once all of them have left.
    pub fn apply(&mut self, moves: &[(Rank, NetworkNode)]) {
        for &(rank, _) in moves {
            self.take(rank);
        }
        for &(rank, to) in moves {
            debug_assert!(self.room(to) > 0, "rank {rank} onto node {to}");
            self.rank_at[rank as usize] = to;
            self.put(rank, to);
        }
    }

    /// Lists a rank on a node.
    fn put(&mut self, rank: Rank, node: NetworkNode) {
        let (before, after) = self.neighbours(rank, node);
        self.next[rank as usize] = after;
        self.link(before, node, rank);
    }

    /// Takes a rank off the list of its node.
    fn take(&mut self, rank: Rank) {
        let node = self.rank_at[rank as usize];
        let (before, _) = self.neighbours(rank, node);
        self.link(before, node, self.next[rank as usize]);
    }

    /// The ranks on a node before this one, and from it on: the last and the first of them.
    fn neighbours(&self, rank: Rank, node: NetworkNode) -> (Rank, Rank) {
        let mut before = NO_RANK;
        let mut after = self.first_on[node as usize];
        while after < rank {
            (before, after) = (after, self.next[after as usize]);
        }
        (before, after)
    }

    /// Puts `rank` behind `before`, or first on the node.
    fn link(&mut self, before: Rank, node: NetworkNode, rank: Rank) {
        match before {
            NO_RANK => self.first_on[node as usize] = rank,
            before => self.next[before as usize] = rank,
        }
    }

    /// Whether every rank is on a live node that has a slot for it.
    pub fn check(&self) -> bool {
        let listed = |(rank, &node): (usize, &NetworkNode)| {
            self.node[node as usize] == NodeState::Open
                && self.ranks_on(node).any(|r| r == rank as Rank)
                && self.ranks_on(node).count() <= self.slots as usize
        };
        self.rank_at.iter().enumerate().all(listed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_topology::cartesian::Cartesian;

    #[test]
    fn a_node_has_no_more_ranks_than_slots_and_lists_them_in_order() {
        let layout = Layout::natural(&Cartesian::mesh(&[4])).unwrap();
        let traffic = Traffic::parse("alltoall", &[5], 8).unwrap();
        let home = vec![0, 0, 1, 1, 2];
        let job = Job::on_slots(layout.clone(), home.clone(), 2, traffic.clone()).unwrap();
        let mut occupancy = Occupancy::new(4, &job, &job.at, &[3]);
        assert_eq!(occupancy.with_room(1, &[3]), [3, 2]);
        assert_eq!(occupancy.with_room(2, &[3]), [3]);
        occupancy.fail(0);
        assert_eq!(occupancy.displaced(), [0, 1]);
        occupancy.apply(&[(1, 3), (0, 2)]);
        assert!(occupancy.check());
        assert_eq!(occupancy.ranks_on(2).collect::<Vec<_>>(), [0, 4]);
        assert_eq!((occupancy.room(0), occupancy.room(2), occupancy.room(3)), (0, 0, 1));
        // A full node takes a rank for one that leaves it in the same moment.
        occupancy.apply(&[(0, 1), (2, 2)]);
        assert_eq!(occupancy.ranks_on(1).collect::<Vec<_>>(), [0, 3]);
        assert!(occupancy.check());
        let error = Job::on_slots(layout, home, 1, traffic).unwrap_err().to_string();
        assert_eq!(error, "node 0 has two ranks: one rank a node");
    }
}
