//! A network of switches with named nodes as leaves, as Slurm's topology files describe it.
//!
//! A switch, or a node, may be connected to several switches. Routes go up to a switch that is
//! above both ends and down again, by as few links as possible. If several ways are equally short,
//! the destination chooses. Slurm says which switch a node is connected to, not how wide the links
//! are: together the uplinks of a switch get the bandwidth of all nodes below it divided by `taper`
//! (1 = full bisection). This file knows no file format.

use std::collections::hash_map::{Entry, HashMap};

use crate::error::TopologyError;
use crate::hostlist::{self, shorten, Size};
use crate::names::Names;
use crate::network::{LinkId, Network, NetworkNode, RouteError, VertexId};

/// Nodes, which come first, and switches. The links of the edge number e are 2e (up) and 2e + 1
/// (down).
#[derive(Debug, Clone)]
pub struct SwitchTree {
    nodes: Names,
    switches: Names,
    /// Each vertex with each of its parents, sorted by vertex.
    edges: Vec<(VertexId, VertexId)>,
    /// Where the edges of each vertex begin in `edges`.
    first: Vec<u32>,
    /// The share of the nodes below each vertex, itself included: a node below several switches
    /// counts in parts.
    below: Vec<f64>,
    /// Steps from each vertex up to its root; empty where a vertex has several parents.
    depth: Vec<u32>,
    taper: f64,
}

/// One switch or block as written; the lists are host lists.
#[derive(Clone, Copy)]
pub(crate) struct Branch<'a> {
    pub name: &'a str,
    pub children: Option<&'a str>,
    pub nodes: Option<&'a str>,
}

/// Why no network was made, and the entry, counted from 0, that the reason is about.
pub(crate) struct Refusal {
    pub entry: Option<usize>,
    pub why: TopologyError,
}

impl From<TopologyError> for Refusal {
    fn from(why: TopologyError) -> Self {
        Refusal { entry: None, why }
    }
}

