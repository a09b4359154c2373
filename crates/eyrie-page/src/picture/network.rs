//! The network of a job in the picture: where its nodes and switches are drawn. A grid is drawn as
//! it is, with the planes of further axes side by side. Other networks are drawn in levels: nodes
//! at the bottom, above them the switches by how far they are from nodes.

use eyrie_interface::network::Network;
use eyrie_wire::NodeId;
use serde::Serialize;
use std::collections::VecDeque;

/// The gap between two planes, in distances of neighbours.
const GAP: f64 = 1.0;
/// The height of a level, in distances of neighbours.
const LEVEL: f64 = 2.5;
/// Nodes of a network without a grid that stand in one row.
const ROW: usize = 64;

/// A network as it is drawn. Distances are in those of neighbours.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct NetworkPicture {
    pub network: String,
    /// How many nodes it has.
    pub nodes: usize,
    /// None: it is too large to be drawn.
    pub vertices: Vec<VertexPicture>,
    pub links: Vec<(u32, u32, u32)>,
    /// The extents of a plane of a grid: a link between places that are no neighbours leads out of
    /// the plane. `None`: it is no grid.
    pub plane: Option<(usize, usize)>,
    pub width: f64,
    pub height: f64,
}

/// A node or a switch.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct VertexPicture {
    pub name: String,
    pub x: f64,
    pub y: f64,
    pub is_switch: bool,
    /// The node of the job that it is. Of several the last one: a host that has joined again.
    pub node: Option<NodeId>,
}

impl NetworkPicture {
    pub fn of(network: &Network) -> NetworkPicture {
        let count = network.vertices.len();
        let grid = network.grid.as_ref().filter(|grid| grid.iter().product::<usize>() == count);
        let places = match grid {
            Some(grid) => (0..count).map(|vertex| on_grid(vertex, grid)).collect(),
            None => in_levels(network),
        };
        let mut vertices: Vec<VertexPicture> = (network.vertices.iter().zip(&places))
            .enumerate()
            .map(|(number, (name, (x, y)))| VertexPicture {
                name: name.clone(),
                x: *x,
                y: *y,
                is_switch: number >= network.nodes,
                node: None,
            })
            .collect();
        for (node, at) in (0..).map(NodeId).zip(&network.at) {
            if let Some(vertex) = at.and_then(|at| vertices.get_mut(at as usize)) {
                vertex.node = Some(node);
            }
        }
        let most = |of: fn(&(f64, f64)) -> f64| places.iter().map(of).fold(0.0, f64::max) + 1.0;
        NetworkPicture {
            network: network.network.clone(),
            nodes: network.nodes,
            vertices,
            links: network.links.clone(),
            plane: grid.map(|grid| (extent(grid, 0), extent(grid, 1))),
            width: most(|(x, _)| *x),
            height: most(|(_, y)| *y),
        }
    }
}

/// The place of a node in a grid: the first axis to the right, the second one downwards. Planes of
/// further axes stand side by side, in as many rows as columns.
fn on_grid(node: usize, grid: &[usize]) -> (f64, f64) {
    // The last axis is the fastest.
    let mut coords: Vec<usize> = Vec::new();
    let mut rest = node;
    for extent in grid.iter().rev() {
        coords.push(rest % extent.max(&1));
        rest /= extent.max(&1);
    }
    coords.reverse();
    let at = |axis: usize| coords.get(axis).copied().unwrap_or(0);
    let mut plane = 0;
    for axis in 2..grid.len() {
        plane = plane * extent(grid, axis) + at(axis);
    }
    let planes: usize = grid.iter().skip(2).product();
    let columns = (planes as f64).sqrt().ceil().max(1.0) as usize;
    let left = (plane % columns) as f64 * (extent(grid, 0) as f64 + GAP);
    let top = (plane / columns) as f64 * (extent(grid, 1) as f64 + GAP);
    (left + at(0) as f64, top + at(1) as f64)
}

fn extent(grid: &[usize], axis: usize) -> usize {
    grid.get(axis).copied().unwrap_or(1)
}

