//! A job on its nodes, and which rank is on which node while the methods change it step by step.

use eyrie_topology::{refuse, Layout, NetworkNode, TopologyError};

use crate::cluster::NodeState;
use crate::traffic::{Rank, Traffic};

/// `Occupancy::rank_on` of a node without a rank.
pub const NO_RANK: Rank = Rank::MAX;

/// Ranks, where they started, where they are, and what they send.
#[derive(Debug, Clone)]
pub struct Job {
    pub layout: Layout,
    /// Node of each rank when the job started.
    pub home: Vec<NetworkNode>,
    /// Node of each rank now (or, for ranks of a failed node, until now).
    pub at: Vec<NetworkNode>,
    pub traffic: Traffic,
}

impl Job {
    /// A job that has just started: `home[rank]` is the rank's node.
    pub fn new(
        layout: Layout,
        home: Vec<NetworkNode>,
        traffic: Traffic,
    ) -> Result<Self, TopologyError> {
        if home.len() != traffic.ranks {
            return refuse!(
                "{} ranks are placed but the traffic has {}",
                home.len(),
                traffic.ranks
            );
        }
        let mut seen = std::collections::HashSet::new();
        if let Some(twice) = home.iter().find(|&n| !seen.insert(n)) {
            return refuse!("node {twice} has two ranks: one rank a node");
        }
        if let Some(outside) = home.iter().find(|&&n| layout.cell(n).is_none()) {
            return refuse!("node {outside} is not a cell of the grid");
        }
        Ok(Job { layout, at: home.clone(), home, traffic })
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
    pub rank_on: Vec<Rank>,
    pub node: Vec<NodeState>,
}

impl Occupancy {
    /// Ranks at `at`, further live nodes `spares`, nothing failed yet. Nodes that ranks have left
    /// (`home`) count as the job's.
    pub fn new(
        network_nodes: usize,
        at: &[NetworkNode],
        home: &[NetworkNode],
        spares: &[NetworkNode],
    ) -> Self {
        let mut occupancy = Occupancy {
            rank_at: at.to_vec(),
            rank_on: vec![NO_RANK; network_nodes],
            node: vec![NodeState::Closed; network_nodes],
        };
        for &n in home.iter().chain(spares) {
            occupancy.node[n as usize] = NodeState::Open;
        }
        for (rank, &n) in at.iter().enumerate() {
            occupancy.rank_on[n as usize] = rank as Rank;
            occupancy.node[n as usize] = NodeState::Open;
        }
        occupancy
    }

    pub fn fail(&mut self, node: NetworkNode) {
        self.node[node as usize] = NodeState::Failed;
    }

    /// Whether a rank can be put here.
    pub fn is_free(&self, node: NetworkNode) -> bool {
        self.node[node as usize] == NodeState::Open && self.rank_on[node as usize] == NO_RANK
    }

    /// Free nodes: first those of `order`, then the others by number.
    pub fn free(&self, order: &[NetworkNode]) -> Vec<NetworkNode> {
        let mut free: Vec<NetworkNode> =
            order.iter().copied().filter(|&n| self.is_free(n)).collect();
        let listed: std::collections::HashSet<NetworkNode> = free.iter().copied().collect();
        let others =
            (0..self.node.len() as NetworkNode).filter(|n| self.is_free(*n) && !listed.contains(n));
        free.extend(others);
        free
    }

    /// Ranks on failed nodes.
    pub fn displaced(&self) -> Vec<Rank> {
        (0..self.rank_at.len() as Rank)
            .filter(|&r| self.node[self.rank_at[r as usize] as usize] == NodeState::Failed)
            .collect()
    }

    /// Moves ranks together; every target must be free or be left by the same moves.
    pub fn apply(&mut self, moves: &[(Rank, NetworkNode)]) {
        for &(rank, _) in moves {
            self.rank_on[self.rank_at[rank as usize] as usize] = NO_RANK;
        }
        for &(rank, to) in moves {
            debug_assert!(self.is_free(to), "rank {rank} onto node {to}");
            self.rank_at[rank as usize] = to;
            self.rank_on[to as usize] = rank;
        }
    }

    /// Whether every rank is on a live node of its own.
    pub fn check(&self) -> bool {
        self.rank_at.iter().enumerate().all(|(rank, &node)| {
            self.node[node as usize] == NodeState::Open
                && self.rank_on[node as usize] == rank as Rank
        })
    }
}
