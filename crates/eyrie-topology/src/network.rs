//! The interface of a network for the planner: numbered nodes, numbered directed links, and one
//! route for every pair of nodes. Implementations must be deterministic: the same pair always has
//! the same route.

/// A compute node of a network, `0..Network::nodes()`. It is no number of a node of a job, which
/// `eyrie_wire::NodeId` is: a job has some of the nodes of a network, numbered in its own order.
pub type NetworkNode = u32;
/// A directed link, `0..Network::links()`. Ids may have gaps: not every id needs to exist.
pub type LinkId = u32;
/// A node or a switch. Ids below `Network::nodes()` are nodes.
pub type VertexId = u32;

/// Links that follow each other on a line, as a range of places (see [`Lines`]).
pub type Run = std::ops::Range<u32>;

/// Why there is no route, or why routes cannot be walked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    #[error("no route from {from} to {to}: {why}")]
    Missing { from: String, to: String, why: String },
    /// More links than there is memory for.
    #[error(
        "the messages of one step share more than {most} links, counted once for each message: \
         too many to estimate its time; plan with fewer ranks or other traffic"
    )]
    TooLong { most: usize },
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

    /// Appends the links from `from` to `to`, in order, to `out`. Nothing is appended for `from ==
    /// to`.
    fn route(
        &self,
        from: NetworkNode,
        to: NetworkNode,
        out: &mut Vec<LinkId>,
    ) -> Result<(), RouteError>;

    /// The lines that routes follow, if these are so long that routes should not be walked link by
    /// link.
    fn lines(&self) -> Option<&dyn Lines> {
        None
    }

    /// The vertices that a directed link joins, `(from, to)`.
    fn link_ends(&self, link: LinkId) -> (VertexId, VertexId);

    /// Appends every directed link that leaves `vertex`, with the vertex that it leads to.
    fn out_links(&self, vertex: VertexId, out: &mut Vec<(LinkId, VertexId)>);

    /// Appends the `index`-th other route that keeps the network's deadlock-free order to `out`;
    /// `false` when there are no more. It is used to go round dead routers.
    fn alternative(
        &self,
        _from: NetworkNode,
        _to: NetworkNode,
        _index: usize,
        _out: &mut Vec<LinkId>,
    ) -> bool {
        false
    }

    /// The virtual channel of each link of a route, for the deadlock check. Tori change channel at
    /// the dateline, dragonflies after each global hop; other networks need only one channel.
    fn channels(&self, from: NetworkNode, route: &[LinkId]) -> Vec<u8> {
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

    /// The node with this name, if the network has names of its own.
    fn node_by_name(&self, _name: &str) -> Option<NetworkNode> {
        None
    }
}

/// Long lines of links. Each link has a *place*, a number below [`Network::links`]. Links that
/// follow each other on a line have places that follow each other: a route is then a few runs,
/// however long it is.
pub trait Lines: Sync {
    /// Appends the runs of [`Network::route`], none of them empty. Within a run the order of links
    /// is that of places, not of the route.
    fn runs(
        &self,
        from: NetworkNode,
        to: NetworkNode,
        out: &mut Vec<Run>,
    ) -> Result<(), RouteError>;

    fn link_at(&self, place: u32) -> LinkId;

    fn place_of(&self, link: LinkId) -> u32;
}

/// `from -> to` of a link, in names.
pub fn link_name(network: &dyn Network, link: LinkId) -> String {
    let (a, b) = network.link_ends(link);
    format!("{} -> {}", network.vertex_name(a), network.vertex_name(b))
}

#[cfg(test)]
pub(crate) mod check {
    //! Checks that the tests of every network share.
    use super::*;

    /// Every route is a connected walk from its source to its destination over links that exist.
    pub fn routes_connect(network: &dyn Network) {
        let mut route = Vec::new();
        for from in 0..network.nodes() as NetworkNode {
            for to in 0..network.nodes() as NetworkNode {
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

    /// The runs of every route have the links of the route.
    pub fn runs_are_routes(network: &dyn Network, lines: &dyn Lines) {
        let mut route = Vec::new();
        let mut runs = Vec::new();
        for from in 0..network.nodes() as NetworkNode {
            for to in 0..network.nodes() as NetworkNode {
                route.clear();
                runs.clear();
                network.route(from, to, &mut route).unwrap();
                lines.runs(from, to, &mut runs).unwrap();
                assert!(runs.iter().all(|run| !run.is_empty()), "{runs:?}");
                let mut places: Vec<u32> = runs.iter().cloned().flatten().collect();
                let mut expected: Vec<u32> = route.iter().map(|&l| lines.place_of(l)).collect();
                places.sort_unstable();
                expected.sort_unstable();
                assert_eq!(places, expected, "{} {from}->{to} {route:?}", network.describe());
                assert!(route.iter().all(|&l| lines.link_at(lines.place_of(l)) == l));
            }
        }
    }
}
