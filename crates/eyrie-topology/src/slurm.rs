//! Slurm's topology files: topology.conf (tree and block) and topology.yaml (tree, block, torus3d).
//!
//! Slurm says which switch a node hangs on, not how wide the links are, so a switch's uplink gets the
//! bandwidth of all nodes below it divided by `taper` (1 = full bisection).

use std::collections::HashMap;

use serde_yaml_ng::Value;

use crate::cartesian::Cartesian;
use crate::coords;
use crate::hostlist::{self, shorten};
use crate::network::{LinkId, Network, NodeId, RouteError, TopologyError, VertexId};

/// A forest of switches with named nodes as leaves. The link pair of vertex v to its parent is 2v (up)
/// and 2v + 1 (down).
#[derive(Debug, Clone, PartialEq)]
pub struct SwitchTree {
    names: Vec<String>,
    nodes: usize,
    parent: Vec<Option<VertexId>>,
    below: Vec<usize>,
    taper: f64,
    by_name: HashMap<String, NodeId>,
}

/// What a Slurm topology file describes.
#[derive(Debug, Clone, PartialEq)]
pub enum SlurmTopology {
    Tree(SwitchTree),
    /// A torus and its node names, in the torus's node order.
    Torus(Cartesian, Vec<String>),
}

/// One switch or block as read: name, child switches, nodes.
struct Switch {
    name: String,
    children: Vec<String>,
    nodes: Vec<String>,
}

/// Reads topology.conf with topology/tree (`SwitchName=`) or topology/block (`BlockName=`) lines.
pub fn parse_conf(text: &str, taper: f64) -> Result<SwitchTree, TopologyError> {
    let (mut switches, mut blocks) = (Vec::new(), Vec::new());
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("").trim();
        if line.is_empty() {
            continue;
        }
        let keys = key_values(line, number + 1)?;
        let get = |key: &str| keys.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str());
        let list = |key: &str| get(key).map_or(Ok(Vec::new()), hostlist::expand);
        if let Some(name) = get("switchname") {
            switches.push(Switch {
                name: name.into(),
                children: list("switches")?,
                nodes: list("nodes")?,
            });
        } else if let Some(name) = get("blockname") {
            blocks.push(Switch { name: name.into(), children: Vec::new(), nodes: list("nodes")? });
        } else if get("blocksizes").is_none() {
            return crate::refuse!(
                "line {}: `{}` has no SwitchName, BlockName or BlockSizes",
                number + 1,
                shorten(line)
            );
        }
    }
    match (switches.is_empty(), blocks.is_empty()) {
        (false, true) => SwitchTree::build(switches, taper),
        (true, false) => SwitchTree::build(with_root(blocks), taper),
        (true, true) => crate::refuse!("topology.conf has no SwitchName and no BlockName line"),
        (false, false) => {
            crate::refuse!("topology.conf mixes SwitchName and BlockName lines: keep one kind")
        }
    }
}

fn key_values(line: &str, number: usize) -> Result<Vec<(String, String)>, TopologyError> {
    line.split_whitespace()
        .map(|word| match word.split_once('=') {
            Some((key, value)) if !value.is_empty() => {
                Ok((key.to_ascii_lowercase(), value.trim_matches('"').to_string()))
            }
            _ => crate::refuse!("line {number}: `{}` is not Key=Value", shorten(word)),
        })
        .collect()
}

/// Blocks hang on one common switch.
fn with_root(mut blocks: Vec<Switch>) -> Vec<Switch> {
    let children = blocks.iter().map(|b| b.name.clone()).collect();
    blocks.push(Switch { name: "between-blocks".into(), children, nodes: Vec::new() });
    blocks
}

