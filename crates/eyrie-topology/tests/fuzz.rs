//! For any text, a reader returns a value or one line of error, and never panics or hangs.

use eyrie_topology::graph::Graph;
use eyrie_topology::switch_tree::SwitchTree;
use eyrie_topology::{coords, hostlist, slurm, spec, Network};
use proptest::prelude::*;

/// Checks that an error is one line that a terminal can show.
fn one_line<T>(result: Result<T, eyrie_topology::TopologyError>) {
    if let Err(e) = result {
        assert!(!e.0.is_empty() && !e.0.contains('\n') && e.0.len() < 700, "{e}");
    }
}

/// Text made of the words that the readers know, so that it passes the first checks.
fn words() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "eyrie-graph 1\n",
        "node a\n",
        "node b\n",
        "switch s\n",
        "link a s\n",
        "link b s bandwidth=2\n",
        "route a b via s\n",
        "routes shortest\n",
        "SwitchName=",
        "BlockName=",
        "s0",
        " Nodes=",
        "n[0-3]",
        "n[1",
        "]",
        " Switches=",
        "s[0-1]",
        "\n",
        " ",
        "\"",
        "\\",
        "\\\n",
        "include f\n",
        "Include g\n",
        " LinkSpeed=9",
        "BlockSizes=4\n",
        "- topology: t\n",
        "  tree:\n",
        "    switches:\n",
        "    - switch: s0\n",
        "      nodes: n[1-2]\n",
        "      children: s1\n",
        "  block:\n    blocks:\n    - block: b\n",
        "  torus3d:\n",
        "    dims: {x: 2, y: 1, z: 1}\n",
        "    nodes: a[0-1]\n",
        "    regions:\n",
        "    toruses:\n    - name: p\n      dims: {x: 2, y: 1, z: 1}\n      nodes: [a, b]\n",
        "    toruses: {name: q, dims: {x: 1, y: 1, z: 1}, nodes: c}\n",
        "      nodes: [n1, n2]\n",
        "      children: [s0]\n",
        "  cluster_default: yes\n",
        "  flat: true\n",
        "#",
        "=",
        ",",
        "-",
        "0",
        "99999999999999999999",
        "torus:",
        "mesh:",
        "tofu:",
        "fattree:",
        "xgft:",
        "dragonfly:",
        "3x3",
        "2^2",
        "3,3;1,2",
        ":order=",
        ":taper=",
        ":rails=",
        ":valiant",
        ":shape=",
        "é",
        "\u{0}",
    ]);
    prop::collection::vec(word, 0..14).prop_map(|w| w.concat())
}

/// Checks that a tree can be used: each pair has a walk over its links, or one line of error.
fn routes_end(tree: &SwitchTree) {
    let nodes = tree.nodes().min(9) as u32;
    for (from, to) in (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to))) {
        let mut route = Vec::new();
        match tree.route(from, to, &mut route) {
            Ok(()) => {
                let end = route.iter().fold(from, |here, &link| {
                    assert_eq!(tree.link_ends(link).0, here);
                    tree.link_ends(link).1
                });
                assert_eq!(end, to);
            }
            Err(e) => assert!(!e.to_string().contains('\n') && route.is_empty()),
        }
    }
}

fn read_all(text: &str) {
    one_line(Graph::parse(text));
    let include = |name: &str| match name {
        "f" => Ok("SwitchName=s1 Nodes=n[4-5]\n".to_string()),
        _ => Ok(text.to_string()),
    };
    let tree = slurm::parse_conf(text, &include, 1.0);
    tree.iter().for_each(routes_end);
    one_line(tree);
    let topology = slurm::parse_yaml(text, None, 1.0);
    if let Ok(slurm::SlurmTopology::Tree(tree)) = &topology {
        routes_end(tree);
    }
    one_line(topology);
    one_line(slurm::parse_yaml(text, Some("t"), 2.0));
    one_line(hostlist::expand(text));
    one_line(hostlist::read_file(text));
    one_line(coords::parse_dims(text));
    one_line(spec::parse(text));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]
    #[test]
    fn readers_survive_texts_of_known_words(text in words()) {
        read_all(&text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]
    #[test]
    fn readers_survive_any_text(text in "\\PC{0,120}", bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        read_all(&text);
        read_all(&String::from_utf8_lossy(&bytes));
    }
}
