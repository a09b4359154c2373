//! Slurm's topology files: topology.conf (tree and block) and topology.yaml (tree, block, torus3d).
//!
//! Slurm says which switch a node hangs on, not how wide the links are, so a switch's uplink gets
//! the bandwidth of all nodes below it divided by `taper` (1 = full bisection).

use serde_yaml_ng::Value;

use crate::cartesian::Cartesian;
use crate::coords;
use crate::error::TopologyError;
use crate::hostlist::{self, shorten, Size};
use crate::names::Names;
use crate::network::{LinkId, Network, NodeId, RouteError, VertexId};

/// A forest of switches with named nodes as leaves; the nodes come first. The link pair of vertex v
/// to its parent is 2v (up) and 2v + 1 (down).
#[derive(Debug, Clone)]
pub struct SwitchTree {
    nodes: Names,
    switches: Names,
    parent: Vec<Option<VertexId>>,
    /// Nodes below each vertex, itself included.
    below: Vec<u32>,
    /// Steps from each vertex up to its root.
    depth: Vec<u32>,
    taper: f64,
}

/// What a Slurm topology file describes.
#[derive(Debug, Clone)]
pub enum SlurmTopology {
    Tree(SwitchTree),
    /// A torus and its node names, in the torus's node order.
    Torus(Cartesian, Vec<String>),
}

/// One switch or block as written; the lists are host lists.
#[derive(Clone, Copy)]
struct Entry<'a> {
    /// Where it is written; 0 if that is not known.
    line: usize,
    name: &'a str,
    children: Option<&'a str>,
    nodes: Option<&'a str>,
}

impl Entry<'_> {
    fn refuse(&self, why: String) -> TopologyError {
        TopologyError::new(why).at_line(self.line)
    }
}

type Checked = Result<(), TopologyError>;
/// Visits all switches in order, as often as they are asked for: a file may have millions.
type Entries<'a> = &'a dyn Fn(&mut Visitor<'_>) -> Checked;
type Visitor<'a> = dyn FnMut(Entry) -> Checked + 'a;

/// Reads topology.conf with topology/tree (`SwitchName=`) or topology/block (`BlockName=`) lines.
pub fn parse_conf(text: &str, taper: f64) -> Result<SwitchTree, TopologyError> {
    let (mut switches, mut blocks) = (false, false);
    for (number, line) in text.lines().enumerate() {
        let keys = Keys::read(line).map_err(|e| e.at_line(number + 1))?;
        switches |= keys.switch.is_some();
        blocks |= keys.switch.is_none() && keys.block.is_some();
        if switches && blocks {
            let why = "topology.conf mixes SwitchName and BlockName lines: keep one kind";
            return Err(TopologyError::new(why).at_line(number + 1));
        }
    }
    if !switches && !blocks {
        return crate::refuse!("topology.conf has no SwitchName and no BlockName line");
    }
    let entries = |visit: &mut Visitor<'_>| -> Checked {
        for (number, line) in text.lines().enumerate() {
            let keys = Keys::read(line)?;
            if let Some(name) = keys.switch.or(keys.block) {
                let children = keys.children.filter(|_| switches);
                visit(Entry { line: number + 1, name, children, nodes: keys.nodes })?;
            }
        }
        Ok(())
    };
    SwitchTree::build(&entries, blocks, taper)
}

/// What a line of topology.conf says; of a key that comes twice the first.
#[derive(Default)]
struct Keys<'a> {
    switch: Option<&'a str>,
    block: Option<&'a str>,
    children: Option<&'a str>,
    nodes: Option<&'a str>,
}

