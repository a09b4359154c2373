//! Any graph with routes, from a text file:
//!
//! ```text
//! eyrie-graph 1
//! node a            # compute nodes, numbered in this order
//! node b
//! switch s
//! link a s          # two directed links; `oneway` for one; `bandwidth=2` for twice that of others
//! link s b bandwidth=2
//! route a b via s   # every ordered pair of nodes needs a route …
//! routes shortest   # … or this line, which fills the missing ones with shortest paths
//! ```

use std::collections::{HashMap, VecDeque};

use crate::error::TopologyError;
use crate::hostlist::shorten;
use crate::network::{LinkId, Network, NetworkNode, RouteError, VertexId};

/// Most nodes of a graph file: routes are kept for every pair.
pub const MOST_NODES: usize = 4096;

/// A graph with one fixed route per ordered pair of nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct Graph {
    names: Vec<String>,
    nodes: usize,
    ends: Vec<(VertexId, VertexId)>,
    bandwidth: Vec<f64>,
    out: Vec<Vec<(LinkId, VertexId)>>,
    /// Flat routes: pair p = from × nodes + to has `hops[start[p]..start[p + 1]]`.
    start: Vec<u32>,
    hops: Vec<LinkId>,
}

#[derive(Default)]
struct Reader {
    ids: HashMap<String, VertexId>,
    nodes: Vec<String>,
    switches: Vec<String>,
    links: Vec<(String, String, f64, bool, usize)>,
    routes: Vec<(String, String, Vec<String>, usize)>,
    shortest: bool,
}

impl Graph {
    /// Reads the format above. Every error names the line.
    pub fn parse(text: &str) -> Result<Self, TopologyError> {
        let mut reader = Reader::default();
        let mut lines = text.lines().enumerate().map(|(i, line)| {
            (i + 1, line.split('#').next().unwrap_or("").split_whitespace().collect::<Vec<_>>())
        });
        match lines.by_ref().find(|(_, words)| !words.is_empty()) {
            Some((_, words)) if words == ["eyrie-graph", "1"] => {}
            Some((n, words)) => {
                return crate::refuse!(
                    "line {n}: a graph file starts with `eyrie-graph 1`, not `{}`",
                    shorten(&words.join(" "))
                )
            }
            None => {
                return crate::refuse!("the graph file is empty: it starts with `eyrie-graph 1`")
            }
        }
        for (number, words) in lines {
            if !words.is_empty() {
                reader.line(number, &words)?;
            }
        }
        reader.finish()
    }

    fn routes_of(&self, from: NetworkNode, to: NetworkNode) -> &[LinkId] {
        let pair = from as usize * self.nodes + to as usize;
        &self.hops[self.start[pair] as usize..self.start[pair + 1] as usize]
    }
}

impl Reader {
    fn line(&mut self, number: usize, words: &[&str]) -> Result<(), TopologyError> {
        match words {
            ["node", name] => self.declare(name, number, true),
            ["switch", name] => self.declare(name, number, false),
            ["link", a, b, options @ ..] => {
                let mut bandwidth = 1.0;
                let mut oneway = false;
                for option in options {
                    match option.split_once('=') {
                        Some(("bandwidth", value)) => match value.parse::<f64>() {
                            Ok(v) if v.is_finite() && v > 0.0 => bandwidth = v,
                            _ => {
                                return crate::refuse!(
                                    "line {number}: bandwidth `{}` must be a number above 0",
                                    shorten(value)
                                )
                            }
                        },
                        None if *option == "oneway" => oneway = true,
                        _ => {
                            return crate::refuse!(
                                "line {number}: unknown link option `{}`: bandwidth=N or oneway",
                                shorten(option)
                            )
                        }
                    }
                }
                self.links.push((a.to_string(), b.to_string(), bandwidth, oneway, number));
                Ok(())
            }
            ["route", from, to] => {
                self.routes.push((from.to_string(), to.to_string(), Vec::new(), number));
                Ok(())
            }
            ["route", from, to, "via", via @ ..] => {
                let via = via.iter().map(|v| v.to_string()).collect();
                self.routes.push((from.to_string(), to.to_string(), via, number));
                Ok(())
            }
            ["routes", "shortest"] => {
                self.shortest = true;
                Ok(())
            }
            _ => crate::refuse!(
                "line {number}: `{}` is not one of: node, switch, link, route, routes shortest",
                shorten(&words.join(" "))
            ),
        }
    }

