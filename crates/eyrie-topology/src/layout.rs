//! A logical grid on a network's nodes: cell (row-major) to node and back. Sliding works on the
//! cells, routing on the nodes.

use crate::coords;
use crate::error::TopologyError;
use crate::network::{Network, NetworkNode};
use crate::tofu::Tofu;

/// `cell` of a node that the grid does not use.
pub const NO_CELL: u32 = u32::MAX;

/// Cells of a grid, each with a node of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    dims: Vec<usize>,
    node_of: Vec<NetworkNode>,
    cell_of: Vec<u32>,
}

impl Layout {
    /// `nodes[c]` is the node of cell c; no node twice.
    pub fn new(
        dims: &[usize],
        nodes: Vec<NetworkNode>,
        network_nodes: usize,
    ) -> Result<Self, TopologyError> {
        if dims.iter().product::<usize>() != nodes.len() {
            return crate::refuse!(
                "grid {} has {} cells but {} nodes are given",
                coords::format_dims(dims),
                dims.iter().product::<usize>(),
                nodes.len()
            );
        }
        let mut cell_of = vec![NO_CELL; network_nodes];
        for (cell, &node) in nodes.iter().enumerate() {
            match cell_of.get_mut(node as usize) {
                Some(slot) if *slot == NO_CELL => *slot = cell as u32,
                Some(_) => return crate::refuse!("node {node} has two cells"),
                None => return crate::refuse!("node {node} is outside 0 to {}", network_nodes - 1),
            }
        }
        Ok(Layout { dims: dims.to_vec(), node_of: nodes, cell_of })
    }

    /// Cell i is node i.
    pub fn identity(dims: &[usize], network_nodes: usize) -> Result<Self, TopologyError> {
        let cells: usize = dims.iter().product();
        if cells > network_nodes {
            return crate::refuse!(
                "grid {} needs {cells} nodes: the network has {network_nodes}",
                coords::format_dims(dims)
            );
        }
        Self::new(dims, (0..cells as NetworkNode).collect(), network_nodes)
    }

    /// The network's own grid, or a line of all nodes where it has none.
    pub fn natural(network: &dyn Network) -> Result<Self, TopologyError> {
        let dims = network.grid().unwrap_or_else(|| vec![network.nodes()]);
        Self::identity(&dims, network.nodes())
    }

    /// A virtual grid of 1, 2 or 3 axes over Tofu. The six axes are divided among them so that the
    /// extents match, and each virtual axis runs through its physical axes like a reflected Gray
    /// code, so that neighbours are one hop apart.
    pub fn tofu(network: &Tofu, shape: &[usize]) -> Result<Self, TopologyError> {
        let physical = network.dims();
        let Some(groups) = share_out(physical, shape) else {
            return crate::refuse!(
                "shape {} does not fit {}: each extent must be a product of some of the six, all \
                 used once; \
                 {} does",
                coords::format_dims(shape),
                network.describe(),
                coords::format_dims(&Self::tofu_default_shape(network))
            );
        };
        let strides = coords::strides(physical);
        let mut nodes = Vec::with_capacity(network.nodes());
        let axes: Vec<Vec<usize>> = groups
            .iter()
            .map(|group| {
                let extents: Vec<usize> = group.iter().map(|&a| physical[a]).collect();
                snake(&extents)
                    .into_iter()
                    .map(|at| at.iter().zip(group).map(|(c, &a)| c * strides[a]).sum())
                    .collect()
            })
            .collect();
        coords::for_each(shape, |c| {
            nodes.push(c.iter().zip(&axes).map(|(&i, axis)| axis[i]).sum::<usize>() as NetworkNode)
        });
        Self::new(shape, nodes, network.nodes())
    }

    /// The three virtual axes that the K computer offers: X·A, Y·B, Z·C.
    pub fn tofu_default_shape(network: &Tofu) -> Vec<usize> {
        let d = network.dims();
        vec![d[0] * d[3], d[1] * d[4], d[2] * d[5]]
    }

    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    pub fn cells(&self) -> usize {
        self.node_of.len()
    }