impl<'a> Keys<'a> {
    fn read(line: &'a str) -> Result<Self, TopologyError> {
        let line = line.split('#').next().unwrap_or("").trim();
        let (mut keys, mut other, mut sizes) = (Keys::default(), None, None);
        for word in line.split_whitespace() {
            let (key, value) = match word.split_once('=') {
                Some((key, value)) if !value.is_empty() => (key, value.trim_matches('"')),
                _ => return crate::refuse!("`{}` is not Key=Value", shorten(word)),
            };
            let slot = [
                ("switchname", &mut keys.switch),
                ("blockname", &mut keys.block),
                ("switches", &mut keys.children),
                ("nodes", &mut keys.nodes),
                ("blocksizes", &mut sizes),
            ]
            .into_iter()
            .find(|(name, _)| key.eq_ignore_ascii_case(name))
            .map_or(&mut other, |(_, slot)| slot);
            slot.get_or_insert(value);
        }
        if !line.is_empty() && keys.switch.or(keys.block).or(sizes).is_none() {
            return crate::refuse!(
                "`{}` has no SwitchName, BlockName or BlockSizes",
                shorten(line)
            );
        }
        Ok(keys)
    }
}

/// Reads topology.yaml. `name` picks one of several topologies; without it the cluster default, or
/// else the first that describes links (tree, block or torus3d).
pub fn parse_yaml(
    text: &str,
    name: Option<&str>,
    taper: f64,
) -> Result<SlurmTopology, TopologyError> {
    let value: Value = match serde_yaml_ng::from_str(text) {
        Ok(value) => value,
        Err(e) => return crate::refuse!("topology.yaml: {}", shorten(&e.to_string())),
    };
    let Some(list) = value.as_sequence() else {
        return crate::refuse!(
            "topology.yaml: a list of topologies is expected, each `- topology: NAME`"
        );
    };
    let kind = |t: &&Value| ["tree", "block", "torus3d"].iter().any(|k| t.get(*k).is_some());
    let picked = match name {
        Some(name) => list.iter().find(|t| string(t, "topology").as_deref() == Some(name)),
        None => list
            .iter()
            .filter(kind)
            .find(|t| t.get("cluster_default").and_then(Value::as_bool) == Some(true))
            .or_else(|| list.iter().find(kind)),
    };
    let Some(topology) = picked else {
        return match name {
            Some(name) => crate::refuse!("topology.yaml has no topology `{}`", shorten(name)),
            None => crate::refuse!("topology.yaml has no tree, block or torus3d topology"),
        };
    };
    if let Some(tree) = topology.get("tree") {
        let switches = entries(tree, "switches", "switch")?;
        return Ok(SlurmTopology::Tree(SwitchTree::build(&switches, false, taper)?));
    }
    if let Some(block) = topology.get("block") {
        let blocks = entries(block, "blocks", "block")?;
        return Ok(SlurmTopology::Tree(SwitchTree::build(&blocks, true, taper)?));
    }
    match topology.get("torus3d") {
        Some(torus) => {
            let (network, names) = torus3d(torus)?;
            Ok(SlurmTopology::Torus(network, names))
        }
        None => crate::refuse!("topology.yaml: the topology is none of tree, block, torus3d"),
    }
}

fn string(value: &Value, key: &str) -> Option<String> {
    match value.get(key)? {
        Value::String(s) => Some(s.clone()),
        Value::Number(n) => Some(n.to_string()),
        _ => None,
    }
}

fn names(value: &Value, key: &str) -> Result<Vec<String>, TopologyError> {
    string(value, key).map_or(Ok(Vec::new()), |text| hostlist::expand(&text))
}

/// The switches or blocks of a list, to be visited.
fn entries<'v>(
    value: &'v Value,
    list: &'v str,
    key: &'v str,
) -> Result<impl Fn(&mut Visitor<'_>) -> Checked + 'v, TopologyError> {
    let Some(items) = value.get(list).and_then(Value::as_sequence) else {
        return crate::refuse!("topology.yaml: `{list}` must be a list");
    };
    Ok(move |visit: &mut Visitor<'_>| {
        for item in items {
            let Some(name) = string(item, key) else {
                return crate::refuse!("topology.yaml: an entry of `{list}` has no `{key}: NAME`");
            };
            let (children, nodes) = (string(item, "children"), string(item, "nodes"));
            let (children, nodes) = (children.as_deref(), nodes.as_deref());
            visit(Entry { line: 0, name: &name, children, nodes })?;
        }
        Ok(())
    })
}