type Checked = Result<(), TopologyError>;
/// Visits all entries in order, as often as it is called: a file may have millions.
pub(crate) type Entries<'a> = &'a dyn Fn(&mut Visitor<'_>) -> Result<(), Refusal>;
pub(crate) type Visitor<'a> = dyn FnMut(Branch) -> Result<(), Refusal> + 'a;

/// Visits the entries; an error names its entry.
fn each(entries: Entries, visit: &mut dyn FnMut(Branch) -> Checked) -> Result<(), Refusal> {
    let mut number = 0;
    entries(&mut |entry| {
        let visited = visit(entry).map_err(|why| Refusal { entry: Some(number), why });
        number += 1;
        visited
    })
}

/// Visits the names of a list, if there is one.
fn visit(list: Option<&str>, visit: &mut dyn FnMut(&str) -> Checked) -> Checked {
    list.map_or(Ok(()), |list| hostlist::for_each(list, visit))
}

/// Longest name of a switch that Slurm accepts.
const LONGEST_NAME: usize = 64;

impl SwitchTree {
    /// `blocks`: all entries are connected to one common switch.
    pub(crate) fn build(entries: Entries, blocks: bool, taper: f64) -> Result<Self, Refusal> {
        if taper.is_nan() || taper < 1.0 {
            return Err(TopologyError::new(format!("taper {taper}: at least 1")).into());
        }
        // First checks whether all lists can be expanded: most wrong files are refused before
        // anything is built from them.
        let mut size = Size::default();
        each(entries, &mut |e| {
            for list in [e.nodes, e.children].into_iter().flatten() {
                size = hostlist::check(list).and_then(|more| size.plus(more))?;
            }
            Ok(())
        })?;
        let mut tree = SwitchTree {
            nodes: Names::default(),
            switches: Names::default(),
            edges: Vec::new(),
            first: Vec::new(),
            below: Vec::new(),
            depth: Vec::new(),
            taper,
        };
        tree.name(entries)?;
        tree.hang(entries)?;
        if blocks {
            tree.add_root()?;
        }
        tree.index();
        let order = tree.order()?;
        tree.weigh(&order);
        Ok(tree)
    }

    /// Collects the names of nodes and switches.
    fn name(&mut self, entries: Entries) -> Result<(), Refusal> {
        each(entries, &mut |e| {
            visit(e.nodes, &mut |node| {
                // A node that is connected to several switches is named again.
                let _ = self.nodes.add(node);
                Ok(())
            })
        })?;
        if self.nodes.len() == 0 {
            return Err(TopologyError::new("the topology names no node").into());
        }
        each(entries, &mut |e| {
            if e.name.is_empty() || e.name.len() > LONGEST_NAME {
                return crate::refuse!(
                    "`{}` is no name of a switch: these have 1 to {LONGEST_NAME} bytes",
                    shorten(e.name)
                );
            }
            if !self.switches.add(e.name) {
                return crate::refuse!("switch `{}` is defined twice", shorten(e.name));
            }
            Ok(())
        })
    }

    /// Connects nodes and switches to their parents.
    fn hang(&mut self, entries: Entries) -> Result<(), Refusal> {
        let mut own = self.nodes.len() as VertexId;
        each(entries, &mut |e| {
            visit(e.nodes, &mut |node| {
                self.edges.extend(self.nodes.get(node).map(|node| (node, own)));
                Ok(())
            })?;
            visit(e.children, &mut |child| {
                let name = shorten(e.name);
                let Some(number) = self.switches.get(child) else {
                    return crate::refuse!(
                        "switch `{name}` names child `{}`, which is not defined",
                        shorten(child)
                    );
                };
                let child = self.nodes.len() as VertexId + number;
                if child == own {
                    return crate::refuse!("switch `{name}` is its own child");
                }
                self.edges.push((child, own));
                Ok(())
            })?;
            own += 1;
            Ok(())
        })
    }

    fn add_root(&mut self) -> Checked {
        const ROOT: &str = "between-blocks";
        let blocks = self.switches.len() as VertexId;
        if !self.switches.add(ROOT) {
            return crate::refuse!("block `{ROOT}`: Eyrie needs this name, take another one");
        }
        let first = self.nodes.len() as VertexId;
        self.edges.extend((first..first + blocks).map(|block| (block, first + blocks)));
        Ok(())
    }

    /// Sorts the edges by vertex. Each counts once, however often it is written.
    fn index(&mut self) {
        self.edges.sort_unstable();
        self.edges.dedup();
        self.first = vec![0; self.nodes.len() + self.switches.len() + 1];
        for (vertex, _) in &self.edges {
            self.first[*vertex as usize + 1] += 1;
        }
        for vertex in 1..self.first.len() {
            self.first[vertex] += self.first[vertex - 1];
        }
    }

    /// The vertices from below upwards: each after all that are below it.
    fn order(&self) -> Result<Vec<VertexId>, Refusal> {
        let mut children = vec![0u32; self.vertices()];
        for (_, parent) in &self.edges {
            children[*parent as usize] += 1;
        }
        let vertices = 0..self.vertices() as VertexId;
        let mut order: Vec<VertexId> = vertices.filter(|&v| children[v as usize] == 0).collect();
        let mut done = 0;
        while let Some(&vertex) = order.get(done) {
            done += 1;
            for (_, parent) in &self.edges[self.above(vertex)] {
                children[*parent as usize] -= 1;
                if children[*parent as usize] == 0 {
                    order.push(*parent);
                }
            }
        }
        match children[self.nodes.len()..].iter().position(|left| *left > 0) {
            None => Ok(order),
            Some(own) => {
                let name = shorten(self.switches.name(own as u32));
                let why = format!("switch `{name}` is its own ancestor, or above one that is");
                Err(Refusal { entry: Some(own), why: TopologyError::new(why) })
            }
        }
    }

    /// Counts the nodes below each vertex, and the steps up to the root.
    fn weigh(&mut self, order: &[VertexId]) {
        self.below = (0..self.vertices()).map(|v| f64::from(v < self.nodes.len())).collect();
        for &vertex in order {
            let above = self.above(vertex);
            let share = self.below[vertex as usize] / above.len() as f64;
            for edge in above {
                self.below[self.edges[edge].1 as usize] += share;
            }
        }
        if (0..self.vertices()).any(|v| self.above(v as VertexId).len() > 1) {
            return;
        }
        self.depth = vec![0; self.vertices()];
        for &vertex in order.iter().rev() {
            let above = self.parent(vertex).map_or(0, |(_, p)| self.depth[p as usize] + 1);
            self.depth[vertex as usize] = above;
        }
    }

    /// The numbers of the edges from a vertex upwards.
    fn above(&self, vertex: VertexId) -> std::ops::Range<usize> {
        self.first[vertex as usize] as usize..self.first[vertex as usize + 1] as usize
    }

    /// The edge to the first parent of a vertex, and that parent.
    fn parent(&self, vertex: VertexId) -> Option<(usize, VertexId)> {
        let edge = self.above(vertex).next()?;
        Some((edge, self.edges[edge].1))
    }

    /// Where every vertex has at most one parent: goes up from both ends until they meet.
    fn walk_up(&self, from: NetworkNode, to: NetworkNode, out: &mut Vec<LinkId>) -> bool {
        let mut a = from;
        let mut b = to;
        let mut down = Vec::new();
        while a != b {
            if self.depth[a as usize] >= self.depth[b as usize] {
                let Some((edge, next)) = self.parent(a) else { return false };
                out.push(2 * edge as LinkId);
                a = next;
            } else {
                let Some((edge, next)) = self.parent(b) else { return false };
                down.push(2 * edge as LinkId + 1);
                b = next;
            }
        }
        out.extend(down.into_iter().rev());
        true
    }

    /// Goes over a switch that is above both ends, with the fewest links in all.
    fn search(&self, from: NetworkNode, to: NetworkNode, out: &mut Vec<LinkId>) -> bool {
        let (up, down) = (Climb::from(self, from, to), Climb::from(self, to, to));
        let shared = |step: &&Step| up.at.contains_key(&step.vertex);
        let links = |step: &&Step| step.height + up.steps[up.at[&step.vertex]].height;
        // The first of several: the order of visits depends on the destination.
        let top = down.steps.iter().filter(shared).min_by_key(links);
        let Some(&Step { vertex: top, .. }) = top else { return false };
        let begin = out.len();
        out.extend(up.edges_to(top).map(|edge| 2 * edge as LinkId));
        out[begin..].reverse();
        out.extend(down.edges_to(top).map(|edge| 2 * edge as LinkId + 1));
        true
    }

    fn root_of(&self, mut vertex: VertexId) -> String {
        while let Some((_, parent)) = self.parent(vertex) {
            vertex = parent;
        }
        self.vertex_name(vertex)
    }
}

/// A vertex on the way up.
struct Step {
    vertex: VertexId,
    height: usize,
    /// Chooses among its parents: the rest of the destination's number.
    choice: usize,
    /// The edge to it, and the step where that begins; none at the first.
    by: Option<(usize, usize)>,
}

/// All vertices above one, nearest first.
struct Climb {
    steps: Vec<Step>,
    /// The step of each vertex.
    at: HashMap<VertexId, usize>,
}

impl Climb {
    /// Of several parents the one that `to` selects is visited first.
    fn from(tree: &SwitchTree, vertex: VertexId, to: NetworkNode) -> Self {
        let mut climb = Climb {
            steps: vec![Step { vertex, height: 0, choice: to as usize, by: None }],
            at: HashMap::from([(vertex, 0)]),
        };
        let mut done = 0;
        while done < climb.steps.len() {
            let Step { vertex, height, choice, .. } = climb.steps[done];
            let above = tree.above(vertex);
            for turn in 0..above.len() {
                let edge = above.start + (choice + turn) % above.len();
                let parent = tree.edges[edge].1;
                if let Entry::Vacant(free) = climb.at.entry(parent) {
                    free.insert(climb.steps.len());
                    let height = height + 1;
                    let choice = choice / above.len();
                    let by = Some((edge, done));
                    climb.steps.push(Step { vertex: parent, height, choice, by });
                }
            }
            done += 1;
        }
        climb
    }

    /// The edges from `top` down to the start of the climb.
    fn edges_to(&self, top: VertexId) -> impl Iterator<Item = usize> + '_ {
        let mut step = self.at[&top];
        std::iter::from_fn(move || {
            let (edge, before) = self.steps[step].by?;
            step = before;
            Some(edge)
        })
    }
}

