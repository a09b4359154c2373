//! Where the ranks of lost nodes of a running job go, for the controller that moves them. Nodes may
//! have several ranks here, which stay together as long as there are spares. Only displaced ranks
//! move: live ranks stay where they are.

use eyrie_topology::spec::Parsed;
use eyrie_topology::{coords, Layout, Network, NodeId, TopologyError};

use crate::job::Job;
use crate::method::Method;
use crate::objective::Weights;
use crate::plan::{choose_by, Move};
use crate::traffic::{Rank, Traffic};
use crate::words::{network, nodes, wrong, WordError, Words};

/// The state of a node of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobNode {
    pub up: bool,
    /// It started without ranks, and has had none.
    pub free_spare: bool,
    /// Ranks that are on it, or on the way to it.
    pub ranks: u32,
    /// The node that it replaces.
    pub stands_for: Option<NodeId>,
}

/// A rank that needs a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Displaced {
    pub rank: Rank,
    /// The node that it was on, which may still be up.
    pub from: NodeId,
}

/// Decides where displaced ranks go. Nodes have the numbers of the job.
pub trait Placement: Send {
    /// A move for each displaced rank, in their order; fewer when no node is up. Ranks whose node
    /// is up stay there. The ranks of a lost node go together to the same spare. Without a spare
    /// each goes to the node that has the fewest.
    fn moves(&self, nodes: &[JobNode], displaced: &[Displaced]) -> Vec<Move> {
        let mut nodes = nodes.to_vec();
        let place = |&Displaced { rank, from }: &Displaced| {
            let to = self.node_for(&nodes, from)?;
            let node = &mut nodes[to as usize];
            if node.free_spare {
                node.stands_for = Some(from);
            }
            node.free_spare = false;
            node.ranks += 1;
            Some(Move { rank, from, to })
        };
        displaced.iter().map_while(place).collect()
    }

    /// The node for a rank that was on `from`; `None` when no node is up.
    fn node_for(&self, nodes: &[JobNode], from: NodeId) -> Option<NodeId> {
        if nodes.get(from as usize).is_some_and(|n| n.up) {
            return Some(from);
        }
        let takes_its_ranks = |n: &JobNode| n.up && n.stands_for == Some(from);
        let number = |node: usize| node as NodeId;
        let spare = nodes.iter().position(takes_its_ranks).map(number);
        spare.or_else(|| self.spare_for(nodes, from)).or_else(|| {
            let up = nodes.iter().enumerate().filter(|(_, n)| n.up);
            up.min_by_key(|(i, n)| (n.ranks, *i)).map(|(i, _)| number(i))
        })
    }

    /// The free spare that gets the ranks of `lost`, if there is one.
    fn spare_for(&self, nodes: &[JobNode], lost: NodeId) -> Option<NodeId>;
}

/// Placement on an unknown network: takes the first free spare.
pub struct WithoutNetwork;

impl Placement for WithoutNetwork {
    fn spare_for(&self, nodes: &[JobNode], _lost: NodeId) -> Option<NodeId> {
        nodes.iter().position(|n| n.up && n.free_spare).map(|node| node as NodeId)
    }
}

/// Placement on a known network: takes the free spare with the fewest messages on the busiest link.
/// The ranks of a node count as one.
pub struct OnNetwork {
    network: Box<dyn Network>,
    /// Where each node of the job is in the network, spares last.
    at: Vec<NodeId>,
    /// The job as it started; the ranks of a node count as one.
    job: Job,
}

impl OnNetwork {
    /// `words` has a host for each node of the job. The first `started` of them start with ranks;
    /// the others are spares.
    ///
    /// # Errors
    /// Of the first word that is wrong.
    pub fn read(words: &Words, started: usize) -> Result<Self, WordError> {
        let Parsed { network, names, .. } = network(words)?;
        let at = nodes(words, network.as_ref(), &names)?;
        let shape = match words.job {
            Some(job) => coords::parse_dims(job).map_err(wrong("job"))?,
            None => vec![started],
        };
        if shape.iter().product::<usize>() != started || started > at.len() {
            let shape = coords::format_dims(&shape);
            let why = TopologyError::new(format!("{shape} is not the {started} nodes that start"));
            return Err(wrong("job")(why));
        }
        let traffic = Traffic::read(words.traffic, &shape, words.bytes, words.files.text)
            .map_err(wrong("traffic"))?;
        let layout = Layout::new(&[at.len()], at.clone(), network.nodes())?;
        let job = Job::new(layout, at[..started].to_vec(), traffic)?;
        Ok(OnNetwork { network, at, job })
    }

    /// The node of the job that now has, or had last, the ranks that started on `first`.
    fn follow(&self, nodes: &[JobNode], first: usize) -> usize {
        let mut here = first;
        // Each node replaces at most one, so the chain is no longer than there are nodes.
        for _ in 0..nodes.len() {
            let next = nodes.iter().position(|n| n.stands_for == Some(here as NodeId));
            match next {
                Some(next) if !nodes[here].up => here = next,
                _ => break,
            }
        }
        here
    }
}