/// `dims` as `{x, y, z}` or a list, here or inside `value`.
fn xyz(value: &Value, what: &str) -> Result<[usize; 3], TopologyError> {
    let mut found = [0; 3];
    for (i, key) in ["x", "y", "z"].iter().enumerate() {
        let item = value.get(*key).or_else(|| value.as_sequence().and_then(|s| s.get(i)));
        match item.and_then(Value::as_u64).filter(|&v| v <= 65_535) {
            Some(v) => found[i] = v as usize,
            None => {
                return crate::refuse!("topology.yaml: {what} needs {key} as a number up to 65535")
            }
        }
    }
    Ok(found)
}

/// A torus3d entry: extents and either `nodes` (x fastest) or `regions`, each a box with its nodes.
fn torus3d(value: &Value) -> Result<(Cartesian, Vec<String>), TopologyError> {
    let inner = ["toruses", "tori", "torus"].iter().find_map(|k| value.get(*k));
    let entry = inner.unwrap_or(value);
    let entry = entry.as_sequence().map_or(Some(entry), |s| s.first());
    let Some(entry) = entry else {
        return crate::refuse!("topology.yaml: torus3d lists no torus");
    };
    let dims = xyz(entry.get("dims").unwrap_or(entry), "torus3d dims")?;
    let dims_text = coords::format_dims(&dims);
    coords::parse_dims(&dims_text)?;
    let mut names: Vec<String> = vec![String::new(); dims.iter().product()];
    let whole = vec![entry.clone()];
    let regions = entry.get("regions").and_then(Value::as_sequence).unwrap_or(&whole);
    for region in regions {
        let (anchor, extent) = if entry.get("regions").is_some() {
            let anchor =
                region.get("anchor").map_or(Ok([0; 3]), |a| xyz(a, "a region's anchor"))?;
            (anchor, xyz(region.get("dims").unwrap_or(region), "a region's dims")?)
        } else {
            ([0; 3], dims)
        };
        if (0..3).any(|i| anchor[i] + extent[i] > dims[i]) {
            return crate::refuse!(
                "topology.yaml: region {} at {} does not fit into {dims_text}",
                coords::format_dims(&extent),
                coords::format(&anchor)
            );
        }
        let hosts = self::names(region, "nodes")?;
        let expected: usize = extent.iter().product();
        if hosts.len() != expected {
            return crate::refuse!(
                "topology.yaml: {} has room for {expected} nodes but `nodes` names {}",
                coords::format_dims(&extent),
                hosts.len()
            );
        }
        for (i, host) in hosts.into_iter().enumerate() {
            let (x, y, z) = (i % extent[0], i / extent[0] % extent[1], i / extent[0] / extent[1]);
            let at = coords::index(&[anchor[0] + x, anchor[1] + y, anchor[2] + z], &dims);
            if !names[at].is_empty() {
                return crate::refuse!("topology.yaml: regions overlap at `{}`", shorten(&host));
            }
            names[at] = host;
        }
    }
    if let Some(hole) = names.iter().position(String::is_empty) {
        return crate::refuse!(
            "topology.yaml: no node at {} of torus {dims_text}",
            coords::format(&coords::of(hole, &dims))
        );
    }
    Ok((Cartesian::torus(&dims), names))
}

impl SwitchTree {
    /// `blocks`: they hang on one common switch.
    fn build(entries: Entries, blocks: bool, taper: f64) -> Result<Self, TopologyError> {
        if taper.is_nan() || taper < 1.0 {
            return crate::refuse!("taper {taper}: at least 1");
        }
        // First whether it can be expanded at all: most wrong files are refused before anything is
        // made of them.
        let mut size = Size::default();
        entries(&mut |e| {
            for list in [e.nodes, e.children].into_iter().flatten() {
                let more = hostlist::check(list).and_then(|more| size.plus(more));
                size = more.map_err(|why| why.at_line(e.line))?;
            }
            Ok(())
        })?;
        let mut tree = SwitchTree {
            nodes: Names::default(),
            switches: Names::default(),
            parent: Vec::new(),
            below: Vec::new(),
            depth: Vec::new(),
            taper,
        };
        let lines = tree.name(entries)?;
        tree.hang(entries)?;
        if blocks {
            tree.add_root()?;
        }
        let order = tree.order();
        if let Some(own) = (0..lines.len()).find(|i| tree.below[tree.nodes.len() + i] == u32::MAX) {
            let name = shorten(tree.switches.name(own as u32));
            let why = format!("switch `{name}` is its own ancestor");
            return Err(TopologyError::new(why).at_line(lines[own]));
        }
        tree.depth = vec![0; tree.parent.len()];
        for &vertex in order.iter().rev() {
            let above = tree.parent[vertex as usize].map_or(0, |p| tree.depth[p as usize]);
            tree.depth[vertex as usize] = above + 1;
        }
        Ok(tree)
    }

