//! Dragonfly (Kim, Dally, Scott, Abts 2008): groups of routers, all-to-all inside a group
//! (optionally as chassis × blades, all-to-all on either axis, as in Cray's Cascade), one link
//! between every two groups. The router with number `g` mod routers of a group holds the link to
//! group `g`. Routing is minimal or Valiant (through a third group picked by a seeded hash of the
//! pair).

use crate::error::TopologyError;
use crate::network::{LinkId, Network, NetworkNode, RouteError, VertexId};

/// How messages are routed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routing {
    Minimal,
    /// Through an intermediate group; the seed makes the choice repeatable.
    Valiant {
        seed: u64,
    },
}

/// `groups` × `chassis` × `blades` routers with `nodes` nodes each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dragonfly {
    groups: usize,
    chassis: usize,
    blades: usize,
    nodes: usize,
    routing: Routing,
}

impl Dragonfly {
    pub fn new(
        groups: usize,
        chassis: usize,
        blades: usize,
        nodes: usize,
        routing: Routing,
    ) -> Result<Self, TopologyError> {
        let extents = [groups, chassis, blades, nodes];
        let total = extents.iter().try_fold(1usize, |a, &b| a.checked_mul(b)).unwrap_or(usize::MAX);
        let ports = chassis.saturating_add(blades).saturating_add(groups);
        if total == 0 || total.saturating_mul(ports) > 1 << 28 {
            return crate::refuse!(
                "dragonfly:{}: four extents, groups x chassis x blades x nodes, each at least 1",
                crate::coords::format_dims(&extents)
            );
        }
        Ok(Dragonfly { groups, chassis, blades, nodes, routing })
    }

    fn routers_per_group(&self) -> usize {
        self.chassis * self.blades
    }

    fn routers(&self) -> usize {
        self.groups * self.routers_per_group()
    }

    // Link ids: node up and down, then per router blades (green), chassis (black) and groups
    // (blue).
    fn node_links(&self) -> usize {
        2 * self.nodes()
    }

    fn ports(&self) -> usize {
        self.blades + self.chassis + self.groups
    }

    fn router_link(&self, router: usize, port: usize) -> LinkId {
        (self.node_links() + router * self.ports() + port) as LinkId
    }

    /// The router of `group` that holds the link to group `other`.
    fn gateway(&self, group: usize, other: usize) -> usize {
        group * self.routers_per_group() + other % self.routers_per_group()
    }

    /// Blade first, then chassis, within a group.
    fn local(&self, mut router: usize, target: usize, out: &mut Vec<LinkId>) -> usize {
        let blade = target % self.blades;
        let chassis = target / self.blades % self.chassis;
        if router % self.blades != blade {
            out.push(self.router_link(router, blade));
            router = router - router % self.blades + blade;
        }
        if router != target {
            out.push(self.router_link(router, self.blades + chassis));
        }
        target
    }

    /// To a router of another group: to the gateway, over the global link.
    fn global(&self, router: usize, group: usize, out: &mut Vec<LinkId>) -> usize {
        let own = router / self.routers_per_group();
        let gateway = self.local(router, self.gateway(own, group), out);
        out.push(self.router_link(gateway, self.blades + self.chassis + group));
        self.gateway(group, own)
    }

    /// The intermediate group of a pair, if Valiant routing has one to choose.
    fn intermediate(
        &self,
        from: NetworkNode,
        to: NetworkNode,
        a: usize,
        b: usize,
        salt: u64,
    ) -> Option<usize> {
        let Routing::Valiant { seed } = self.routing else { return None };
        if self.groups < 3 {
            return None;
        }
        let pick = mix(seed ^ salt ^ (u64::from(from) << 32 | u64::from(to))) as usize;
        (0..self.groups).map(|i| (pick + i) % self.groups).find(|&g| g != a && g != b)
    }

    fn route_through(
        &self,
        from: NetworkNode,
        to: NetworkNode,
        via: Option<usize>,
        out: &mut Vec<LinkId>,
    ) {
        if from == to {
            return;
        }
        let (mut router, target) = (from as usize / self.nodes, to as usize / self.nodes);
        let target_group = target / self.routers_per_group();
        out.push(2 * from);
        for group in via.into_iter().chain([target_group]) {
            if router / self.routers_per_group() != group {
                router = self.global(router, group, out);
            }
        }
        if router != target {
            self.local(router, target, out);
        }
        out.push(2 * to + 1);
    }
}