    fn declare(&mut self, name: &str, number: usize, node: bool) -> Result<(), TopologyError> {
        if self.ids.insert(name.to_string(), VertexId::MAX).is_some() {
            return crate::refuse!("line {number}: `{}` is declared twice", shorten(name));
        }
        if node && self.nodes.len() == MOST_NODES {
            return crate::refuse!("line {number}: more than {MOST_NODES} nodes");
        }
        if node { &mut self.nodes } else { &mut self.switches }.push(name.to_string());
        Ok(())
    }

    fn vertex(&self, name: &str, number: usize) -> Result<VertexId, TopologyError> {
        match self.ids.get(name) {
            Some(&id) => Ok(id),
            None => crate::refuse!(
                "line {number}: `{}` is not a declared node or switch",
                shorten(name)
            ),
        }
    }

    fn finish(mut self) -> Result<Graph, TopologyError> {
        if self.nodes.is_empty() {
            return crate::refuse!("the graph file declares no node");
        }
        let names: Vec<String> = self.nodes.iter().chain(&self.switches).cloned().collect();
        for (id, name) in names.iter().enumerate() {
            self.ids.insert(name.clone(), id as VertexId);
        }
        let mut graph = Graph {
            nodes: self.nodes.len(),
            out: vec![Vec::new(); names.len()],
            names,
            ends: Vec::new(),
            bandwidth: Vec::new(),
            start: vec![0],
            hops: Vec::new(),
        };
        for (a, b, bandwidth, oneway, number) in &self.links {
            let (a, b) = (self.vertex(a, *number)?, self.vertex(b, *number)?);
            if a == b {
                return crate::refuse!("line {number}: a link joins two different vertices");
            }
            let both = [(a, b), (b, a)];
            for &(a, b) in &both[..if *oneway { 1 } else { 2 }] {
                graph.out[a as usize].push((graph.ends.len() as LinkId, b));
                graph.ends.push((a, b));
                graph.bandwidth.push(*bandwidth);
            }
        }
        let given = self.given_routes(&graph)?;
        graph.fill_routes(given, self.shortest)?;
        Ok(graph)
    }

    fn given_routes(
        &self,
        graph: &Graph,
    ) -> Result<HashMap<(NetworkNode, NetworkNode), Vec<LinkId>>, TopologyError> {
        let mut given = HashMap::new();
        for (from, to, via, number) in &self.routes {
            let mut here = self.vertex(from, *number)?;
            let pair = (here, self.vertex(to, *number)?);
            if pair.0 as usize >= graph.nodes || pair.1 as usize >= graph.nodes || pair.0 == pair.1
            {
                return crate::refuse!(
                    "line {number}: a route joins two different nodes, not `{}` and `{}`",
                    shorten(from),
                    shorten(to)
                );
            }
            let mut hops = Vec::new();
            for name in via.iter().chain([to]) {
                let next = self.vertex(name, *number)?;
                let link = graph.out[here as usize].iter().find(|&&(_, v)| v == next);
                let Some(&(link, _)) = link else {
                    return crate::refuse!(
                        "line {number}: the route uses `{} -> {}`, but there is no such link",
                        graph.names[here as usize],
                        shorten(name)
                    );
                };
                hops.push(link);
                here = next;
            }
            if given.insert(pair, hops).is_some() {
                return crate::refuse!(
                    "line {number}: a second route from `{}` to `{}`",
                    shorten(from),
                    shorten(to)
                );
            }
        }
        Ok(given)
    }
}

impl Graph {
    fn fill_routes(
        &mut self,
        mut given: HashMap<(NetworkNode, NetworkNode), Vec<LinkId>>,
        shortest: bool,
    ) -> Result<(), TopologyError> {
        for from in 0..self.nodes as NetworkNode {
            let tree = if shortest { self.shortest_from(from) } else { Vec::new() };
            for to in 0..self.nodes as NetworkNode {
                if from != to {
                    match given.remove(&(from, to)) {
                        Some(hops) => self.hops.extend(hops),
                        None if shortest => self.walk_back(&tree, from, to)?,
                        None => {
                            return crate::refuse!(
                                "no route from `{}` to `{}`: add `route {} {} via …`, or `routes \
                                 shortest`",
                                self.names[from as usize],
                                self.names[to as usize],
                                self.names[from as usize],
                                self.names[to as usize]
                            )
                        }
                    }
                }
                self.start.push(self.hops.len() as u32);
            }
        }
        Ok(())
    }