    /// Takes the names of nodes and switches; returns the switches' lines.
    fn name(&mut self, entries: Entries) -> Result<Vec<usize>, TopologyError> {
        entries(&mut |e| {
            visit(e.nodes, &mut |node| match self.nodes.add(node) {
                true => Ok(()),
                false => Err(e.refuse(format!("node `{}` hangs on two switches", shorten(node)))),
            })
        })?;
        if self.nodes.len() == 0 {
            return crate::refuse!("the topology names no node");
        }
        let mut lines = Vec::new();
        entries(&mut |e| {
            lines.push(e.line);
            match self.switches.add(e.name) {
                true => Ok(()),
                false => Err(e.refuse(format!("switch `{}` is defined twice", shorten(e.name)))),
            }
        })?;
        Ok(lines)
    }

    /// Hangs nodes and switches on their parents.
    fn hang(&mut self, entries: Entries) -> Checked {
        self.parent = vec![None; self.nodes.len() + self.switches.len()];
        let (mut own, mut node) = (self.nodes.len(), 0);
        entries(&mut |e| {
            // Nodes were numbered in this order.
            visit(e.nodes, &mut |_| {
                self.parent[node] = Some(own as VertexId);
                node += 1;
                Ok(())
            })?;
            visit(e.children, &mut |child| {
                let Some(number) = self.switches.get(child) else {
                    let (name, child) = (shorten(e.name), shorten(child));
                    let why =
                        format!("switch `{name}` names child `{child}`, which is not defined");
                    return Err(e.refuse(why));
                };
                let parent = &mut self.parent[self.nodes.len() + number as usize];
                if parent.replace(own as VertexId).is_some() {
                    return Err(e.refuse(format!("switch `{}` has two parents", shorten(child))));
                }
                Ok(())
            })?;
            own += 1;
            Ok(())
        })
    }

    fn add_root(&mut self) -> Checked {
        const ROOT: &str = "between-blocks";
        let root = self.parent.len() as VertexId;
        if !self.switches.add(ROOT) {
            return crate::refuse!("switch `{ROOT}` is defined twice");
        }
        self.parent[self.nodes.len()..].fill(Some(root));
        self.parent.push(None);
        Ok(())
    }

    /// Counts the nodes below each vertex; returns the vertices from below upwards. Those of a ring
    /// are not among them, and have `u32::MAX` nodes.
    fn order(&mut self) -> Vec<VertexId> {
        let mut children = vec![0u32; self.parent.len()];
        for parent in self.parent.iter().flatten() {
            children[*parent as usize] += 1;
        }
        let vertices = 0..self.parent.len() as VertexId;
        let mut order: Vec<VertexId> = vertices.filter(|&v| children[v as usize] == 0).collect();
        let mut below: Vec<u32> =
            (0..self.parent.len()).map(|v| u32::from(v < self.nodes.len())).collect();
        let mut done = 0;
        while let Some(&vertex) = order.get(done) {
            done += 1;
            if let Some(parent) = self.parent[vertex as usize] {
                below[parent as usize] += below[vertex as usize];
                children[parent as usize] -= 1;
                if children[parent as usize] == 0 {
                    order.push(parent);
                }
            }
        }
        children.iter().zip(&mut below).filter(|(c, _)| **c > 0).for_each(|(_, b)| *b = u32::MAX);
        self.below = below;
        order
    }
}

/// Visits the names of a list, if there is one.
fn visit(list: Option<&str>, visit: &mut dyn FnMut(&str) -> Checked) -> Checked {
    list.map_or(Ok(()), |list| hostlist::for_each(list, visit))
}

