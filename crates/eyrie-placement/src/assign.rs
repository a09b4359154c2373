//! Where the displaced ranks of a running job go. Nodes may have several ranks, and those of a lost
//! node stay together as long as there are spares. Ranks that are not displaced never move.

use std::cell::RefCell;
use std::collections::BTreeMap;

use eyrie_topology::{Network, NetworkNode, VertexId};
use serde::{Deserialize, Serialize};

use crate::cluster::{JobNode, JobNodes, Node, NodeState};
use crate::cost::CostModel;
use crate::method::Method;
use crate::on_network::{OnNetwork, Scene};
use crate::traffic::{Rank, RankMessage};
use crate::words::{WordError, Words};

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

/// What links carry when ranks are on other nodes.
pub struct Links<'a>(RefCell<Scene<'a>>);

impl Links<'_> {
    /// Messages on the busiest link when these ranks have gone to these nodes; `None`: a node is
    /// not known in the network.
    pub fn busiest_after(&self, moves: &[(Rank, JobNode)]) -> Option<u64> {
        self.0.borrow_mut().busiest_after(moves)
    }
}

/// Decides where ranks go, on the network of a job if that is known.
pub struct Placement {
    /// Without it the first free spare is taken.
    pub(crate) network: Option<OnNetwork>,
    /// How the ranks of lost nodes get their nodes: what [`crate::rearrange`] comes to.
    pub(crate) method: Method,
}

impl Default for Placement {
    fn default() -> Placement {
        Placement { network: None, method: Method::Best0D }
    }
}

impl Placement {
    /// `words` has a host for each node of the job, spares last. `start`: the node that each rank
    /// starts on. `method`: how the ranks of lost nodes get their nodes.
    ///
    /// # Errors
    /// Of the first word that is wrong.
    pub fn on_network(
        words: &Words,
        start: &[JobNode],
        method: Method,
        costs: CostModel,
    ) -> Result<Placement, WordError> {
        Ok(Placement { network: Some(OnNetwork::read(words, start, costs)?), method })
    }

    /// The network, where it is known.
    pub fn network(&self) -> Option<&dyn Network> {
        self.network.as_ref().map(|on| on.network.as_ref())
    }

    /// The network's node that a node of the job is, where that is known.
    pub fn position(&self, node: JobNode) -> Option<NetworkNode> {
        self.network.as_ref()?.position(node)
    }

    /// The name of a node or switch of the network.
    pub fn vertex_name(&self, vertex: VertexId) -> String {
        self.network.as_ref().map_or_else(String::new, |on| on.vertex_name(vertex))
    }

    /// Whether ranks that live may have to move once others have come back from a lost node.
    pub fn moves_live_ranks(&self) -> bool {
        let slides = matches!(self.method, Method::Slide(_) | Method::Hybrid | Method::Search);
        self.network.is_some() && slides
    }

    /// What ranks have sent each other in so many seconds, as it was measured: from now on they are
    /// placed by it. Without a network, and where nothing is sent, nothing changes.
    pub fn measure(&mut self, messages: &[RankMessage], seconds: f64) {
        if let Some(network) = &mut self.network {
            network.measure(messages, seconds);
        }
    }

    /// Whether what ranks send each other was measured.
    pub fn is_measured(&self) -> bool {
        self.network.as_ref().is_some_and(|network| network.measured.is_some())
    }

    /// All hosts of the job, with those that have joined.
    pub fn join(&mut self, hosts: &[String]) {
        if let Some(network) = &mut self.network {
            network.join(hosts);
        }
    }