    /// For each vertex the last link of a shortest path from `from`; ties by the order of the file.
    fn shortest_from(&self, from: NetworkNode) -> Vec<Option<LinkId>> {
        let mut last = vec![None; self.names.len()];
        let mut queue = VecDeque::from([from]);
        while let Some(v) = queue.pop_front() {
            for &(link, to) in &self.out[v as usize] {
                if to != from && last[to as usize].is_none() {
                    last[to as usize] = Some(link);
                    queue.push_back(to);
                }
            }
        }
        last
    }

    fn walk_back(
        &mut self,
        tree: &[Option<LinkId>],
        from: NetworkNode,
        to: NetworkNode,
    ) -> Result<(), TopologyError> {
        let start = self.hops.len();
        let mut here = to;
        while here != from {
            let Some(link) = tree[here as usize] else {
                return crate::refuse!(
                    "no route from `{}` to `{}`: the graph is not connected",
                    self.names[from as usize],
                    self.names[to as usize]
                );
            };
            self.hops.push(link);
            here = self.ends[link as usize].0;
        }
        self.hops[start..].reverse();
        Ok(())
    }
}

impl Network for Graph {
    fn describe(&self) -> String {
        format!("graph of {} nodes and {} links", self.nodes, self.ends.len())
    }

    fn nodes(&self) -> usize {
        self.nodes
    }

    fn vertices(&self) -> usize {
        self.names.len()
    }

    fn links(&self) -> usize {
        self.ends.len()
    }

    fn route(
        &self,
        from: NetworkNode,
        to: NetworkNode,
        out: &mut Vec<LinkId>,
    ) -> Result<(), RouteError> {
        out.extend_from_slice(self.routes_of(from, to));
        Ok(())
    }

    fn link_ends(&self, link: LinkId) -> (VertexId, VertexId) {
        self.ends[link as usize]
    }

    fn out_links(&self, vertex: VertexId, out: &mut Vec<(LinkId, VertexId)>) {
        out.extend_from_slice(&self.out[vertex as usize]);
    }

    fn bandwidth_factor(&self, link: LinkId) -> f64 {
        self.bandwidth[link as usize]
    }

    fn uniform_bandwidth(&self) -> bool {
        self.bandwidth.iter().all(|&b| b == 1.0)
    }

    fn nodes_forward(&self) -> bool {
        let mut inner = (0..self.start.len() - 1).flat_map(|p| {
            let hops = &self.hops[self.start[p] as usize..self.start[p + 1] as usize];
            hops.iter().skip(1)
        });
        inner.any(|&l| (self.ends[l as usize].0 as usize) < self.nodes)
    }

    fn vertex_name(&self, vertex: VertexId) -> String {
        self.names[vertex as usize].clone()
    }

    fn node_by_name(&self, name: &str) -> Option<NetworkNode> {
        self.names[..self.nodes].iter().position(|n| n == name).map(|i| i as NetworkNode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::check;

    const STAR: &str = "eyrie-graph 1\nnode a\nnode b\nnode c\nswitch s\nlink a s\nlink b s # x\nlink c s bandwidth=2\n";

    #[test]
    fn shortest_routes_fill_what_is_missing() {
        let graph = Graph::parse(&format!("{STAR}routes shortest\n")).unwrap();
        check::routes_connect(&graph);
        assert_eq!(graph.node_by_name("c"), Some(2));
        assert!(!graph.uniform_bandwidth() && !graph.nodes_forward());
    }

    #[test]
    fn a_given_route_is_used_even_if_a_shorter_one_exists() {
        let text = "eyrie-graph 1\nnode a\nnode b\nnode c\nlink a b\nlink b c\nlink a c\nroute a c via b\nroutes shortest";
        let graph = Graph::parse(text).unwrap();
        let mut route = Vec::new();
        graph.route(0, 2, &mut route).unwrap();
        assert_eq!(route.len(), 2);
        assert!(graph.nodes_forward());
    }

    #[test]
    fn errors_name_the_fault() {
        for (text, fault) in [
            (STAR.to_string(), "no route from `a` to `b`"),
            ("eyrie-graph 1\nnode a\nnode b\nroutes shortest".into(), "not connected"),
            (format!("{STAR}route a b via c"), "no such link"),
            (format!("{STAR}route a q via s"), "`q` is not a declared"),
            (format!("{STAR}node a"), "line 9: `a` is declared twice"),
            (format!("{STAR}link a s bandwidth=-1"), "above 0"),
            ("graph".into(), "starts with"),
            (String::new(), "empty"),
            ("eyrie-graph 1\nfoo".into(), "`foo` is not one of"),
        ] {
            let error = Graph::parse(&text).unwrap_err().0;
            assert!(error.contains(fault), "{error}");
        }
    }
}