impl Network for SwitchTree {
    fn describe(&self) -> String {
        let (nodes, switches) = (self.nodes.len(), self.switches.len());
        format!("switch tree of {nodes} nodes and {switches} switches")
    }

    fn nodes(&self) -> usize {
        self.nodes.len()
    }

    fn vertices(&self) -> usize {
        self.parent.len()
    }

    fn links(&self) -> usize {
        2 * self.parent.len()
    }

    fn route(&self, from: NodeId, to: NodeId, out: &mut Vec<LinkId>) -> Result<(), RouteError> {
        let (mut a, mut b) = (from, to);
        let mut down = Vec::new();
        while a != b {
            if self.depth[a as usize] >= self.depth[b as usize] {
                out.push(2 * a);
                let Some(next) = self.parent[a as usize] else {
                    return Err(RouteError::Missing {
                        from: self.vertex_name(from),
                        to: self.vertex_name(to),
                        why: "they have no switch in common".into(),
                    });
                };
                a = next;
            } else {
                down.push(2 * b + 1);
                b = self.parent[b as usize].unwrap_or(b);
            }
        }
        out.extend(down.into_iter().rev());
        Ok(())
    }

    fn link_ends(&self, link: LinkId) -> (VertexId, VertexId) {
        let child = link / 2;
        let parent = self.parent[child as usize].unwrap_or(child);
        if link % 2 == 0 {
            (child, parent)
        } else {
            (parent, child)
        }
    }

    fn out_links(&self, vertex: VertexId, out: &mut Vec<(LinkId, VertexId)>) {
        if let Some(parent) = self.parent[vertex as usize] {
            out.push((2 * vertex, parent));
        }
        for (child, parent) in self.parent.iter().enumerate() {
            if *parent == Some(vertex) {
                out.push((2 * child as LinkId + 1, child as VertexId));
            }
        }
    }

