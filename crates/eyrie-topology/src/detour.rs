//! Routes round dead nodes whose routers no longer forward. First come the network's own other
//! routes, which keep the deadlock-free order (the long way round a ring, Tofu's first legs).
//! Without one a shortest way round is used and reported, because it leaves the order.

use std::collections::VecDeque;

use crate::deadlock;
use crate::network::{link_name, Lines, LinkId, Network, NetworkNode, RouteError, Run, VertexId};

/// How a pair is routed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// The usual route: no dead router is on it.
    Direct,
    /// Another route in the deadlock-free order.
    InOrder,
    /// A shortest way round that leaves the order.
    Around,
}

/// A network with dead nodes that do not forward. Nodes that never forward (fat tree, dragonfly)
/// make no difference here.
pub struct Detour<'a> {
    inner: &'a dyn Network,
    dead: Vec<bool>,
    /// Places of the links that leave dead nodes, sorted; none where `inner` has no long lines.
    dead_places: Vec<u32>,
}

/// How routing round the dead nodes has changed the routes in use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DetourReport {
    /// Pairs that take another route in order.
    pub in_order: usize,
    /// Pairs that leave the deadlock-free order.
    pub around: usize,
    /// One line each: the violation, and whether it can lead to a deadlock.
    pub violations: Vec<String>,
}

impl<'a> Detour<'a> {
    pub fn new(inner: &'a dyn Network, dead: impl IntoIterator<Item = NetworkNode>) -> Self {
        let mut flags = vec![false; inner.vertices()];
        let mut out = Vec::new();
        for node in dead {
            flags[node as usize] = true;
            inner.out_links(node, &mut out);
        }
        let place = |lines: &dyn Lines| out.iter().map(|&(link, _)| lines.place_of(link)).collect();
        let mut dead_places: Vec<u32> = inner.lines().map(place).unwrap_or_default();
        dead_places.sort_unstable();
        Detour { inner, dead: flags, dead_places }
    }

    /// Whether a route is blocked: its inner vertices must be alive; the caller checks its ends.
    fn blocked(&self, route: &[LinkId]) -> bool {
        route.iter().skip(1).any(|&link| self.dead[self.inner.link_ends(link).0 as usize])
    }

    /// Appends the route; returns how it was found.
    pub fn find(
        &self,
        from: NetworkNode,
        to: NetworkNode,
        out: &mut Vec<LinkId>,
    ) -> Result<How, RouteError> {
        let start = out.len();
        self.inner.route(from, to, out)?;
        // Nothing is sent from or to a dead node: a rank that still has to move is only counted
        // there.
        let nothing_sent = self.dead[from as usize] || self.dead[to as usize];
        if nothing_sent || !self.blocked(&out[start..]) {
            return Ok(How::Direct);
        }
        for index in 0.. {
            out.truncate(start);
            if !self.inner.alternative(from, to, index, out) {
                break;
            }
            if !self.blocked(&out[start..]) {
                return Ok(How::InOrder);
            }
        }
        out.truncate(start);
        self.around(from, to, out).map(|()| How::Around)
    }

    /// Whether a run leads over a dead node.
    fn is_blocked(&self, run: &Run) -> bool {
        let next = self.dead_places.partition_point(|&place| place < run.start);
        self.dead_places.get(next).is_some_and(|place| run.contains(place))
    }