impl Placement for OnNetwork {
    fn spare_for(&self, nodes: &[JobNode], lost: NodeId) -> Option<NodeId> {
        let first = WithoutNetwork.spare_for(nodes, lost)?;
        let here: Vec<usize> = (0..self.job.ranks()).map(|b| self.follow(nodes, b)).collect();
        // The place in the network of a node that has joined since is unknown.
        if here.iter().any(|&node| node >= self.at.len()) {
            return Some(first);
        }
        let which = here.iter().position(|&node| node == lost as usize);
        let those = |wanted: &dyn Fn(&JobNode) -> bool| -> Vec<NodeId> {
            self.at.iter().zip(nodes).filter(|(_, n)| wanted(n)).map(|(&at, _)| at).collect()
        };
        let failed = those(&|n| !n.up);
        let free = those(&|n| n.up && n.free_spare);
        let mut job = self.job.clone();
        job.at = here.iter().map(|&node| self.at[node]).collect();
        let weights = Weights::default();
        let network = self.network.as_ref();
        // Where the network no longer has routes for the traffic, every spare is as good as the
        // first.
        let plan = choose_by(Method::Best0D, network, &job, &failed, &free, &weights).ok();
        let chosen = plan.zip(which).map(|(plan, which)| plan.placement[which]);
        let node = chosen.and_then(|chosen| self.at.iter().position(|&at| at == chosen));
        Some(node.map_or(first, |node| node as NodeId))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spares::Arrangement;
    use eyrie_topology::spec::Files;

    fn node(up: bool, free_spare: bool, ranks: u32, stands_for: Option<NodeId>) -> JobNode {
        JobNode { up, free_spare, ranks, stands_for }
    }

    /// Four nodes of two ranks and two spares.
    fn nodes() -> Vec<JobNode> {
        let mut nodes = vec![node(true, false, 2, None); 4];
        nodes.resize(6, node(true, true, 0, None));
        nodes
    }

    fn on_network(network: &str, traffic: &str) -> Result<OnNetwork, WordError> {
        let text = |_: &str| Err(TopologyError::new("there are no files"));
        let words = Words {
            network: Some(network),
            names: None,
            hosts: &["a", "b", "c", "d", "e", "f"],
            nodes: &[],
            job: None,
            spares: None,
            arrangement: Arrangement::Contiguous,
            traffic: Some(traffic),
            bytes: 1 << 20,
            files: Files { text: &text, slurm_topology: None, taper: 1.0 },
        };
        OnNetwork::read(&words, 4)
    }

    fn lost(nodes: &mut [JobNode], lost: NodeId) -> [Displaced; 2] {
        nodes[lost as usize].up = false;
        nodes[lost as usize].ranks = 0;
        [2 * lost, 2 * lost + 1].map(|rank| Displaced { rank, from: lost })
    }

    fn targets(moves: &[Move]) -> Vec<NodeId> {
        moves.iter().map(|m| m.to).collect()
    }

    #[test]
    fn the_ranks_of_a_node_stay_together_and_those_of_the_next_go_elsewhere() {
        let mut nodes = nodes();
        let all: Vec<Displaced> = [0, 2].into_iter().flat_map(|n| lost(&mut nodes, n)).collect();
        assert_eq!(targets(&WithoutNetwork.moves(&nodes, &all)), [4, 4, 5, 5]);
        let third = lost(&mut nodes, 1);
        let all: Vec<Displaced> = all.into_iter().chain(third).collect();
        assert_eq!(targets(&WithoutNetwork.moves(&nodes, &all)), [4, 4, 5, 5, 3, 4]);
        for n in &mut nodes {
            n.up = false;
        }
        assert_eq!(targets(&WithoutNetwork.moves(&nodes, &all)), []);
    }

    #[test]
    fn on_a_ring_the_nearer_spare_is_chosen_and_followed_when_it_is_lost_too() {
        let ring = on_network("torus:6", "alltoall").unwrap();
        let mut nodes = nodes();
        let displaced = lost(&mut nodes, 0);
        assert_eq!(targets(&WithoutNetwork.moves(&nodes, &displaced)), [4, 4]);
        assert_eq!(targets(&ring.moves(&nodes, &displaced)), [5, 5]);
        nodes[5] = node(true, false, 2, Some(0));
        assert_eq!(ring.node_for(&nodes, 0), Some(5));
        nodes[5].up = false;
        assert_eq!(ring.node_for(&nodes, 5), Some(4));
        nodes[4].up = false;
        assert_eq!(ring.node_for(&nodes, 5), Some(1), "no spare is left");
    }

    #[test]
    fn wrong_words_are_named() {
        for (network, traffic, fault) in [
            ("torus:5", "alltoall", "process 5 is on node 5"),
            ("ring:6", "alltoall", "network: network kind"),
            ("torus:6", "stencil5", "traffic: stencil5 needs a job of 2 axes"),
        ] {
            let error = on_network(network, traffic).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(fault), "{error}");
        }
    }
}
