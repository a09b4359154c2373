//! Where the displaced ranks of a running job go. Nodes may have several ranks, and those of a lost
//! node stay together as long as there are spares. Ranks that are not displaced never move.

use std::collections::{BTreeMap, BTreeSet};

use eyrie_topology::spec::Parsed;
use eyrie_topology::{coords, Layout, Network, NetworkNode, TopologyError};
use serde::{Deserialize, Serialize};

use crate::cluster::{JobNode, Node, NodeState};
use crate::job::Job;
use crate::method::Method;
use crate::objective::Weights;
use crate::plan::choose_by;
use crate::traffic::{Rank, Traffic};
use crate::words::{network, nodes, wrong, WordError, Words};

/// A rank that needs a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Displaced {
    pub rank: Rank,
    /// The node that it is on, or was on.
    pub from: JobNode,
    /// Nodes that it goes to only if no other is left.
    pub avoids: Vec<JobNode>,
}

/// Why a node was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// The rank's own node is up.
    Same,
    /// A spare, or the spare that has taken the others of the lost node.
    Spare,
    /// No spare is left: the remaining node with the fewest ranks.
    Shared,
    /// The one that was asked for.
    Asked,
}

/// Where a displaced rank goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    pub rank: Rank,
    pub from: JobNode,
    pub to: JobNode,
    pub choice: Choice,
}

/// Decides where displaced ranks go, on the network of a job if that is known.
#[derive(Default)]
pub struct Placement {
    /// Without it the first free spare is taken.
    network: Option<OnNetwork>,
}

impl Placement {
    /// `words` has a host for each node of the job. The first `started` of them start with ranks;
    /// the others are spares.
    ///
    /// # Errors
    /// Of the first word that is wrong.
    pub fn on_network(words: &Words, started: usize) -> Result<Placement, WordError> {
        Ok(Placement { network: Some(OnNetwork::read(words, started)?) })
    }

    /// A node for each of these ranks, which are displaced by the same event, in any order; for
    /// none of them when no node is up.
    ///
    /// A rank whose node is up stays there. The ranks of a lost node go to the spare that replaces
    /// it, or else together to a free spare. Without a spare each goes to the node that has the
    /// fewest.
    pub fn assign(&self, nodes: &[Node], displaced: &[Displaced]) -> Vec<Assignment> {
        let mut displaced: Vec<&Displaced> = displaced.iter().collect();
        displaced.sort_by_key(|d| (d.from, d.rank));
        let mut nodes = nodes.to_vec();
        self.take_spares(&mut nodes, &displaced);
        displaced.into_iter().map_while(|d| place(&mut nodes, d)).collect()
    }

    /// Free spares replace the nodes that these ranks have to leave and that none replaces yet.
    fn take_spares(&self, nodes: &mut [Node], displaced: &[&Displaced]) {
        let needs_spare = |d: &&&Displaced| {
            let usable = usable(nodes, d);
            !usable.contains(&d.from) && replacement(nodes, &usable, d.from).is_none()
        };
        let lost: BTreeSet<JobNode> =
            displaced.iter().filter(needs_spare).map(|d| d.from).collect();
        let spares = match &self.network {
            Some(network) => network.spares_for(nodes, &lost),
            None => first_spares(nodes, &lost),
        };
        for (lost, spare) in spares {
            let node = &mut nodes[spare as usize];
            (node.is_free_spare, node.replaces) = (false, Some(lost));
        }
    }
}

/// The node of each rank at the start: ranks in order, as evenly as can be.
pub fn spread(ranks: u32, nodes: u32) -> impl Iterator<Item = JobNode> {
    (0..ranks).map(move |r| (u64::from(r) * u64::from(nodes) / u64::from(ranks)) as JobNode)
}

/// The nodes that can take the rank: the open ones that it does not avoid. If there is none, all
/// that are up.
fn usable(nodes: &[Node], displaced: &Displaced) -> Vec<JobNode> {
    let those = |wanted: &dyn Fn(JobNode, &Node) -> bool| -> Vec<JobNode> {
        let numbered = (0..).zip(nodes);
        numbered.filter(|(number, node)| wanted(*number, node)).map(|(number, _)| number).collect()
    };
    let open = those(&|number, node| node.is_open() && !displaced.avoids.contains(&number));
    if open.is_empty() {
        those(&|_, node| node.state != NodeState::Failed)
    } else {
        open
    }
}