/// Reads topology.yaml. `name` picks one of several topologies; without it the cluster default, or else
/// the first that describes links (tree, block or torus3d).
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
        return Ok(SlurmTopology::Tree(SwitchTree::build(switches, taper)?));
    }
    if let Some(block) = topology.get("block") {
        let blocks = with_root(entries(block, "blocks", "block")?);
        return Ok(SlurmTopology::Tree(SwitchTree::build(blocks, taper)?));
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

fn entries(value: &Value, list: &str, key: &str) -> Result<Vec<Switch>, TopologyError> {
    let Some(items) = value.get(list).and_then(Value::as_sequence) else {
        return crate::refuse!("topology.yaml: `{list}` must be a list");
    };
    items
        .iter()
        .map(|item| match string(item, key) {
            Some(name) => Ok(Switch {
                name,
                children: names(item, "children")?,
                nodes: names(item, "nodes")?,
            }),
            None => crate::refuse!("topology.yaml: an entry of `{list}` has no `{key}: NAME`"),
        })
        .collect()
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
    fn build(switches: Vec<Switch>, taper: f64) -> Result<Self, TopologyError> {
        if taper.is_nan() || taper < 1.0 {
            return crate::refuse!("taper {taper}: at least 1");
        }
        let mut names: Vec<String> = Vec::new();
        let mut by_name = HashMap::new();
        for switch in &switches {
            for node in &switch.nodes {
                if by_name.insert(node.clone(), names.len() as NodeId).is_some() {
                    return crate::refuse!("node `{}` hangs on two switches", shorten(node));
                }
                names.push(node.clone());
            }
        }
        let nodes = names.len();
        if nodes == 0 {
            return crate::refuse!("the topology names no node");
        }
        let mut ids = HashMap::new();
        for switch in &switches {
            if ids.insert(switch.name.clone(), names.len() as VertexId).is_some() {
                return crate::refuse!("switch `{}` is defined twice", shorten(&switch.name));
            }
            names.push(switch.name.clone());
        }
        let mut parent: Vec<Option<VertexId>> = vec![None; names.len()];
        for switch in &switches {
            let own = ids[&switch.name];
            for node in &switch.nodes {
                parent[by_name[node] as usize] = Some(own);
            }
            for child in &switch.children {
                match ids.get(child) {
                    None => {
                        return crate::refuse!(
                            "switch `{}` names child `{}`, which is not defined",
                            shorten(&switch.name),
                            shorten(child)
                        )
                    }
                    Some(&c) if parent[c as usize].is_some() => {
                        return crate::refuse!("switch `{}` has two parents", shorten(child))
                    }
                    Some(&c) => parent[c as usize] = Some(own),
                }
            }
        }
        let mut below = vec![0; names.len()];
        for node in 0..nodes {
            let (mut at, mut steps) = (node as VertexId, 0);
            loop {
                below[at as usize] += 1;
                steps += 1;
                match parent[at as usize] {
                    Some(_) if steps > names.len() => {
                        return crate::refuse!(
                            "switch `{}` is its own ancestor",
                            shorten(&names[at as usize])
                        )
                    }
                    Some(next) => at = next,
                    None => break,
                }
            }
        }
        Ok(SwitchTree { names, nodes, parent, below, taper, by_name })
    }

    fn depth(&self, vertex: VertexId) -> usize {
        std::iter::successors(Some(vertex), |&v| self.parent[v as usize]).count()
    }
}

impl Network for SwitchTree {
    fn describe(&self) -> String {
        format!(
            "switch tree of {} nodes and {} switches",
            self.nodes,
            self.names.len() - self.nodes
        )
    }

    fn nodes(&self) -> usize {
        self.nodes
    }

    fn vertices(&self) -> usize {
        self.names.len()
    }

    fn links(&self) -> usize {
        2 * self.names.len()
    }

    fn route(&self, from: NodeId, to: NodeId, out: &mut Vec<LinkId>) -> Result<(), RouteError> {
        let (mut a, mut b) = (from, to);
        let (mut depth_a, mut depth_b) = (self.depth(a), self.depth(b));
        let mut down = Vec::new();
        while a != b {
            if depth_a >= depth_b {
                out.push(2 * a);
                let Some(next) = self.parent[a as usize] else {
                    return Err(RouteError::Missing {
                        from: self.names[from as usize].clone(),
                        to: self.names[to as usize].clone(),
                        why: "they have no switch in common".into(),
                    });
                };
                (a, depth_a) = (next, depth_a - 1);
            } else {
                down.push(2 * b + 1);
                (b, depth_b) = (self.parent[b as usize].unwrap_or(b), depth_b - 1);
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
        if child < self.nodes {
            1.0
        } else {
            (self.below[child] as f64 / self.taper).max(1.0)
        }
    }

    fn uniform_bandwidth(&self) -> bool {
        false
    }

    fn vertex_name(&self, vertex: VertexId) -> String {
        self.names[vertex as usize].clone()
    }

    fn node_by_name(&self, name: &str) -> Option<NodeId> {
        self.by_name.get(name).copied()
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
        assert!(
            matches!(parse_yaml(text, Some("t2"), 1.0).unwrap(), SlurmTopology::Tree(t) if t.names[0] == "m1")
        );
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
            ("Foo", "not Key=Value"),
            ("Foo=1", "no SwitchName"),
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