/// SplitMix64's finalizer: a fixed hash, so that routes repeat on every machine.
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Network for Dragonfly {
    fn describe(&self) -> String {
        let dims = [self.groups, self.chassis, self.blades, self.nodes];
        let routing = match self.routing {
            Routing::Minimal => String::new(),
            Routing::Valiant { seed } => format!(":valiant={seed}"),
        };
        format!("dragonfly:{}{routing}", crate::coords::format_dims(&dims))
    }

    fn nodes(&self) -> usize {
        self.routers() * self.nodes
    }

    fn vertices(&self) -> usize {
        self.nodes() + self.routers()
    }

    fn links(&self) -> usize {
        self.node_links() + self.routers() * self.ports()
    }

    fn route(
        &self,
        from: NetworkNode,
        to: NetworkNode,
        out: &mut Vec<LinkId>,
    ) -> Result<(), RouteError> {
        let group = |node: NetworkNode| node as usize / self.nodes / self.routers_per_group();
        let (a, b) = (group(from), group(to));
        let via = if a == b { None } else { self.intermediate(from, to, a, b, 0) };
        self.route_through(from, to, via, out);
        Ok(())
    }

    fn link_ends(&self, link: LinkId) -> (VertexId, VertexId) {
        let link = link as usize;
        let router_vertex = |router: usize| (self.nodes() + router) as VertexId;
        if link < self.node_links() {
            let node = (link / 2) as VertexId;
            let router = router_vertex(link / 2 / self.nodes);
            return if link % 2 == 0 { (node, router) } else { (router, node) };
        }
        let router = (link - self.node_links()) / self.ports();
        let port = (link - self.node_links()) % self.ports();
        let group = router / self.routers_per_group();
        let to = if port < self.blades {
            router - router % self.blades + port
        } else if port < self.blades + self.chassis {
            group * self.routers_per_group()
                + (port - self.blades) * self.blades
                + router % self.blades
        } else {
            self.gateway(port - self.blades - self.chassis, group)
        };
        (router_vertex(router), router_vertex(to))
    }

    fn out_links(&self, vertex: VertexId, out: &mut Vec<(LinkId, VertexId)>) {
        let vertex = vertex as usize;
        if vertex < self.nodes() {
            let link = 2 * vertex as LinkId;
            out.push((link, self.link_ends(link).1));
            return;
        }
        let router = vertex - self.nodes();
        let group = router / self.routers_per_group();
        let inside = router % self.routers_per_group();
        for node in router * self.nodes..(router + 1) * self.nodes {
            out.push((2 * node as LinkId + 1, node as VertexId));
        }
        for port in 0..self.ports() {
            let exists = if port < self.blades {
                port != router % self.blades
            } else if port < self.blades + self.chassis {
                port - self.blades != inside / self.blades
            } else {
                let other = port - self.blades - self.chassis;
                other != group && other % self.routers_per_group() == inside
            };
            if exists {
                let link = self.router_link(router, port);
                out.push((link, self.link_ends(link).1));
            }
        }
    }

    /// Through each other group in turn.
    fn alternative(
        &self,
        from: NetworkNode,
        to: NetworkNode,
        index: usize,
        out: &mut Vec<LinkId>,
    ) -> bool {
        if index >= self.groups {
            return false;
        }
        self.route_through(from, to, Some(index), out);
        true
    }

    /// One channel more after each global link.
    fn channels(&self, _from: NetworkNode, route: &[LinkId]) -> Vec<u8> {
        let mut channel = 0;
        route
            .iter()
            .map(|&link| {
                let now = channel;
                let link = link as usize;
                if link >= self.node_links()
                    && (link - self.node_links()) % self.ports() >= self.blades + self.chassis
                {
                    channel += 1;
                }
                now
            })
            .collect()
    }

    fn vertex_name(&self, vertex: VertexId) -> String {
        let vertex = vertex as usize;
        if vertex < self.nodes() {
            return vertex.to_string();
        }
        let router = vertex - self.nodes();
        format!("g{}r{}", router / self.routers_per_group(), router % self.routers_per_group())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::check;

    #[test]
    fn routes_connect_minimal_and_valiant() {
        for routing in [Routing::Minimal, Routing::Valiant { seed: 7 }] {
            check::routes_connect(&Dragonfly::new(5, 1, 4, 2, routing).unwrap());
            check::routes_connect(&Dragonfly::new(4, 2, 3, 2, routing).unwrap());
            check::routes_connect(&Dragonfly::new(9, 1, 2, 1, routing).unwrap());
        }
    }

    #[test]
    fn minimal_crosses_one_global_link_and_valiant_two() {
        let count = |net: &Dragonfly, from, to| {
            let mut route = Vec::new();
            net.route(from, to, &mut route).unwrap();
            net.channels(from, &route).last().copied().unwrap()
        };
        let minimal = Dragonfly::new(5, 1, 4, 2, Routing::Minimal).unwrap();
        let valiant = Dragonfly::new(5, 1, 4, 2, Routing::Valiant { seed: 1 }).unwrap();
        assert_eq!((count(&minimal, 0, 39), count(&valiant, 0, 39)), (1, 2));
        assert_eq!((count(&minimal, 0, 7), count(&valiant, 0, 7)), (0, 0));
    }
}