/// The usable node that replaces `lost`.
fn replacement(nodes: &[Node], usable: &[JobNode], lost: JobNode) -> Option<JobNode> {
    usable.iter().copied().find(|&n| nodes[n as usize].replaces == Some(lost))
}

/// The node for a rank, which is counted there from then on; spares are taken already.
fn place(nodes: &mut [Node], displaced: &Displaced) -> Option<Assignment> {
    let &Displaced { rank, from, .. } = displaced;
    let usable = usable(nodes, displaced);
    let own = usable.contains(&from).then_some((from, Choice::Same));
    let spare = || replacement(nodes, &usable, from).map(|to| (to, Choice::Spare));
    let emptiest = || {
        let order = |&&n: &&JobNode| (nodes[n as usize].room() == 0, nodes[n as usize].ranks, n);
        let to = usable.iter().min_by_key(order);
        to.map(|&to| (to, Choice::Shared))
    };
    let (to, choice) = own.or_else(spare).or_else(emptiest)?;
    let node = &mut nodes[to as usize];
    node.ranks += 1;
    node.is_free_spare = false;
    Some(Assignment { rank, from, to, choice })
}

/// The free spares, in order.
fn free_spares(nodes: &[Node]) -> impl Iterator<Item = JobNode> + '_ {
    let free = |(_, n): &(JobNode, &Node)| n.is_open() && n.is_free_spare;
    (0..).zip(nodes).filter(free).map(|(number, _)| number)
}

/// The first free spare for the first lost node, and so on.
fn first_spares(nodes: &[Node], lost: &BTreeSet<JobNode>) -> BTreeMap<JobNode, JobNode> {
    lost.iter().copied().zip(free_spares(nodes)).collect()
}

/// A known network: of the free spares those are taken with the fewest messages on the busiest
/// link. The ranks of a node count as one.
struct OnNetwork {
    network: Box<dyn Network>,
    /// Where each node of the job is in the network, spares last.
    at: Vec<NetworkNode>,
    /// The job as it started; the ranks of a node count as one.
    job: Job,
}