    pub fn node(&self, cell: usize) -> NetworkNode {
        self.node_of[cell]
    }

    /// The cell of a node, if the grid uses it.
    pub fn cell(&self, node: NetworkNode) -> Option<usize> {
        match self.cell_of[node as usize] {
            NO_CELL => None,
            cell => Some(cell as usize),
        }
    }
}

/// For each virtual axis the physical axes that make it up, slowest first. It prefers A with X, B
/// with Y, C with Z, then the first assignment in order.
fn share_out(physical: &[usize], shape: &[usize]) -> Option<Vec<Vec<usize>>> {
    // Slowest first within a group: X, Y, Z, then A, C, B.
    const SLOWEST_FIRST: [usize; 6] = [0, 1, 2, 3, 5, 4];
    let v = shape.len();
    if v == 0 || v > 6 {
        return None;
    }
    let assignments = (0..v.pow(6)).filter_map(|code| {
        let owner: Vec<usize> = (0..6).map(|a| code / v.pow(a as u32) % v).collect();
        let mut products = vec![1; v];
        for a in 0..6 {
            products[owner[a]] *= physical[a];
        }
        if products != shape {
            return None;
        }
        let pairs = (0..3).filter(|&a| owner[a] == owner[a + 3]).count();
        let order = owner[0..3].windows(2).filter(|w| w[0] <= w[1]).count();
        Some((std::cmp::Reverse((pairs, order)), code, owner))
    });
    let (_, _, owner) = assignments.min()?;
    Some((0..v).map(|g| SLOWEST_FIRST.into_iter().filter(|&a| owner[a] == g).collect()).collect())
}

/// Coordinates of a box in an order where each step changes one coordinate by one (boustrophedon).
fn snake(extents: &[usize]) -> Vec<Vec<usize>> {
    let Some((&first, rest)) = extents.split_first() else { return vec![Vec::new()] };
    let inner = snake(rest);
    (0..first)
        .flat_map(|i| {
            let line: Vec<Vec<usize>> = inner
                .iter()
                .map(|tail| std::iter::once(i).chain(tail.iter().copied()).collect())
                .collect();
            if i % 2 == 0 {
                line
            } else {
                line.into_iter().rev().collect()
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_neighbours_on_tofu_are_one_hop_apart() {
        for (dims, shapes) in [
            ([1, 1, 6, 2, 3, 2], vec![vec![6, 12], vec![12, 6], vec![72], vec![2, 3, 12]]),
            ([2, 1, 6, 2, 3, 2], vec![vec![12, 12], vec![144], vec![4, 3, 12]]),
            ([2, 3, 2, 2, 3, 2], vec![vec![4, 9, 4], vec![12, 12]]),
        ] {
            let tofu = Tofu::new(&dims).unwrap();
            for shape in shapes {
                let layout = Layout::tofu(&tofu, &shape).unwrap();
                let strides = coords::strides(&shape);
                coords::for_each(&shape, |c| {
                    for axis in 0..shape.len() {
                        if c[axis] + 1 < shape[axis] {
                            let cell = coords::index(c, &shape);
                            let mut route = Vec::new();
                            tofu.route(
                                layout.node(cell),
                                layout.node(cell + strides[axis]),
                                &mut route,
                            )
                            .unwrap();
                            assert_eq!(route.len(), 1, "{dims:?} {shape:?} {c:?} axis {axis}");
                        }
                    }
                });
            }
        }
    }

    #[test]
    fn a_shape_that_does_not_fit_names_one_that_does() {
        let tofu = Tofu::new(&[2, 1, 6, 2, 3, 2]).unwrap();
        let error = Layout::tofu(&tofu, &[11, 13]).unwrap_err().0;
        assert!(error.contains("11x13") && error.contains("4x3x12 does"), "{error}");
    }

    #[test]
    fn a_grid_larger_than_the_network_is_refused() {
        assert!(Layout::identity(&[4, 4], 15).unwrap_err().0.contains("needs 16 nodes"));
        assert!(Layout::new(&[2], vec![1, 1], 3).unwrap_err().0.contains("two cells"));
    }
}
