//! Where the ranks of a lost node go. Pure, and small: a planner that knows the network may take its place.

use eyrie_wire::Node;
use serde::{Deserialize, Serialize};

/// What is known of a node when a place is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    pub up: bool,
    /// Started without ranks, and has none yet.
    pub free_spare: bool,
    /// Ranks that are on it, or on the way to it.
    pub ranks: u32,
    /// Which node's ranks it has taken over.
    pub stands_for: Option<Node>,
}

/// Why a node was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// The rank's own node is up.
    Same,
    /// A spare, or the spare that has taken the others of the lost node.
    Spare,
    /// No spare is left: the remaining node with the fewest ranks.
    Shared,
}

/// The node for a rank that was on `from`; `None` when no node is up.
pub fn place(nodes: &[Candidate], from: Node) -> Option<(Node, Choice)> {
    let find = |wanted: &dyn Fn(&Candidate) -> bool| {
        nodes.iter().position(|n| n.up && wanted(n)).map(|i| i as Node)
    };
    if nodes.get(from as usize).is_some_and(|n| n.up) {
        return Some((from, Choice::Same));
    }
    if let Some(node) = find(&|n| n.stands_for == Some(from)).or_else(|| find(&|n| n.free_spare)) {
        return Some((node, Choice::Spare));
    }
    let up = nodes.iter().enumerate().filter(|(_, n)| n.up);
    up.min_by_key(|(i, n)| (n.ranks, *i)).map(|(i, _)| (i as Node, Choice::Shared))
}

/// The node of each rank at the start: ranks in order, as evenly as can be.
pub fn initial(ranks: u32, nodes: u32) -> impl Iterator<Item = Node> {
    (0..ranks).map(move |r| (u64::from(r) * u64::from(nodes) / u64::from(ranks)) as Node)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(up: bool, free_spare: bool, ranks: u32, stands_for: Option<Node>) -> Candidate {
        Candidate { up, free_spare, ranks, stands_for }
    }

    #[test]
    fn own_node_then_spare_then_the_emptiest() {
        let mut nodes = vec![
            node(true, false, 2, None),
            node(false, false, 2, None),
            node(true, true, 0, None),
        ];
        assert_eq!(place(&nodes, 0), Some((0, Choice::Same)));
        assert_eq!(place(&nodes, 1), Some((2, Choice::Spare)));
        nodes[2] = node(true, false, 1, Some(1));
        assert_eq!(place(&nodes, 1), Some((2, Choice::Spare)));
        nodes[2].stands_for = Some(0);
        assert_eq!(place(&nodes, 1), Some((2, Choice::Shared)));
        nodes[2].up = false;
        assert_eq!(place(&nodes, 1), Some((0, Choice::Shared)));
        nodes[0].up = false;
        assert_eq!(place(&nodes, 1), None);
    }

    #[test]
    fn ranks_are_spread_evenly_and_in_order() {
        assert_eq!(initial(5, 2).collect::<Vec<_>>(), [0, 0, 0, 1, 1]);
        assert_eq!(initial(4, 4).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(initial(1, 3).collect::<Vec<_>>(), [0]);
    }
}