    /// Breadth-first search over live vertices.
    fn around(
        &self,
        from: NetworkNode,
        to: NetworkNode,
        out: &mut Vec<LinkId>,
    ) -> Result<(), RouteError> {
        const UNSEEN: LinkId = LinkId::MAX;
        let mut came_by = vec![UNSEEN; self.inner.vertices()];
        let mut queue: VecDeque<VertexId> = VecDeque::from([from]);
        let mut links = Vec::new();
        'search: while let Some(vertex) = queue.pop_front() {
            links.clear();
            self.inner.out_links(vertex, &mut links);
            for &(link, next) in &links {
                let passable = next == to || !self.dead[next as usize];
                if next != from && passable && came_by[next as usize] == UNSEEN {
                    came_by[next as usize] = link;
                    if next == to {
                        break 'search;
                    }
                    queue.push_back(next);
                }
            }
        }
        let start = out.len();
        let mut here: VertexId = to;
        while here != from {
            let link = came_by[here as usize];
            if link == UNSEEN {
                return Err(RouteError::Missing {
                    from: self.inner.vertex_name(from),
                    to: self.inner.vertex_name(to),
                    why: "dead routers cut them off".into(),
                });
            }
            out.push(link);
            here = self.inner.link_ends(link).0;
        }
        out[start..].reverse();
        Ok(())
    }

    /// Reports on the routes of these pairs: which have left the order, and whether they can
    /// deadlock.
    pub fn report(&self, pairs: &[(NetworkNode, NetworkNode)]) -> Result<DetourReport, RouteError> {
        let mut report = DetourReport::default();
        let mut first = None;
        let mut route = Vec::new();
        for &(from, to) in pairs {
            route.clear();
            match self.find(from, to, &mut route)? {
                How::Direct => {}
                How::InOrder => report.in_order += 1,
                How::Around => {
                    report.around += 1;
                    first.get_or_insert((from, to));
                }
            }
        }
        if let Some((from, to)) = first {
            let name = |v| self.inner.vertex_name(v);
            report.violations.push(format!(
                "{} of {} routes leave the deadlock-free order, the first from {} to {}",
                report.around,
                pairs.len(),
                name(from),
                name(to)
            ));
            report.violations.push(match deadlock::find_cycle(self, pairs.iter().copied())? {
                None => {
                    "the channel dependencies of these routes have no cycle: they cannot deadlock"
                        .into()
                }
                Some(cycle) => format!(
                    "a deadlock is possible: {} channels wait for each other in a ring, through {}",
                    cycle.len(),
                    link_name(self.inner, cycle[0].0)
                ),
            });
        }
        Ok(report)
    }
}

impl Network for Detour<'_> {
    fn describe(&self) -> String {
        let dead = self.dead.iter().filter(|&&d| d).count();
        format!("{} with {dead} dead routers", self.inner.describe())
    }

    fn nodes(&self) -> usize {
        self.inner.nodes()
    }

    fn vertices(&self) -> usize {
        self.inner.vertices()
    }

    fn links(&self) -> usize {
        self.inner.links()
    }

    fn route(
        &self,
        from: NetworkNode,
        to: NetworkNode,
        out: &mut Vec<LinkId>,
    ) -> Result<(), RouteError> {
        self.find(from, to, out).map(|_| ())
    }

    fn lines(&self) -> Option<&dyn Lines> {
        self.inner.lines().map(|_| self as &dyn Lines)
    }

    fn link_ends(&self, link: LinkId) -> (VertexId, VertexId) {
        self.inner.link_ends(link)
    }

    fn out_links(&self, vertex: VertexId, out: &mut Vec<(LinkId, VertexId)>) {
        self.inner.out_links(vertex, out)
    }

    fn channels(&self, from: NetworkNode, route: &[LinkId]) -> Vec<u8> {
        self.inner.channels(from, route)
    }

    fn bandwidth_factor(&self, link: LinkId) -> f64 {
        self.inner.bandwidth_factor(link)
    }

    fn uniform_bandwidth(&self) -> bool {
        self.inner.uniform_bandwidth()
    }

    fn grid(&self) -> Option<Vec<usize>> {
        self.inner.grid()
    }

    fn nodes_forward(&self) -> bool {
        self.inner.nodes_forward()
    }

    fn vertex_name(&self, vertex: VertexId) -> String {
        self.inner.vertex_name(vertex)
    }

    fn node_by_name(&self, name: &str) -> Option<NetworkNode> {
        self.inner.node_by_name(name)
    }
}