impl Network for SwitchTree {
    fn describe(&self) -> String {
        let (nodes, switches) = (self.nodes.len(), self.switches.len());
        let several = |first: usize, past: usize| {
            (first..past).filter(|&v| self.above(v as VertexId).len() > 1).count()
        };
        let mut text = format!("switch tree of {nodes} nodes and {switches} switches");
        let counts = [(several(0, nodes), "nodes"), (several(nodes, self.vertices()), "switches")];
        for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
            text += &format!(", {count} {what} on several switches");
        }
        text
    }

    fn nodes(&self) -> usize {
        self.nodes.len()
    }

    fn vertices(&self) -> usize {
        self.nodes.len() + self.switches.len()
    }

    fn links(&self) -> usize {
        2 * self.edges.len()
    }

    fn route(
        &self,
        from: NetworkNode,
        to: NetworkNode,
        out: &mut Vec<LinkId>,
    ) -> Result<(), RouteError> {
        let begin = out.len();
        let several = self.depth.is_empty();
        if several && self.search(from, to, out) || !several && self.walk_up(from, to, out) {
            return Ok(());
        }
        out.truncate(begin);
        let (one, other) = (shorten(&self.root_of(from)), shorten(&self.root_of(to)));
        Err(RouteError::Missing {
            from: self.vertex_name(from),
            to: self.vertex_name(to),
            why: format!(
                "no switch is above both; add one above `{one}` and `{other}` \
                 (SwitchName=top Switches={one},{other}) if a network joins them, or leave one of \
                 the two parts out of the file"
            ),
        })
    }

    fn link_ends(&self, link: LinkId) -> (VertexId, VertexId) {
        let (child, parent) = self.edges[link as usize / 2];
        match link % 2 {
            0 => (child, parent),
            _ => (parent, child),
        }
    }

    fn out_links(&self, vertex: VertexId, out: &mut Vec<(LinkId, VertexId)>) {
        for edge in self.above(vertex) {
            out.push((2 * edge as LinkId, self.edges[edge].1));
        }
        for (edge, (child, parent)) in self.edges.iter().enumerate() {
            if *parent == vertex {
                out.push((2 * edge as LinkId + 1, *child));
            }
        }
    }

    fn bandwidth_factor(&self, link: LinkId) -> f64 {
        let child = self.edges[link as usize / 2].0;
        if (child as usize) < self.nodes.len() {
            return 1.0;
        }
        let uplinks = self.above(child).len() as f64;
        (self.below[child as usize] / self.taper / uplinks).max(1.0)
    }

    fn uniform_bandwidth(&self) -> bool {
        false
    }

    fn vertex_name(&self, vertex: VertexId) -> String {
        match (vertex as usize).checked_sub(self.nodes.len()) {
            None => self.nodes.name(vertex).to_string(),
            Some(switch) => self.switches.name(switch as u32).to_string(),
        }
    }

    fn node_by_name(&self, name: &str) -> Option<NetworkNode> {
        self.nodes.get(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::check;

    /// Lines with a name, `:` and nodes, or `>` and children.
    fn tree(text: &str, taper: f64) -> SwitchTree {
        let entries = |visit: &mut Visitor<'_>| -> Result<(), Refusal> {
            text.split(' ').try_for_each(|entry| match entry.split_once(':') {
                Some((name, nodes)) => visit(Branch { name, children: None, nodes: Some(nodes) }),
                None => {
                    let (name, children) = entry.split_once('>').expect("children");
                    visit(Branch { name, children: Some(children), nodes: None })
                }
            })
        };
        SwitchTree::build(&entries, false, taper).map_err(|refusal| refusal.why).expect("a tree")
    }

    fn walk(tree: &SwitchTree, from: &str, to: &str) -> Vec<String> {
        let node = |name| tree.node_by_name(name).expect("a node");
        let mut route = Vec::new();
        tree.route(node(from), node(to), &mut route).expect("a route");
        route.iter().map(|&link| tree.vertex_name(tree.link_ends(link).1)).collect()
    }

    #[test]
    fn a_tree_routes_through_the_common_switch() {
        let tree = tree("s0:tux[0-3] s1:tux[4-7] top>s[0-1]", 2.0);
        check::routes_connect(&tree);
        assert_eq!(walk(&tree, "tux0", "tux5"), ["s0", "top", "s1", "tux5"]);
        let mut route = Vec::new();
        tree.route(0, 5, &mut route).unwrap();
        let factors: Vec<_> = route.iter().map(|&link| tree.bandwidth_factor(link)).collect();
        assert_eq!(factors, [1.0, 2.0, 2.0, 1.0]);
    }

    #[test]
    fn a_switch_with_several_parents_uses_all_of_them() {
        let tree = tree("l0:n[0-3] l1:n[4-7] a>l[0-1] b>l[0-1]", 1.0);
        check::routes_connect(&tree);
        assert!(tree.describe().ends_with("2 switches on several switches"), "{}", tree.describe());
        // The destination chooses.
        assert_eq!(walk(&tree, "n0", "n4"), ["l0", "a", "l1", "n4"]);
        assert_eq!(walk(&tree, "n3", "n5"), ["l0", "b", "l1", "n5"]);
        assert_eq!(walk(&tree, "n0", "n1"), ["l0", "n1"]);
        // Two uplinks share the bandwidth of one.
        let mut route = Vec::new();
        tree.route(0, 4, &mut route).unwrap();
        assert_eq!(tree.bandwidth_factor(route[1]), 2.0);
    }

    #[test]
    fn a_node_on_two_switches_takes_the_shorter_way() {
        let tree = tree("rail0:n[0-3] rail1:n[2-5] top>rail[0-1]", 1.0);
        check::routes_connect(&tree);
        assert_eq!(walk(&tree, "n0", "n2"), ["rail0", "n2"]);
        assert_eq!(walk(&tree, "n5", "n2"), ["rail1", "n2"]);
        assert_eq!(walk(&tree, "n0", "n5"), ["rail0", "top", "rail1", "n5"]);
        assert!(tree.describe().ends_with("2 nodes on several switches"), "{}", tree.describe());
    }

    #[test]
    fn levels_with_several_ways_are_climbed_together() {
        let tree = tree("l0:n[0-1] l1:n[2-3] l2:n[4-5] l3:n[6-7] p0>l[0-1] p1>l[0-1] q0>l[2-3] q1>l[2-3] c0>p0,q0 c1>p1,q1", 1.0);
        check::routes_connect(&tree);
        assert_eq!(walk(&tree, "n0", "n6").len(), 6);
    }

    #[test]
    fn unconnected_parts_are_reported_with_the_remedy() {
        for text in ["s0:n[0-1] s1:n[2-3]", "s0:n[0-1] s1:n[2-3] a>s0 b>s0 t>a,b"] {
            let tree = tree(text, 1.0);
            let mut route = Vec::new();
            let error = tree.route(0, 3, &mut route).unwrap_err().to_string();
            assert!(error.contains("SwitchName=top Switches=") && error.contains(",s1"), "{error}");
            assert!(route.is_empty());
        }
    }
}