impl OnNetwork {
    fn read(words: &Words, started: usize) -> Result<Self, WordError> {
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
    fn follow(&self, nodes: &[Node], lost: &BTreeSet<JobNode>, first: usize) -> usize {
        let mut here = first;
        // Each node replaces at most one, so the chain is no longer than there are nodes.
        for _ in 0..nodes.len() {
            let next = nodes.iter().position(|n| n.replaces == Some(here as JobNode));
            let is_left = !nodes[here].is_open() || lost.contains(&(here as JobNode));
            match next {
                Some(next) if is_left => here = next,
                _ => break,
            }
        }
        here
    }

    /// The spare that replaces each of these nodes, as far as there are spares.
    fn spares_for(&self, nodes: &[Node], lost: &BTreeSet<JobNode>) -> BTreeMap<JobNode, JobNode> {
        let first = first_spares(nodes, lost);
        let blocks = 0..self.job.ranks();
        let here: Vec<usize> = blocks.map(|b| self.follow(nodes, lost, b)).collect();
        // The place in the network of a node that has joined since is unknown.
        if first.is_empty() || here.iter().any(|&node| node >= self.at.len()) {
            return first;
        }
        let gone = |n: &JobNode| !nodes[*n as usize].is_open() || lost.contains(n);
        let known = 0..nodes.len().min(self.at.len()) as JobNode;
        let at = |node: JobNode| self.at[node as usize];
        let failed: Vec<NetworkNode> = known.filter(gone).map(at).collect();
        let is_known = |n: &JobNode| (*n as usize) < self.at.len();
        let free: Vec<NetworkNode> = free_spares(nodes).filter(is_known).map(at).collect();
        let mut job = self.job.clone();
        job.at = here.iter().map(|&node| self.at[node]).collect();
        let weights = Weights::default();
        let network = self.network.as_ref();
        let plan = choose_by(Method::Best0D, network, &job, &failed, &free, &weights);
        // Where the network no longer has routes for the traffic, or has fewer spares than lost
        // nodes, every spare is as good as the first.
        let Ok(plan) = plan else { return first };
        let chosen = |lost: JobNode| -> Option<JobNode> {
            let block = here.iter().position(|&node| node == lost as usize)?;
            let spare = self.at.iter().position(|&at| at == plan.placement[block])?;
            Some(spare as JobNode)
        };
        let mut chosen: BTreeMap<JobNode, JobNode> =
            lost.iter().filter_map(|&lost| Some((lost, chosen(lost)?))).collect();
        // A node that started without ranks and is no replacement is no block of the job.
        let taken: BTreeSet<JobNode> = chosen.values().copied().collect();
        let rest = free_spares(nodes).filter(|spare| !taken.contains(spare));
        let without: Vec<JobNode> =
            lost.iter().copied().filter(|n| !chosen.contains_key(n)).collect();
        chosen.extend(without.into_iter().zip(rest));
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spares::Arrangement;
    use eyrie_topology::spec::Files;
    use proptest::prelude::*;

    fn node(state: NodeState, is_free_spare: bool, ranks: u32, replaces: Option<JobNode>) -> Node {
        Node { state, slots: 4, ranks, is_free_spare, replaces }
    }

    /// Four nodes of two ranks and two spares.
    fn nodes() -> Vec<Node> {
        let mut nodes = vec![node(NodeState::Open, false, 2, None); 4];
        nodes.resize(6, node(NodeState::Open, true, 0, None));
        nodes
    }

    fn on_network(network: &str, traffic: &str) -> Result<Placement, WordError> {
        let text = |_: &str| Err(TopologyError::new("there are no files"));
        let words = Words {
            network: Some(network),
            names: None,
            hosts: &["a", "b", "c", "d", "e", "f"],
            nodes: &[],
            job: None,
            ranks_per_node: None,
            slots: None,
            spares: None,
            arrangement: Arrangement::Contiguous,
            traffic: Some(traffic),
            bytes: 1 << 20,
            files: Files { text: &text, slurm_topology: None, taper: 1.0 },
        };
        Placement::on_network(&words, 4)
    }

    fn displaced(rank: Rank, from: JobNode) -> Displaced {
        Displaced { rank, from, avoids: vec![] }
    }

    fn lose(nodes: &mut [Node], lost: JobNode) -> [Displaced; 2] {
        nodes[lost as usize].state = NodeState::Failed;
        nodes[lost as usize].ranks = 0;
        [2 * lost, 2 * lost + 1].map(|rank| displaced(rank, lost))
    }

    fn targets(assigned: &[Assignment]) -> Vec<JobNode> {
        assigned.iter().map(|a| a.to).collect()
    }

    /// The nodes once these ranks are where they were assigned.
    fn arrive(nodes: &mut [Node], assigned: &[Assignment]) {
        for a in assigned {
            let node = &mut nodes[a.to as usize];
            if a.choice == Choice::Spare {
                node.replaces = Some(a.from);
            }
            node.is_free_spare = false;
            node.ranks += 1;
        }
    }

    #[test]
    fn a_node_with_room_goes_before_an_emptier_one_without() {
        let mut nodes = vec![node(NodeState::Open, false, 3, None); 3];
        nodes[0].state = NodeState::Failed;
        (nodes[1].slots, nodes[1].ranks) = (2, 2);
        let ranks = [0, 1, 2].map(|rank| displaced(rank, 0));
        let placement = Placement::default();
        // The last of them fits nowhere, and goes to the emptiest all the same.
        assert_eq!(targets(&placement.assign(&nodes, &ranks)), [2, 1, 1]);
    }

    #[test]
    fn the_ranks_of_a_node_stay_together_and_those_of_the_next_go_elsewhere() {
        let mut nodes = nodes();
        let anywhere = Placement::default();
        let two: Vec<Displaced> = [0, 2].into_iter().flat_map(|n| lose(&mut nodes, n)).collect();
        let assigned = anywhere.assign(&nodes, &two);
        assert_eq!(targets(&assigned), [4, 4, 5, 5]);
        arrive(&mut nodes, &assigned);
        let third = lose(&mut nodes, 1);
        assert_eq!(targets(&anywhere.assign(&nodes, &third)), [3, 4]);
        for n in &mut nodes {
            n.state = NodeState::Failed;
        }
        assert_eq!(targets(&anywhere.assign(&nodes, &third)), []);
    }

    #[test]
    fn own_node_then_spare_then_the_emptiest() {
        let assign = |nodes: &[Node], from| {
            let assigned = Placement::default().assign(nodes, &[displaced(1, from)]);
            assigned.first().map(|a| (a.to, a.choice))
        };
        let mut nodes = vec![
            node(NodeState::Open, false, 2, None),
            node(NodeState::Failed, false, 2, None),
            node(NodeState::Open, true, 0, None),
        ];
        assert_eq!(assign(&nodes, 0), Some((0, Choice::Same)));
        assert_eq!(assign(&nodes, 1), Some((2, Choice::Spare)));
        nodes[2] = node(NodeState::Open, false, 1, Some(1));
        assert_eq!(assign(&nodes, 1), Some((2, Choice::Spare)));
        nodes[2].replaces = Some(0);
        assert_eq!(assign(&nodes, 1), Some((2, Choice::Shared)));
        nodes[2].state = NodeState::Failed;
        assert_eq!(assign(&nodes, 1), Some((0, Choice::Shared)));
        nodes[0].state = NodeState::Closed;
        assert_eq!(assign(&nodes, 1), Some((0, Choice::Shared)), "no open node is left");
        nodes[0].state = NodeState::Failed;
        assert_eq!(assign(&nodes, 1), None);
    }

    #[test]
    fn a_rank_goes_to_a_node_that_it_avoids_only_if_no_other_is_left() {
        let mut nodes = vec![node(NodeState::Open, false, 1, None); 2];
        let leaves = [Displaced { avoids: vec![0], ..displaced(0, 0) }];
        let assign = |nodes: &[Node]| Placement::default().assign(nodes, &leaves)[0];
        assert_eq!((assign(&nodes).to, assign(&nodes).choice), (1, Choice::Shared));
        nodes[1].state = NodeState::Failed;
        assert_eq!((assign(&nodes).to, assign(&nodes).choice), (0, Choice::Same));
    }

    #[test]
    fn without_spares_the_ranks_of_a_drained_node_are_spread() {
        let mut nodes = vec![node(NodeState::Open, false, 4, None); 3];
        nodes[0].state = NodeState::Closed;
        let all: Vec<Displaced> =
            (0..4).map(|rank| Displaced { avoids: vec![0], ..displaced(rank, 0) }).collect();
        assert_eq!(targets(&Placement::default().assign(&nodes, &all)), [1, 2, 1, 2]);
    }

    #[test]
    fn on_a_ring_the_nearer_spare_is_chosen_and_followed_when_it_is_lost_too() {
        let ring = on_network("torus:6", "alltoall").unwrap();
        let mut nodes = nodes();
        let of_first = lose(&mut nodes, 0);
        assert_eq!(targets(&Placement::default().assign(&nodes, &of_first)), [4, 4]);
        assert_eq!(targets(&ring.assign(&nodes, &of_first)), [5, 5]);
        let assign = |nodes: &[Node], from| targets(&ring.assign(nodes, &[displaced(0, from)]));
        nodes[5] = node(NodeState::Open, false, 2, Some(0));
        assert_eq!(assign(&nodes, 0), [5]);
        nodes[5].state = NodeState::Failed;
        assert_eq!(assign(&nodes, 5), [4]);
        nodes[4].state = NodeState::Failed;
        assert_eq!(assign(&nodes, 5), [1], "no spare is left");
    }

    proptest! {
        /// Any order of the same ranks has the same result, with and without a network.
        #[test]
        fn the_order_of_ranks_does_not_matter(
            down in prop::collection::btree_set(0u32..6, 1..4),
            order in Just((0..8u32).collect::<Vec<_>>()).prop_shuffle(),
            avoids in 0u32..6,
        ) {
            let mut nodes = nodes();
            for n in &down {
                nodes[*n as usize].state = NodeState::Failed;
            }
            let rank = |r: Rank| Displaced { avoids: vec![avoids], ..displaced(r, r / 2) };
            let sorted: Vec<Displaced> = (0..8).map(rank).collect();
            let shuffled: Vec<Displaced> = order.into_iter().map(rank).collect();
            let ring = on_network("torus:6", "alltoall").unwrap();
            for placement in [Placement::default(), ring] {
                let assigned = placement.assign(&nodes, &sorted);
                prop_assert_eq!(&assigned, &placement.assign(&nodes, &shuffled));
                prop_assert_eq!(assigned.len(), 8);
                prop_assert!(assigned.iter().all(|a| !down.contains(&a.to)));
            }
        }
    }

    #[test]
    fn ranks_are_spread_evenly_and_in_order() {
        assert_eq!(spread(5, 2).collect::<Vec<_>>(), [0, 0, 0, 1, 1]);
        assert_eq!(spread(4, 4).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(spread(1, 3).collect::<Vec<_>>(), [0]);
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
