//! The network of a job for users who look at it. Decides nothing.

use super::users::written;
use crate::machine::Machine;
use eyrie_interface::answer::refusal;
use eyrie_interface::network::{Network, Networked, Routes};
use eyrie_placement::Placement;
use eyrie_wire::NodeId;

/// The answer to a user who asks for the network.
pub fn network(machine: &Machine) -> String {
    let nodes = machine.nodes_up().count() as u32;
    written(&Networked { network: described(machine.placement(), nodes) })
}

/// The answer to a user who asks for the routes between nodes.
pub fn routes(machine: &Machine, pairs: &[(NodeId, NodeId)]) -> String {
    if pairs.len() > Routes::MOST {
        return refusal(&format!("{} routes at once: ask for {}", pairs.len(), Routes::MOST));
    }
    let placement = machine.placement();
    let route = |(from, to): &(NodeId, NodeId)| route(placement, *from, *to).unwrap_or_default();
    written(&Routes { routes: pairs.iter().map(route).collect() })
}

/// The network of a job with so many nodes.
fn described(placement: &Placement, nodes: u32) -> Option<Network> {
    let network = placement.network()?;
    let known = Network {
        network: network.describe(),
        grid: network.grid(),
        nodes: network.nodes(),
        at: (0..nodes).map(|node| placement.position(node)).collect(),
        ..Network::default()
    };
    if network.vertices() > Network::MOST_VERTICES {
        return Some(known);
    }
    let vertices = 0..network.vertices() as u32;
    let mut links = Vec::new();
    let mut out = Vec::new();
    for vertex in vertices.clone() {
        out.clear();
        network.out_links(vertex, &mut out);
        links.extend(out.iter().map(|(link, to)| (*link, vertex, *to)));
        if links.len() > Network::MOST_LINKS {
            return Some(known);
        }
    }
    let vertices = vertices.map(|vertex| placement.vertex_name(vertex)).collect();
    Some(Network { vertices, links, ..known })
}

fn route(placement: &Placement, from: NodeId, to: NodeId) -> Option<Vec<u32>> {
    let network = placement.network()?;
    let (from, to) = (placement.position(from.0)?, placement.position(to.0)?);
    let mut links = Vec::new();
    network.route(from, to, &mut links).ok()?;
    Some(links)
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_placement::{CostModel, Method, Words};
    use eyrie_topology::spec::Files;
    use eyrie_topology::TopologyError;

    fn placed(network: &str, nodes: usize) -> Placement {
        let text = |path: &str| Err(TopologyError::new(format!("no file {path}")));
        let files = Files { text: &text, slurm_topology: None, taper: 1.0 };
        let hosts: Vec<String> = (0..nodes).map(|node| format!("n{node}")).collect();
        let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
        let words = Words::of_running_job(network, &hosts, None, files);
        Placement::on_network(&words, &[0, 1], Method::Best0D, CostModel::default()).unwrap()
    }

    #[test]
    fn a_network_is_told_with_its_links_and_where_the_nodes_are() {
        let placement = placed("mesh:2x2", 3);
        let network = described(&placement, 3).unwrap();
        assert_eq!((network.network.as_str(), network.nodes), ("mesh:2x2", 4));
        assert_eq!((network.vertices.len(), network.links.len()), (4, 8));
        assert_eq!(network.at, [Some(0), Some(1), Some(2)]);
        let route = route(&placement, NodeId(0), NodeId(2)).unwrap();
        let there = network.links.iter().find(|(link, ..)| *link == route[0]).unwrap();
        assert_eq!((route.len(), there.1, there.2), (1, 0, 2));
        assert_eq!(described(&Placement::default(), 3), None);
    }

    #[test]
    fn of_a_large_network_only_the_name_is_told() {
        let network = described(&placed("torus:80x80", 2), 2).unwrap();
        assert_eq!((network.network.as_str(), network.vertices.len()), ("torus:80x80", 0));
        assert!(network.links.is_empty() && network.nodes == 6400);
    }
}
