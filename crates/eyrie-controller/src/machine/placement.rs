//! Which node takes a rank: what eyrie-placement is asked, and its answer in the words of events.
//! Decides nothing itself.

use eyrie_placement::placement::{Displaced, JobNode, Placement};
use eyrie_wire::{Node, Rank};
use serde::{Deserialize, Serialize};

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
    /// The one that was asked for.
    Asked,
}

/// The node for a rank that was on `from`; `None` when no node is up.
pub fn place(
    placement: &dyn Placement,
    nodes: &[JobNode],
    rank: Rank,
    from: Node,
) -> Option<(Node, Choice)> {
    let moved = *placement.moves(nodes, &[Displaced { rank, from }]).first()?;
    let node = &nodes[moved.to as usize];
    let choice = match moved.to {
        to if to == from => Choice::Same,
        _ if node.free_spare || node.stands_for == Some(from) => Choice::Spare,
        _ => Choice::Shared,
    };
    Some((moved.to, choice))
}

/// The node of each rank at the start: ranks in order, as evenly as can be.
pub fn initial(ranks: u32, nodes: u32) -> impl Iterator<Item = Node> {
    (0..ranks).map(move |r| (u64::from(r) * u64::from(nodes) / u64::from(ranks)) as Node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_placement::WithoutNetwork;

    fn node(up: bool, free_spare: bool, ranks: u32, stands_for: Option<Node>) -> JobNode {
        JobNode { up, free_spare, ranks, stands_for }
    }

    #[test]
    fn own_node_then_spare_then_the_emptiest() {
        let place = |nodes: &[JobNode], from| place(&WithoutNetwork, nodes, 1, from);
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
