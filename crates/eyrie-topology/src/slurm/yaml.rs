//! topology.yaml: a list of topologies, each of one kind.

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::Deserialize;
use std::fmt;

use super::block_sizes;
use super::torus::Torus;
use super::words::{Flag, Many, Names, Word};
use crate::cartesian::Cartesian;
use crate::error::TopologyError;
use crate::hostlist::shorten;
use crate::names::Names as Known;
use crate::switch_tree::{Branch, Refusal, SwitchTree, Visitor as Visit};

/// The content of a topology.
#[derive(Debug, Clone)]
pub enum SlurmTopology {
    Tree(SwitchTree),
    /// A torus and its node names, in the torus's node order.
    Torus(Cartesian, Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Topology {
    topology: Word,
    #[serde(default)]
    cluster_default: Flag,
    tree: Option<Tree>,
    block: Option<Blocks>,
    torus3d: Option<Toruses>,
    ring: Option<Rings>,
    flat: Option<Flat>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tree {
    switches: Many<Switch>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Switch {
    switch: Word,
    children: Option<Names>,
    nodes: Option<Names>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Blocks {
    block_sizes: Option<Many<u64>>,
    blocks: Many<Block>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Block {
    block: Word,
    nodes: Option<Names>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Toruses {
    toruses: Many<Torus>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)] // Read only to see whether it is understood.
struct Rings {
    rings: Many<Ring>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
struct Ring {
    ring: Word,
    nodes: Option<Names>,
}

#[derive(Deserialize)]
#[serde(untagged)]
#[allow(dead_code)]
enum Flat {
    Flag(Flag),
    Options(FlatOptions),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
struct FlatOptions {
    #[serde(default)]
    alpha_step_rank: Flag,
}

/// The kind of a topology.
enum Kind<'a> {
    Tree(&'a Tree),
    Blocks(&'a Blocks),
    Toruses(&'a Toruses),
    Ring,
    Flat,
}

impl Kind<'_> {
    /// Its word in the file.
    fn word(&self) -> &'static str {
        match self {
            Kind::Tree(_) => "tree",
            Kind::Blocks(_) => "block",
            Kind::Toruses(_) => "torus3d",
            Kind::Ring => "ring",
            Kind::Flat => "flat",
        }
    }
}

impl Topology {
    fn kinds(&self) -> Vec<Kind<'_>> {
        let flat = self.flat.as_ref().filter(|flat| !matches!(flat, Flat::Flag(Flag(false))));
        let kinds = [
            self.tree.as_ref().map(Kind::Tree),
            self.block.as_ref().map(Kind::Blocks),
            self.torus3d.as_ref().map(Kind::Toruses),
            self.ring.as_ref().map(|_| Kind::Ring),
            flat.map(|_| Kind::Flat),
        ];
        kinds.into_iter().flatten().collect()
    }
}

/// Reads topology.yaml. `name` selects one of several topologies, `TOPOLOGY/TORUS` one of several
/// toruses. Without it the cluster's default is used, or else the first, as Slurm does.
///
/// # Errors
/// Names the line.
pub fn parse_yaml(
    text: &str,
    name: Option<&str>,
    taper: f64,
) -> Result<SlurmTopology, TopologyError> {
    let file = File { text, topologies: read(text)? };
    let (number, torus) = file.pick(name)?;
    match file.kind(number)? {
        Kind::Tree(tree) => {
            let entries = |visit: &mut Visit<'_>| -> Result<(), Refusal> {
                tree.switches.0.iter().try_for_each(|switch| {
                    let (children, nodes) = (list(&switch.children), list(&switch.nodes));
                    visit(Branch { name: &switch.switch.0, children, nodes })
                })
            };
            file.tree(number, ["tree", "switches"], &entries, taper)
        }
        Kind::Blocks(blocks) => {
            let sizes = blocks.block_sizes.as_ref().map_or(&[][..], |sizes| &sizes.0);
            block_sizes::check(sizes).map_err(|why| file.at(number, &["block".into()], why))?;
            let entries = |visit: &mut Visit<'_>| -> Result<(), Refusal> {
                blocks.blocks.0.iter().try_for_each(|block| {
                    visit(Branch {
                        name: &block.block.0,
                        children: None,
                        nodes: list(&block.nodes),
                    })
                })
            };
            file.tree(number, ["block", "blocks"], &entries, taper)
        }
        Kind::Toruses(toruses) => file.torus(number, &toruses.toruses.0, torus),
        kind => {
            let others = file.readable().join(", ");
            let why = format!(
                "topology `{}` is {} and describes no links; {}",
                shorten(&file.topologies[number].topology.0),
                kind.word(),
                match others.as_str() {
                    "" => "describe the network with another form of --network".to_string(),
                    others => format!("pick another with --slurm-topology: {others}"),
                }
            );
            Err(file.at(number, &[], TopologyError::new(why)))
        }
    }
}

fn list(names: &Option<Names>) -> Option<&str> {
    names.as_ref().map(|names| names.0.as_str())
}

fn read(text: &str) -> Result<Vec<Topology>, TopologyError> {
    match serde_yaml_ng::from_str(text) {
        Ok(Many(topologies)) if !topologies.is_empty() => Ok(topologies),
        Ok(_) => crate::refuse!("topology.yaml lists no topology"),
        Err(e) => {
            let line = e.location().map_or(0, |at| at.line());
            let said = e.to_string();
            let said = said.rsplit_once(" at line ").map_or(said.as_str(), |(said, _)| said);
            let short: String = said.chars().take(300).collect();
            Err(TopologyError::new(short).at_line(line))
        }
    }
}

struct File<'t> {
    text: &'t str,
    topologies: Vec<Topology>,
}

impl File<'_> {
    /// The number of a topology, and the name of one of its toruses.
    fn pick<'n>(&self, name: Option<&'n str>) -> Result<(usize, Option<&'n str>), TopologyError> {
        for (number, topology) in self.topologies.iter().enumerate() {
            let same = |other: &&Topology| other.topology.0 == topology.topology.0;
            if self.topologies[..number].iter().any(|other| same(&other)) {
                let why = format!("topology `{}` comes twice", shorten(&topology.topology.0));
                return Err(self.at(number, &[], TopologyError::new(why)));
            }
        }
        let Some(name) = name else {
            let default = self.topologies.iter().position(|t| t.cluster_default.0);
            return Ok((default.unwrap_or(0), None));
        };
        let named = |name: &str| self.topologies.iter().position(|t| t.topology.0 == name);
        let of_torus = || {
            let (name, torus) = name.split_once('/')?;
            Some((named(name)?, Some(torus)))
        };
        match named(name).map(|number| (number, None)).or_else(of_torus) {
            Some(picked) => Ok(picked),
            None => crate::refuse!("topology.yaml has no topology `{}`", shorten(name)),
        }
    }

    fn kind(&self, number: usize) -> Result<Kind<'_>, TopologyError> {
        let topology = &self.topologies[number];
        let name = shorten(&topology.topology.0);
        let mut kinds = topology.kinds();
        if kinds.len() > 1 {
            let words: Vec<_> = kinds.iter().map(Kind::word).collect();
            let why = format!("topology `{name}` is {} at once: keep one", words.join(" and "));
            return Err(self.at(number, &[], TopologyError::new(why)));
        }
        kinds.pop().ok_or_else(|| {
            let why = format!("topology `{name}` is none of tree, block, torus3d");
            self.at(number, &[], TopologyError::new(why))
        })
    }

    /// The names of the topologies that describe links.
    fn readable(&self) -> Vec<String> {
        let tells = |t: &&Topology| {
            let kinds = t.kinds();
            kinds.len() == 1 && !matches!(kinds[0], Kind::Ring | Kind::Flat)
        };
        self.topologies.iter().filter(tells).map(|t| shorten(&t.topology.0)).take(9).collect()
    }

    fn tree(
        &self,
        number: usize,
        [kind, list]: [&'static str; 2],
        entries: crate::switch_tree::Entries,
        taper: f64,
    ) -> Result<SlurmTopology, TopologyError> {
        match SwitchTree::build(entries, kind == "block", taper) {
            Ok(tree) => Ok(SlurmTopology::Tree(tree)),
            Err(Refusal { entry: None, why }) => Err(why),
            Err(Refusal { entry: Some(entry), why }) => {
                Err(self.at(number, &[kind.into(), list.into(), Step::Item(entry)], why))
            }
        }
    }

    fn torus(
        &self,
        number: usize,
        toruses: &[Torus],
        name: Option<&str>,
    ) -> Result<SlurmTopology, TopologyError> {
        let mut known = Known::default();
        let mut names = Known::default();
        let mut read = Vec::new();
        for (place, torus) in toruses.iter().enumerate() {
            let refuse = |why: TopologyError| {
                let path = ["torus3d".into(), "toruses".into(), Step::Item(place)];
                let why = format!("torus `{}`: {why}", shorten(&torus.name.0));
                self.at(number, &path, TopologyError::new(why))
            };
            if !names.add(&torus.name.0) {
                return Err(refuse(TopologyError::new("this name comes twice")));
            }
            read.push(torus.read(&mut known).map_err(refuse)?);
        }
        let topology = shorten(&self.topologies[number].topology.0);
        let all = || {
            let all = toruses.iter().map(|torus| format!("{topology}/{}", shorten(&torus.name.0)));
            all.take(9).collect::<Vec<_>>().join(", ")
        };
        let place = match name {
            Some(name) => toruses.iter().position(|torus| torus.name.0 == name),
            None => Some(0).filter(|_| toruses.len() == 1),
        };
        match (place, name) {
            (Some(place), _) => {
                let (torus, names) = read.swap_remove(place);
                Ok(SlurmTopology::Torus(torus, names))
            }
            (None, Some(name)) => {
                crate::refuse!("topology `{topology}` has no torus `{}`: {}", shorten(name), all())
            }
            (None, None) if toruses.is_empty() => {
                crate::refuse!("topology `{topology}` lists no torus")
            }
            (None, None) => {
                crate::refuse!(
                    "topology `{topology}` has {} toruses, which no link joins: pick one with \
                     --slurm-topology ({}), or leave the others out of the file",
                    toruses.len(),
                    all()
                )
            }
        }
    }

    /// Adds the line to an error about a part of a topology.
    fn at(&self, topology: usize, path: &[Step], why: TopologyError) -> TopologyError {
        let path: Vec<Step> =
            std::iter::once(Step::Item(topology)).chain(path.iter().copied()).collect();
        why.at_line(line_of(self.text, &path))
    }
}

/// A step into a file.
#[derive(Clone, Copy)]
enum Step {
    Item(usize),
    Key(&'static str),
}

impl From<&'static str> for Step {
    fn from(key: &'static str) -> Self {
        Step::Key(key)
    }
}

/// The line at which a part of a text begins; 0 if it cannot be found. The YAML reader gives lines
/// only in its errors, so that this asks it for one.
fn line_of(text: &str, path: &[Step]) -> usize {
    let found = Locate(path).deserialize(serde_yaml_ng::Deserializer::from_str(text));
    found.err().and_then(|e| e.location()).map_or(0, |at| at.line())
}

/// Goes to a part of a file and fails there.
struct Locate<'p>(&'p [Step]);

impl<'de> DeserializeSeed<'de> for Locate<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Locate<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Some((Step::Item(place), rest)) = self.0.split_first() else {
            return Err(A::Error::custom("here"));
        };
        for _ in 0..*place {
            list.next_element::<IgnoredAny>()?;
        }
        list.next_element_seed(Locate(rest)).map(|_| ())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        match self.0.split_first() {
            // A single thing is a list of one.
            Some((Step::Item(_), rest)) => Locate(rest).visit_map(map),
            Some((Step::Key(key), rest)) => {
                while let Some(Word(found)) = map.next_key()? {
                    if found == *key {
                        return map.next_value_seed(Locate(rest));
                    }
                    map.next_value::<IgnoredAny>()?;
                }
                Err(A::Error::custom("here"))
            }
            None => Err(A::Error::custom("here")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coords;
    use crate::network::{check, Network};

    fn tree(text: &str, name: Option<&str>) -> SwitchTree {
        match parse_yaml(text, name, 1.0) {
            Ok(SlurmTopology::Tree(tree)) => tree,
            Ok(SlurmTopology::Torus(..)) => panic!("a tree is expected: {text}"),
            Err(e) => panic!("{text}: {e}"),
        }
    }

    fn nodes(tree: &SwitchTree) -> String {
        check::routes_connect(tree);
        let names: Vec<_> = (0..tree.nodes() as u32).map(|n| tree.vertex_name(n)).collect();
        names.join(" ")
    }

    fn torus(text: &str, name: Option<&str>) -> (Cartesian, Vec<String>) {
        match parse_yaml(text, name, 1.0) {
            Ok(SlurmTopology::Torus(torus, names)) => (torus, names),
            Ok(SlurmTopology::Tree(_)) => panic!("a torus is expected: {text}"),
            Err(e) => panic!("{text}: {e}"),
        }
    }

    const ALL: &str = "\
- topology: t1
  cluster_default: yes
  tree:
    switches:
    - switch: root
      children: s[1-2]
    - switch: s1
      nodes: n[01-02]
    - switch: s2
      nodes: n[03-04]
- topology: t2
  block:
    block_sizes: [2, 4]
    blocks:
    - block: b1
      nodes: m[1-2]
    - block: b2
      nodes: m[3-4]
- topology: t3
  torus3d:
    toruses:
    - name: a
      dims: {x: 2, y: 3, z: 1}
      nodes: t[0-5]
      placements: {dims: {x: 2, y: 1, z: 1}}
- topology: t4
  flat: true
- topology: t5
  ring: {rings: [{ring: r, nodes: 'n[1-4]'}]}
";

    #[test]
    fn every_kind_is_read() {
        assert_eq!(nodes(&tree(ALL, None)), "n01 n02 n03 n04");
        assert_eq!(nodes(&tree(ALL, Some("t2"))), "m1 m2 m3 m4");
        let (torus, names) = torus(ALL, Some("t3"));
        // x fastest: t1 is at x = 1, y = 0.
        assert_eq!(names[coords::index(&[1, 0, 0], torus.dims())], "t1");
        assert_eq!(names[coords::index(&[0, 1, 0], torus.dims())], "t2");
    }

    #[test]
    fn lists_of_names_and_single_things_are_read() {
        let text = "---
- topology: t
  tree:
    switches:
      - switch: s1
        nodes: [n1, n2]
      - {switch: 2, nodes: 'n[3-4]'}
      - switch: r
        children:
        - s1
        - 2
";
        assert_eq!(nodes(&tree(text, None)), "n1 n2 n3 n4");
        let one = "topology: t\ntree: {switches: {switch: s, nodes: n1}}\n";
        assert_eq!(nodes(&tree(one, None)), "n1");
    }

    #[test]
    fn one_of_several_toruses_is_selected() {
        let text = "- topology: pods
  torus3d:
    toruses:
    - {name: pod1, dims: {x: 2, y: 2, z: 2}, nodes: 'n[1-8]'}
    - {name: pod2, dims: {x: 2, y: 1, z: 1}, nodes: [m1, m2]}
";
        assert_eq!(torus(text, Some("pods/pod2")).1, ["m1", "m2"]);
        let error = parse_yaml(text, None, 1.0).unwrap_err().0;
        assert!(error.contains("2 toruses") && error.contains("pods/pod1, pods/pod2"), "{error}");
        let error = parse_yaml(text, Some("pods/x"), 1.0).unwrap_err().0;
        assert!(error.contains("no torus `x`"), "{error}");
    }

    #[test]
    fn a_torus_may_be_given_by_regions() {
        let text = "- topology: t
  torus3d:
    toruses:
    - name: a
      dims: {x: 2, y: 2, z: 1}
      regions:
      - {anchor: {x: 0, y: 0, z: 0}, dims: {x: 2, y: 1, z: 1}, nodes: \"a[0-1]\"}
      - {anchor: {y: 1}, dims: {x: 2, y: 1, z: 1}, nodes: \"b[0-1]\"}
";
        assert_eq!(torus(text, None).1, ["a0", "b0", "a1", "b1"]);
    }

    #[test]
    fn what_is_wrong_is_refused_with_its_line() {
        let of_torus = |more: &str| {
            format!("- topology: x\n  torus3d:\n    toruses:\n    - name: a\n      {more}\n")
        };
        let box4 = "dims: {x: 2, y: 2, z: 1}\n      nodes: ";
        for (text, fault) in [
            ("a: b", "unknown field `a`"),
            ("[]", "lists no topology"),
            ("[", "line "),
            ("- topology: x\n  flat: true", "line 1: topology `x` is flat and describes no links"),
            ("- topology: x\n  cluster_default: maybe\n  flat: true", "line 2: "),
            ("- topology: x", "line 1: topology `x` is none of tree"),
            ("- topology: x\n  flat: 1\n- topology: x\n  flat: 1", "line "),
            ("- topology: x\n  flat: on\n- topology: x\n  flat: on", "line 3: topology `x` comes"),
            (
                "- topology: y\n  flat: on\n- topology: x\n  tree:\n    switches: {switch: s, \
                 nodes: n}\n  block:\n    blocks: {block: b}",
                "line 1: topology `y` is flat and describes no links; describe",
            ),
            (
                "- topology: x\n  tree:\n    switches: {switch: s, nodes: n}\n  block:\n    \
                 blocks: {block: b}",
                "line 1: topology `x` is tree and block at once",
            ),
            (
                "- topology: x\n  tree:\n    switches:\n    - switch: s\n      node: n1",
                "line 5: ",
            ),
            (
                "- topology: x\n  tree:\n    switches:\n    - switch: s\n      nodes: {a: b}",
                "line 5: ",
            ),
            (
                "- topology: x\n  tree:\n    switches:\n    - switch: s\n      nodes: n1\n    - \
                 switch: t\n      children: [s, u]",
                "line 6: switch `t` names child `u`",
            ),
            (
                "- topology: x\n  block:\n    block_sizes: [2, 5]\n    blocks: []",
                "line 3: block size 5",
            ),
            (&of_torus(&format!("{box4}'a[0-2]'")), "line 4: torus `a`: 2x2x1 has room for 4"),
            (&of_torus(&format!("{box4}'a[0-2],a1'")), "line 4: torus `a`: node `a1` is in two"),
            (&of_torus("nodes: a"), "missing field `dims`"),
            (&of_torus("dims: {x: 1, y: 1}\n      nodes: a"), "needs x, y and z"),
            (&of_torus("dims: {x: 1, y: 1, z: 1}"), "neither nodes nor regions"),
            (
                &of_torus("dims: {x: 1, y: 1, z: 1}\n      nodes: a\n      placements: [{dims: {x: 2, y: 1, z: 1}}]"),
                "placement does not fit",
            ),
        ] {
            let error = parse_yaml(text, None, 1.0).map(|_| ()).unwrap_err().0;
            assert!(error.contains(fault), "{text}: {error}");
        }
    }
}