impl Lines for Detour<'_> {
    fn runs(
        &self,
        from: NetworkNode,
        to: NetworkNode,
        out: &mut Vec<Run>,
    ) -> Result<(), RouteError> {
        let Some(lines) = self.inner.lines() else { return Ok(()) };
        let start = out.len();
        lines.runs(from, to, out)?;
        let nothing_sent = self.dead[from as usize] || self.dead[to as usize];
        if nothing_sent || !out[start..].iter().any(|run| self.is_blocked(run)) {
            return Ok(());
        }
        out.truncate(start);
        let mut route = Vec::new();
        self.find(from, to, &mut route)?;
        let mut places: Vec<u32> = route.into_iter().map(|link| lines.place_of(link)).collect();
        places.sort_unstable();
        out.extend(places.chunk_by(|a, b| a + 1 == *b).map(|run| run[0]..run[run.len() - 1] + 1));
        Ok(())
    }

    fn link_at(&self, place: u32) -> LinkId {
        self.inner.lines().map_or(place, |lines| lines.link_at(place))
    }

    fn place_of(&self, link: LinkId) -> u32 {
        self.inner.lines().map_or(link, |lines| lines.place_of(link))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cartesian::Cartesian;
    use crate::tofu::Tofu;

    fn visits(network: &dyn Network, from: NetworkNode, to: NetworkNode) -> Vec<VertexId> {
        let mut route = Vec::new();
        network.route(from, to, &mut route).unwrap();
        route.iter().map(|&l| network.link_ends(l).1).collect()
    }

    #[test]
    fn a_torus_goes_the_long_way_round_in_order() {
        let torus = Cartesian::torus(&[1, 6]);
        let detour = Detour::new(&torus, [1]);
        assert_eq!(visits(&detour, 0, 2), [5, 4, 3, 2]);
        assert_eq!(detour.find(0, 2, &mut Vec::new()), Ok(How::InOrder));
        assert_eq!(detour.report(&[(0, 2)]).unwrap().violations, Vec::<String>::new());
    }

    #[test]
    fn runs_go_round_dead_nodes_as_routes_do() {
        let torus = Cartesian::torus(&[2, 70]);
        let detour = Detour::new(&torus, [3, 41]);
        crate::network::check::runs_are_routes(&detour, detour.lines().unwrap());
    }

    #[test]
    fn a_mesh_goes_round_and_the_violation_is_named() {
        let mesh = Cartesian::mesh(&[3, 3]);
        let detour = Detour::new(&mesh, [4]);
        assert_eq!(visits(&detour, 3, 5).len(), 4);
        let report = detour.report(&[(3, 5), (0, 1)]).unwrap();
        assert_eq!((report.around, report.in_order), (1, 0));
        assert!(report.violations[0].contains("from 1,0 to 1,2"), "{report:?}");
        assert!(report.violations[1].contains("no cycle"));
    }

    #[test]
    fn routes_all_round_a_dead_node_can_deadlock_and_the_report_says_it() {
        let mesh = Cartesian::mesh(&[3, 3]);
        let detour = Detour::new(&mesh, [4]);
        let all: Vec<_> = (0..9)
            .flat_map(|a| (0..9).map(move |b| (a, b)))
            .filter(|&(a, b)| a != 4 && b != 4)
            .collect();
        let report = detour.report(&all).unwrap();
        assert!(report.violations[1].contains("deadlock is possible"), "{report:?}");
    }

    #[test]
    fn tofu_uses_its_first_legs_and_stays_in_order() {
        let tofu = Tofu::new(&[4, 1, 1, 2, 3, 2]).unwrap();
        let detour = Detour::new(&tofu, [12]);
        let mut route = Vec::new();
        assert_eq!(detour.find(0, 24, &mut route), Ok(How::InOrder));
        let all: Vec<_> = (0..48)
            .flat_map(|a| (0..48).map(move |b| (a, b)))
            .filter(|&(a, b)| a != 12 && b != 12)
            .collect();
        assert_eq!(detour.report(&all).unwrap().around, 0);
        assert_eq!(deadlock::find_cycle(&detour, all.into_iter()).unwrap(), None);
    }

    #[test]
    fn a_node_walled_in_has_no_route() {
        let mesh = Cartesian::mesh(&[1, 3]);
        let error = Detour::new(&mesh, [1]).route(0, 2, &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("dead routers cut them off"));
    }
}
