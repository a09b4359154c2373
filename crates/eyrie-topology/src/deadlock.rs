//! Whether a set of routes can deadlock. By Dally and Seitz (1987), routes are deadlock-free when
//! the graph of channel dependencies (a message holds one channel while it waits for the next) has
//! no cycle.

use std::collections::HashMap;

use crate::network::{LinkId, Network, NetworkNode, RouteError};

/// A directed link and the virtual channel on it.
pub type Channel = (LinkId, u8);

/// A cycle of channels that the routes of these pairs can close, or `None` when they cannot
/// deadlock.
pub fn find_cycle(
    network: &dyn Network,
    pairs: impl Iterator<Item = (NetworkNode, NetworkNode)>,
) -> Result<Option<Vec<Channel>>, RouteError> {
    let mut ids: HashMap<Channel, usize> = HashMap::new();
    let mut channels: Vec<Channel> = Vec::new();
    let mut next: Vec<Vec<usize>> = Vec::new();
    let mut route = Vec::new();
    for (from, to) in pairs {
        route.clear();
        network.route(from, to, &mut route)?;
        let mut last = None;
        for channel in route.iter().copied().zip(network.channels(from, &route)) {
            let id = *ids.entry(channel).or_insert_with(|| {
                channels.push(channel);
                next.push(Vec::new());
                channels.len() - 1
            });
            if let Some(last) = last {
                let successors: &mut Vec<usize> = &mut next[last];
                if !successors.contains(&id) {
                    successors.push(id);
                }
            }
            last = Some(id);
        }
    }
    Ok(cycle(&next).map(|ids| ids.into_iter().map(|id| channels[id]).collect()))
}

/// Depth-first search without recursion; returns the vertices of the first cycle found.
fn cycle(next: &[Vec<usize>]) -> Option<Vec<usize>> {
    const NEW: u8 = 0;
    const OPEN: u8 = 1;
    const DONE: u8 = 2;
    let mut state = vec![NEW; next.len()];
    for root in 0..next.len() {
        if state[root] != NEW {
            continue;
        }
        state[root] = OPEN;
        let mut path = vec![(root, 0)];
        while let Some((vertex, tried)) = path.last_mut() {
            match next[*vertex].get(*tried) {
                None => {
                    state[*vertex] = DONE;
                    path.pop();
                }
                Some(&to) => {
                    *tried += 1;
                    if state[to] == OPEN {
                        let start = path.iter().position(|&(v, _)| v == to).unwrap_or(0);
                        return Some(path[start..].iter().map(|&(v, _)| v).collect());
                    }
                    if state[to] == NEW {
                        state[to] = OPEN;
                        path.push((to, 0));
                    }
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cartesian::Cartesian;
    use crate::dragonfly::{Dragonfly, Routing};
    use crate::fat_tree::FatTree;
    use crate::graph::Graph;
    use crate::tofu::Tofu;

    fn all_pairs(network: &dyn Network) -> Option<Vec<Channel>> {
        let n = network.nodes() as NetworkNode;
        find_cycle(network, (0..n).flat_map(|a| (0..n).map(move |b| (a, b)))).unwrap()
    }

    #[test]
    fn the_built_in_orders_are_free_of_deadlock() {
        let networks: Vec<Box<dyn Network>> = vec![
            Box::new(Cartesian::mesh(&[4, 5])),
            Box::new(Cartesian::torus(&[5, 4, 3])),
            Box::new(Tofu::new(&[3, 2, 2, 2, 3, 2]).unwrap()),
            Box::new(FatTree::k_ary(3, 3, 1, 1).unwrap()),
            Box::new(Dragonfly::new(5, 2, 3, 1, Routing::Minimal).unwrap()),
            Box::new(Dragonfly::new(5, 2, 3, 1, Routing::Valiant { seed: 3 }).unwrap()),
        ];
        for network in networks {
            assert_eq!(all_pairs(network.as_ref()), None, "{}", network.describe());
        }
    }

    #[test]
    fn a_ring_without_a_dateline_has_a_cycle() {
        let ring = "eyrie-graph 1\nnode a\nnode b\nnode c\nlink a b oneway\nlink b c oneway\nlink c a oneway\nroutes shortest";
        assert_eq!(all_pairs(&Graph::parse(ring).unwrap()).map(|c| c.len()), Some(3));
    }
}