    /// Gives `f` what tells nodes apart by the network, where that is known.
    pub fn with_links<R>(
        &self,
        cluster: JobNodes<'_>,
        f: impl FnOnce(Option<&Links<'_>>) -> R,
    ) -> R {
        let Some(network) = &self.network else { return f(None) };
        let traffic = network.traffic_of(&cluster);
        let links = network.scene(&traffic, &cluster).map(|scene| Links(RefCell::new(scene)));
        f(links.as_ref())
    }

    /// A node for each of these ranks, which are displaced by the same event, in any order; for
    /// none of them when no node is up.
    ///
    /// A rank whose node is up stays there. The ranks of a lost node go to the spare that replaces
    /// it, or else together to a free spare: the first one, or on a known network that with the
    /// fewest messages on the busiest link. Without a spare each goes to the node that has the
    /// fewest ranks, and of several to that with the fewest messages on the busiest link.
    pub fn assign(&self, cluster: JobNodes<'_>, displaced: &[Displaced]) -> Vec<Assignment> {
        let mut displaced: Vec<&Displaced> = displaced.iter().collect();
        displaced.sort_by_key(|d| (d.from, d.rank));
        let mut nodes = cluster.nodes.to_vec();
        let network = self.network.as_ref().filter(|_| self.method != Method::FirstFree);
        let traffic = network.map(|network| network.traffic_of(&cluster));
        let mut scene = match (network, &traffic) {
            (Some(network), Some(traffic)) => network.scene(traffic, &cluster),
            _ => None,
        };
        take_spares(&mut nodes, &displaced, scene.as_mut());
        displaced.into_iter().map_while(|d| place(&mut nodes, d, scene.as_mut())).collect()
    }
}

/// Free spares replace the nodes that these ranks have to leave and that none replaces yet.
fn take_spares(nodes: &mut [Node], displaced: &[&Displaced], mut scene: Option<&mut Scene<'_>>) {
    let mut lost: BTreeMap<JobNode, Vec<Rank>> = BTreeMap::new();
    for d in displaced {
        let usable = usable(nodes, d);
        if !usable.contains(&d.from) && replacement(nodes, &usable, d.from).is_none() {
            lost.entry(d.from).or_default().push(d.rank);
        }
    }
    for (lost, ranks) in lost {
        let Some(spare) = best(&ranks, &free_spares(nodes), scene.as_deref_mut()) else { return };
        let node = &mut nodes[spare as usize];
        (node.is_free_spare, node.replaces) = (false, Some(lost));
        if let Some(scene) = &mut scene {
            scene.go(&ranks, spare);
        }
    }
}

/// The node of these for the ranks: on a known network the best one, else the first.
fn best(ranks: &[Rank], nodes: &[JobNode], scene: Option<&mut Scene<'_>>) -> Option<JobNode> {
    let known = scene.filter(|_| nodes.len() > 1).and_then(|scene| scene.best(ranks, nodes));
    known.or(nodes.first().copied())
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
fn place(
    nodes: &mut [Node],
    displaced: &Displaced,
    mut scene: Option<&mut Scene<'_>>,
) -> Option<Assignment> {
    let &Displaced { rank, from, .. } = displaced;
    let usable = usable(nodes, displaced);
    let own = usable.contains(&from).then_some((from, Choice::Same));
    let spare = || replacement(nodes, &usable, from).map(|to| (to, Choice::Spare));
    let emptiest = || {
        let order = |n: &JobNode| (nodes[*n as usize].room() == 0, nodes[*n as usize].ranks);
        let least = usable.iter().map(order).min()?;
        let alike: Vec<JobNode> = usable.iter().copied().filter(|n| order(n) == least).collect();
        best(&[rank], &alike, scene.as_deref_mut()).map(|to| (to, Choice::Shared))
    };
    let (to, choice) = own.or_else(spare).or_else(emptiest)?;
    if let Some(scene) = scene.filter(|_| to != from) {
        scene.go(&[rank], to);
    }
    let node = &mut nodes[to as usize];
    node.ranks += 1;
    node.is_free_spare = false;
    Some(Assignment { rank, from, to, choice })
}

/// The free spares, in order.
fn free_spares(nodes: &[Node]) -> Vec<JobNode> {
    let free = |(_, n): &(JobNode, &Node)| n.is_open() && n.is_free_spare;
    (0..).zip(nodes).filter(free).map(|(number, _)| number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_topology::spec::Files;
    use eyrie_topology::TopologyError;
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
        let hosts = ["a", "b", "c", "d", "e", "f"];
        let files = Files { text: &text, slurm_topology: None, taper: 1.0 };
        let words = Words::of_running_job(network, &hosts, Some(traffic), files);
        let start: Vec<JobNode> = spread(8, 4).collect();
        Placement::on_network(&words, &start, Method::Best0D, CostModel::default())
    }

    /// Two ranks on each of the first four nodes, but for those that are displaced.
    fn assign(placement: &Placement, nodes: &[Node], displaced: &[Displaced]) -> Vec<Assignment> {
        let mut at: Vec<Option<JobNode>> = spread(8, 4).map(Some).collect();
        for d in displaced {
            at[d.rank as usize] = Some(d.from);
        }
        placement.assign(JobNodes { nodes, at: &at }, displaced)
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
    fn the_spare_is_the_one_whose_links_are_free_of_what_was_measured() {
        let message = |from, to, bytes, count| RankMessage { from, to, bytes, count };
        // Three rows of two, two ranks a node. Rank 2 of node 1, which is lost, sends to others.
        let chosen = |messages: &[RankMessage]| {
            let mut placement = on_network("mesh:3x2", "alltoall").unwrap();
            placement.measure(messages, 10.0);
            let mut nodes = nodes();
            let lost = lose(&mut nodes, 1);
            targets(&assign(&placement, &nodes, &lost))[0]
        };
        let large = |from, to| message(from, to, 1 << 40, 1);
        let small = |from, to| message(from, to, 8, 1000);
        // What spare 4 sends to node 3 goes by node 2, and what spare 5 sends to node 2 by node 3.
        assert_eq!(chosen(&[large(2, 6), large(4, 6), small(2, 4), small(6, 4)]), 5);
        assert_eq!(chosen(&[large(3, 5), large(7, 4), small(2, 6), small(4, 6)]), 4);
        // Nothing is sent, or by ranks that there are not.
        assert_eq!(chosen(&[]), chosen(&[message(2, 2, 1, 1), message(9, 1, 1, 1)]));
        Placement::default().measure(&[message(0, 1, 1, 1)], 10.0);
    }

    #[test]
    fn without_a_spare_the_emptiest_nodes_are_told_apart_by_their_links() {
        // A line of six: rank 2 of node 1 sends to rank 7 of node 3, and to rank 0 of node 0.
        let mut placement = on_network("mesh:6", "alltoall").unwrap();
        let message = |from, to, bytes| RankMessage { from, to, bytes, count: 1 };
        placement.measure(&[message(2, 7, 1 << 20), message(7, 2, 1 << 20), message(0, 4, 9)], 1.0);
        let mut nodes = nodes();
        nodes.truncate(4);
        let lost = lose(&mut nodes, 1);
        assert_eq!(
            targets(&Placement::default().assign(JobNodes { nodes: &nodes, at: &[] }, &lost)),
            [0, 2]
        );
        assert_eq!(targets(&assign(&placement, &nodes, &lost)), [3, 0]);
    }

    #[test]
    fn a_host_that_joins_is_where_its_name_is_in_the_network() {
        let mut placement = on_network("torus:6", "alltoall").unwrap();
        let hosts = ["a", "b", "c", "d", "e", "f", "a", "x"].map(String::from);
        placement.join(&hosts);
        placement.join(&hosts);
        let network = placement.network.as_ref().unwrap();
        assert_eq!([6, 7, 8].map(|node| network.position(node)), [Some(0), None, None]);
        // Where the place of none is known the first one is taken.
        let mut nodes = nodes();
        nodes[4].state = NodeState::Failed;
        nodes[5].state = NodeState::Failed;
        nodes.push(node(NodeState::Failed, false, 0, None));
        nodes.push(node(NodeState::Open, true, 0, None));
        nodes.push(node(NodeState::Open, true, 0, None));
        let lost = lose(&mut nodes, 2);
        assert_eq!(targets(&assign(&placement, &nodes, &lost)), [7, 7]);
    }

    #[test]
    fn a_node_with_room_goes_before_an_emptier_one_without() {
        let mut nodes = vec![node(NodeState::Open, false, 3, None); 3];
        nodes[0].state = NodeState::Failed;
        (nodes[1].slots, nodes[1].ranks) = (2, 2);
        let ranks = [0, 1, 2].map(|rank| displaced(rank, 0));
        let placement = Placement::default();
        // The last of them fits nowhere, and goes to the emptiest all the same.
        assert_eq!(targets(&assign(&placement, &nodes, &ranks)), [2, 1, 1]);
    }

    #[test]
    fn the_ranks_of_a_node_stay_together_and_those_of_the_next_go_elsewhere() {
        let mut nodes = nodes();
        let anywhere = Placement::default();
        let two: Vec<Displaced> = [0, 2].into_iter().flat_map(|n| lose(&mut nodes, n)).collect();
        let assigned = assign(&anywhere, &nodes, &two);
        assert_eq!(targets(&assigned), [4, 4, 5, 5]);
        arrive(&mut nodes, &assigned);
        let third = lose(&mut nodes, 1);
        assert_eq!(targets(&assign(&anywhere, &nodes, &third)), [3, 4]);
        for n in &mut nodes {
            n.state = NodeState::Failed;
        }
        assert_eq!(targets(&assign(&anywhere, &nodes, &third)), []);
    }

    #[test]
    fn own_node_then_spare_then_the_emptiest() {
        let assign = |nodes: &[Node], from| {
            let assigned = assign(&Placement::default(), nodes, &[displaced(1, from)]);
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
        let assign = |nodes: &[Node]| assign(&Placement::default(), nodes, &leaves)[0];
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
        assert_eq!(targets(&assign(&Placement::default(), &nodes, &all)), [1, 2, 1, 2]);
    }

    #[test]
    fn on_a_ring_the_nearer_spare_is_chosen_and_followed_when_it_is_lost_too() {
        let ring = on_network("torus:6", "alltoall").unwrap();
        let mut nodes = nodes();
        let of_first = lose(&mut nodes, 0);
        assert_eq!(targets(&assign(&Placement::default(), &nodes, &of_first)), [4, 4]);
        assert_eq!(targets(&assign(&ring, &nodes, &of_first)), [5, 5]);
        let assign = |nodes: &[Node], from| targets(&assign(&ring, nodes, &[displaced(0, from)]));
        nodes[5] = node(NodeState::Open, false, 2, Some(0));
        assert_eq!(assign(&nodes, 0), [5]);
        nodes[5].state = NodeState::Failed;
        assert_eq!(assign(&nodes, 5), [4]);
        nodes[4].state = NodeState::Failed;
        assert_eq!(assign(&nodes, 5), [2], "no spare is left: the one in the middle");
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
                let assigned = assign(&placement, &nodes, &sorted);
                prop_assert_eq!(&assigned, &assign(&placement, &nodes, &shuffled));
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
            ("torus:6", "gossip", "traffic: traffic `gossip`"),
        ] {
            let error = on_network(network, traffic).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(fault), "{error}");
        }
    }
}