/// The places of nodes and switches in levels.
fn in_levels(network: &Network) -> Vec<(f64, f64)> {
    let count = network.vertices.len();
    let mut neighbours = vec![Vec::new(); count];
    for (_, from, to) in &network.links {
        let ends = [(*from, *to), (*to, *from)];
        for (one, other) in ends.map(|(one, other)| (one as usize, other as usize)) {
            if one < count && other < count && one != other {
                neighbours[one].push(other);
            }
        }
    }
    let levels = levels(&neighbours, network.nodes);
    let highest = levels.iter().copied().max().unwrap_or(0);
    // Many nodes stand in several rows.
    let rows = network.nodes.min(count).div_ceil(ROW).max(1);
    let width = network.nodes.min(count).clamp(2, ROW) as f64;
    let bottom = highest as f64 * LEVEL;
    let mut places = vec![(0.0, 0.0); count];
    for (node, place) in places.iter_mut().enumerate().take(network.nodes) {
        let row = node * rows / network.nodes.max(1);
        let first = (row * network.nodes).div_ceil(rows);
        *place = ((node - first) as f64, bottom + row as f64);
    }
    for level in 1..=highest {
        let above = (network.nodes..count).filter(|vertex| levels[*vertex] == level);
        let mut above: Vec<(f64, usize)> = above
            .map(|vertex| {
                let below = neighbours[vertex].iter().filter(|other| levels[**other] < level);
                let xs: Vec<f64> = below.map(|other| places[*other].0).collect();
                (xs.iter().sum::<f64>() / xs.len().max(1) as f64, vertex)
            })
            .collect();
        above.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let step = width / above.len().max(1) as f64;
        for (order, (_, vertex)) in above.into_iter().enumerate() {
            places[vertex] = ((order as f64 + 0.5) * step - 0.5, bottom - level as f64 * LEVEL);
        }
    }
    places
}

/// How far each vertex is from the nearest node.
fn levels(neighbours: &[Vec<usize>], nodes: usize) -> Vec<usize> {
    let mut levels = vec![usize::MAX; neighbours.len()];
    let mut next: VecDeque<usize> = (0..nodes.min(neighbours.len())).collect();
    next.iter().for_each(|node| levels[*node] = 0);
    while let Some(vertex) = next.pop_front() {
        for other in &neighbours[vertex] {
            if levels[*other] == usize::MAX {
                levels[*other] = levels[vertex] + 1;
                next.push_back(*other);
            }
        }
    }
    // A switch that no node reaches.
    levels.into_iter().map(|level| if level == usize::MAX { 1 } else { level }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(grid: Option<Vec<usize>>, nodes: usize, vertices: usize) -> Network {
        let vertices = (0..vertices).map(|vertex| vertex.to_string()).collect();
        Network { network: "n".into(), grid, nodes, vertices, ..Network::default() }
    }

    fn places(picture: &NetworkPicture) -> Vec<(f64, f64)> {
        picture.vertices.iter().map(|vertex| (vertex.x, vertex.y)).collect()
    }

    #[test]
    fn a_grid_is_drawn_as_it_is() {
        let at = vec![Some(1), None, Some(3)];
        let picture = NetworkPicture::of(&Network { at, ..network(Some(vec![2, 3]), 6, 6) });
        assert_eq!((picture.plane, picture.width, picture.height), (Some((2, 3)), 2.0, 3.0));
        let expected = [(0., 0.), (0., 1.), (0., 2.), (1., 0.), (1., 1.), (1., 2.)];
        assert_eq!(places(&picture), expected);
        let nodes: Vec<_> = picture.vertices.iter().map(|vertex| vertex.node).collect();
        assert_eq!(nodes[..4], [None, Some(NodeId(0)), None, Some(NodeId(2))]);
        // Planes side by side.
        let picture = NetworkPicture::of(&network(Some(vec![2, 2, 2]), 8, 8));
        assert_eq!(places(&picture)[..3], [(0., 0.), (3., 0.), (0., 1.)]);
    }

    #[test]
    fn switches_stand_above_their_nodes() {
        // Two switches with two nodes each, below a third one.
        let pairs = [(0, 4), (1, 4), (2, 5), (3, 5), (4, 6), (5, 6)];
        let links = (0..).zip(pairs).map(|(number, (from, to))| (number, from, to)).collect();
        let picture = NetworkPicture::of(&Network { links, ..network(None, 4, 7) });
        let expected = [(0., 5.), (1., 5.), (2., 5.), (3., 5.), (0.5, 2.5), (2.5, 2.5), (1.5, 0.)];
        assert_eq!(places(&picture), expected);
        assert!(picture.plane.is_none() && picture.vertices[6].is_switch);
    }

    #[test]
    fn what_is_too_large_or_odd_is_no_fault() {
        assert!(NetworkPicture::of(&network(Some(vec![90, 90]), 8100, 0)).vertices.is_empty());
        let links = vec![(0, 0, 0), (1, 77, 1)];
        let picture = NetworkPicture::of(&Network { links, ..network(None, 200, 201) });
        assert_eq!((picture.vertices.len(), picture.vertices[199].y), (201, 5.5));
    }
}
