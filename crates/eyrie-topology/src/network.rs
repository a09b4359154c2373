//! What a network is to the planner: numbered nodes, numbered directed links, and one route for every
//! pair of nodes. Implementations must be deterministic: the same pair always has the same route.

/// A compute node, `0..Network::nodes()`.
pub type NodeId = u32;
/// A directed link, `0..Network::links()`. Ids may have gaps: not every id needs to exist.
pub type LinkId = u32;
/// A node or a switch. Ids below `Network::nodes()` are nodes.
pub type VertexId = u32;

/// Why there is no route.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    #[error("no route from {from} to {to}: {why}")]
    Missing { from: String, to: String, why: String },
}

/// Why a network, layout or file was refused: one line that names the value and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TopologyError(pub String);

impl TopologyError {
    /// The message on one line: control characters of quoted input become blanks.
    pub fn new(message: impl Into<String>) -> Self {
        let message: String = message.into();
        TopologyError(message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
    }
}

/// Shorthand for an error with a formatted message.
#[macro_export]
macro_rules! refuse {
    ($($arg:tt)*) => { Err($crate::network::TopologyError::new(format!($($arg)*))) };
}

/// A network of nodes joined by directed links with one fixed route per pair.
pub trait Network: Send + Sync {
    /// The specification that makes this network again, e.g. `torus:12x12`.
    fn describe(&self) -> String;

    /// Number of compute nodes.
    fn nodes(&self) -> usize;

    /// Nodes and switches together.
    fn vertices(&self) -> usize {
        self.nodes()
    }

    /// Upper bound of directed link ids.
    fn links(&self) -> usize;

    /// Appends the links from `from` to `to`, in order, to `out`. Nothing is appended for `from == to`.
    fn route(&self, from: NodeId, to: NodeId, out: &mut Vec<LinkId>) -> Result<(), RouteError>;

    /// The vertices that a directed link joins, `(from, to)`.
    fn link_ends(&self, link: LinkId) -> (VertexId, VertexId);

    /// Appends every directed link that leaves `vertex`, with the vertex that it leads to.
    fn out_links(&self, vertex: VertexId, out: &mut Vec<(LinkId, VertexId)>);

    /// The `index`-th other route that keeps the network's deadlock-free order, appended to `out`;
    /// `false` when there are no more. Used to go round dead routers.
    fn alternative(
        &self,
        _from: NodeId,
        _to: NodeId,
        _index: usize,
        _out: &mut Vec<LinkId>,
    ) -> bool {
        false
    }

    /// The virtual channel of each link of a route, for the deadlock check. Tori change channel at the
    /// dateline, dragonflies after each global hop; other networks need one channel only.
    fn channels(&self, from: NodeId, route: &[LinkId]) -> Vec<u8> {
        let _ = from;
        vec![0; route.len()]
    }

    /// Bandwidth of a link relative to the machine's link bandwidth.
    fn bandwidth_factor(&self, _link: LinkId) -> f64 {
        1.0
    }

    /// Whether every link has bandwidth factor 1, so that callers need not ask for each.
    fn uniform_bandwidth(&self) -> bool {
        true
    }

    /// The natural grid of the nodes, if there is one: extents, last axis fastest.
    fn grid(&self) -> Option<Vec<usize>> {
        None
    }

    /// Whether nodes forward messages of others, so that a dead node can block a route.
    fn nodes_forward(&self) -> bool {
        false
    }

    /// A name for messages: coordinates, a host name, or a switch.
    fn vertex_name(&self, vertex: VertexId) -> String {
        match self.grid() {
            Some(dims) if (vertex as usize) < self.nodes() => {
                crate::coords::format(&crate::coords::of(vertex as usize, &dims))
            }
            _ => vertex.to_string(),
        }
    }

    /// The node with this name, where the network has names of its own.
    fn node_by_name(&self, _name: &str) -> Option<NodeId> {
        None
    }
}

/// `from -> to` of a link, in names.
pub fn link_name(network: &dyn Network, link: LinkId) -> String {
    let (a, b) = network.link_ends(link);
    format!("{} -> {}", network.vertex_name(a), network.vertex_name(b))
}

#[cfg(test)]
pub(crate) mod check {
    //! Checks that every network's tests share.
    use super::*;

    /// Every route is a connected walk from its source to its destination over links that exist.
    pub fn routes_connect(network: &dyn Network) {
        let mut route = Vec::new();
        for from in 0..network.nodes() as NodeId {
            for to in 0..network.nodes() as NodeId {
                route.clear();
                network.route(from, to, &mut route).unwrap();
                let mut here = from;
                for &link in &route {
                    assert!((link as usize) < network.links());
                    let (a, b) = network.link_ends(link);
                    assert_eq!(a, here, "{} {from}->{to} {route:?}", network.describe());
                    let mut out = Vec::new();
                    network.out_links(a, &mut out);
                    assert!(out.contains(&(link, b)), "{} link {link}", network.describe());
                    here = b;
                }
                assert_eq!(here, to, "{} {from}->{to} {route:?}", network.describe());
            }
        }
    }
}