    fn bandwidth_factor(&self, link: LinkId) -> f64 {
        let child = (link / 2) as usize;
        if child < self.nodes.len() {
            1.0
        } else {
            (f64::from(self.below[child]) / self.taper).max(1.0)
        }
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

    fn node_by_name(&self, name: &str) -> Option<NodeId> {
        self.nodes.get(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::check;

    #[test]
    fn a_tree_routes_through_the_common_switch() {
        let text = "# site\nSwitchName=s0 Nodes=tux[0-3]\nSwitchName=s1 Nodes=tux[4-7] LinkSpeed=900\nswitchname=top Switches=s[0-1]\n";
        let tree = parse_conf(text, 1.0).unwrap();
        check::routes_connect(&tree);
        let mut route = Vec::new();
        tree.route(0, 5, &mut route).unwrap();
        let walk: Vec<_> = route.iter().map(|&l| tree.vertex_name(tree.link_ends(l).1)).collect();
        assert_eq!(walk, ["s0", "top", "s1", "tux5"]);
        assert_eq!(tree.bandwidth_factor(route[1]), 4.0);
        assert_eq!(tree.node_by_name("tux6"), Some(6));
    }

    #[test]
    fn a_deep_tree_is_read_in_no_time() {
        let mut text = String::from("SwitchName=s0 Nodes=n0\n");
        for i in 1..200_000 {
            text += &format!("SwitchName=s{i} Switches=s{} Nodes=n{i}\n", i - 1);
        }
        let tree = parse_conf(&text, 1.0).unwrap();
        assert_eq!((tree.nodes(), tree.below[tree.vertices() - 1]), (200_000, 200_000));
    }

    #[test]
    fn blocks_hang_on_one_switch() {
        let tree = parse_conf(
            "BlockName=b1 Nodes=n[1-4]\nBlockName=b2 Nodes=n[5-8]\nBlockSizes=4,8\n",
            2.0,
        )
        .unwrap();
        check::routes_connect(&tree);
        assert_eq!(tree.nodes(), 8);
    }

    #[test]
    fn yaml_has_trees_blocks_and_a_torus() {
        let text = "- topology: t1\n  cluster_default: true\n  tree:\n    switches:\n    - switch: root\n      children: s[1-2]\n    - switch: s1\n      nodes: n[01-02]\n    - switch: s2\n      nodes: n[03-04]\n- topology: t2\n  block:\n    block_sizes: [2]\n    blocks:\n    - block: b1\n      nodes: m[1-2]\n    - block: b2\n      nodes: m[3-4]\n- topology: t3\n  torus3d:\n    toruses:\n    - name: a\n      dims: {x: 2, y: 3, z: 1}\n      nodes: t[0-5]\n";
        assert!(
            matches!(parse_yaml(text, None, 1.0).unwrap(), SlurmTopology::Tree(t) if t.nodes() == 4)
        );
        let second = parse_yaml(text, Some("t2"), 1.0).unwrap();
        assert!(matches!(second, SlurmTopology::Tree(t) if t.vertex_name(0) == "m1"));
        let SlurmTopology::Torus(torus, names) = parse_yaml(text, Some("t3"), 1.0).unwrap() else {
            panic!("a torus is expected")
        };
        // x fastest: t1 is at x = 1, y = 0.
        assert_eq!(names[coords::index(&[1, 0, 0], torus.dims())], "t1");
        assert_eq!(names[coords::index(&[0, 1, 0], torus.dims())], "t2");
    }

    #[test]
    fn a_torus_may_be_given_by_regions() {
        let text = "- topology: t\n  torus3d:\n    dims: [2, 2, 1]\n    regions:\n    - {anchor: {x: 0, y: 0, z: 0}, dims: {x: 2, y: 1, z: 1}, nodes: \"a[0-1]\"}\n    - {anchor: {x: 0, y: 1, z: 0}, dims: {x: 2, y: 1, z: 1}, nodes: \"b[0-1]\"}\n";
        let SlurmTopology::Torus(_, names) = parse_yaml(text, None, 1.0).unwrap() else { panic!() };
        assert_eq!(names, ["a0", "b0", "a1", "b1"]);
    }

    #[test]
    fn faults_are_named() {
        for (text, fault) in [
            ("", "no SwitchName"),
            ("SwitchName=a Switches=b", "names no node"),
            ("SwitchName=a Nodes=n1 Switches=b", "`b`, which is not defined"),
            ("SwitchName=a Nodes=n1\nSwitchName=b Nodes=n1", "`n1` hangs on two"),
            ("SwitchName=a Nodes=n[1", "without"),
            ("SwitchName=a Nodes=n1 Switches=b\nSwitchName=b Switches=a", "its own ancestor"),
            (
                "\nSwitchName=a Nodes=n1\nSwitchName=a Nodes=n2",
                "line 3: switch `a` is defined twice",
            ),
            (
                "SwitchName=a Nodes=n1\n\nSwitchName=b Switches=c",
                "line 3: switch `b` names child `c`",
            ),
            (
                "SwitchName=a Nodes=n1\nSwitchName=b Switches=a\nSwitchName=c Switches=a",
                "line 3: switch `a` has two parents",
            ),
            ("SwitchName=a Nodes=n1\nBlockName=b Nodes=n2", "line 2: topology.conf mixes"),
            ("SwitchName=a Nodes=n1\nSwitchName=b Nodes=n[2-", "line 2: `[` without"),
            (
                "SwitchName=a Nodes=n[0-2999999]\nSwitchName=b Nodes=m[0-2999999]",
                "line 2: more than",
            ),
            ("Foo", "line 1: `Foo` is not Key=Value"),
            ("Foo=1", "line 1: `Foo=1` has no SwitchName"),
        ] {
            let error = parse_conf(text, 1.0).unwrap_err().0;
            assert!(error.contains(fault), "{text}: {error}");
        }
        for (text, fault) in [
            ("a: b", "a list of topologies"),
            ("- topology: x\n  flat: true", "no tree, block or torus3d"),
            ("- topology: x\n  torus3d: {dims: {x: 2, y: 2, z: 1}, nodes: 'a[0-2]'}", "room for 4"),
            ("- topology: x\n  torus3d: {nodes: a}", "needs x"),
            ("[", "topology.yaml:"),
        ] {
            let error = parse_yaml(text, None, 1.0).unwrap_err().0;
            assert!(error.contains(fault), "{text}: {error}");
        }
    }
}
