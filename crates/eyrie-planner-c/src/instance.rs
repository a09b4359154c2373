//! The job and network of a planner from the words of the user: the same as those of `eyrie plan`, and a network made of the
//! processes' hosts where none is described.

use std::collections::BTreeMap;
use std::fmt::Write;

use eyrie_placement::spares::{self, Arrangement, Laid, SpareSet};
use eyrie_placement::{Job, Traffic};
use eyrie_topology::graph::Graph;
use eyrie_topology::spec::{self, Files};
use eyrie_topology::{coords, Layout, Network, TopologyError};

/// What the user said; `None` where nothing.
pub struct Words<'a> {
    pub network: Option<&'a str>,
    /// Host of each process; node i of a network made of hosts is process i.
    pub hosts: &'a [&'a str],
    pub job: Option<&'a str>,
    pub spares: Option<&'a str>,
    pub traffic: Option<&'a str>,
    pub bytes: u64,
}

/// A job on its network.
pub struct Instance {
    pub network: Box<dyn Network>,
    pub laid: Laid,
    pub job: Job,
}

impl Instance {
    /// Reads the words; an error is one line that says what is wrong and what may be written.
    pub fn read(words: &Words) -> Result<Self, String> {
        let (network, grid) = network(words)?;
        let shape =
            words.job.map(coords::parse_dims).transpose().map_err(|e| format!("job: {e}"))?;
        let laid = lay(words, network.as_ref(), grid.as_ref(), shape.as_deref())?;
        let traffic = Traffic::read(words.traffic, &laid.shape, words.bytes, &file)
            .map_err(|e| format!("traffic: {e}"))?;
        let job = spares::job(&laid, traffic).map_err(|e| e.to_string())?;
        Ok(Instance { network, laid, job })
    }
}

fn file(path: &str) -> Result<String, TopologyError> {
    std::fs::read_to_string(path).map_err(|e| TopologyError::new(format!("reading {path}: {e}")))
}

fn network(words: &Words) -> Result<(Box<dyn Network>, Option<Layout>), String> {
    let Some(text) = words.network else {
        let graph = of_hosts(words.hosts)?;
        return Ok((Box::new(graph), None));
    };
    let files = Files { text: &file, slurm_topology: None, taper: 1.0 };
    let parsed = spec::parse_with(text, &files).map_err(|e| format!("network: {e}"))?;
    Ok((parsed.network, parsed.layout))
}

/// Each process a node at the switch of its host, the hosts at one switch: what can be known without a description.
fn of_hosts(hosts: &[&str]) -> Result<Graph, String> {
    let mut switches: BTreeMap<&str, usize> = BTreeMap::new();
    let mut text = String::from("eyrie-graph 1\nroutes shortest\n");
    for (process, host) in hosts.iter().enumerate() {
        let next = switches.len();
        let switch = *switches.entry(host).or_insert(next);
        let _ = writeln!(text, "node process{process}\nlink process{process} host{switch}");
    }
    for switch in 0..switches.len() {
        let _ = writeln!(text, "switch host{switch}");
        if switches.len() > 1 {
            let _ = writeln!(text, "link host{switch} between");
        }
    }
    if switches.len() > 1 {
        text.push_str("switch between\n");
    }
    Graph::parse(&text).map_err(|e| format!("network of {} hosts: {e}", switches.len()))
}

fn lay(
    words: &Words,
    network: &dyn Network,
    grid: Option<&Layout>,
    shape: Option<&[usize]>,
) -> Result<Laid, String> {
    let written = words.spares.unwrap_or("1");
    let count = written.parse::<usize>();
    if count == Ok(0) {
        return without_spares(network, grid, shape);
    }
    let spares = match count {
        Ok(count) => SpareSet::Contiguous(count),
        Err(_) => SpareSet::parse(written).map_err(|e| e.to_string())?,
    };
    let resolve = |name: &str, layout: &Layout| spares::resolve(name, network, layout, &[]);
    let arrangement = Arrangement::Contiguous;
    spares::lay(network, grid, shape, &spares, arrangement, &resolve).map_err(|e| e.to_string())
}

/// A job on every node, for programs that squeeze.
fn without_spares(
    network: &dyn Network,
    grid: Option<&Layout>,
    shape: Option<&[usize]>,
) -> Result<Laid, String> {
    let nodes = network.nodes();
    let layout = match grid {
        Some(grid) => grid.clone(),
        None => Layout::identity(&[nodes], nodes).map_err(|e| e.to_string())?,
    };
    let shape = shape.unwrap_or(layout.dims()).to_vec();
    if shape.iter().product::<usize>() != layout.cells() {
        return Err(format!(
            "job {} without spares needs as many nodes: {} has {}",
            coords::format_dims(&shape),
            network.describe(),
            layout.cells()
        ));
    }
    let home = (0..layout.cells()).map(|cell| layout.node(cell)).collect();
    Ok(Laid { layout, shape, home, spares: Vec::new(), notes: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(
        network: Option<&str>,
        job: Option<&str>,
        spares: Option<&str>,
    ) -> Result<Instance, String> {
        let hosts = ["a", "a", "b", "b", "c", "c"];
        Instance::read(&Words { network, hosts: &hosts, job, spares, traffic: None, bytes: 1024 })
    }

    #[test]
    fn hosts_make_a_tree_of_two_levels() {
        let instance = read(None, None, None).unwrap();
        assert_eq!((instance.network.nodes(), instance.laid.spares.as_slice()), (6, &[5][..]));
        let hops = |from, to| {
            let mut route = Vec::new();
            instance.network.route(from, to, &mut route).unwrap();
            route.len()
        };
        assert_eq!((hops(0, 1), hops(1, 2)), (2, 4));
    }

    #[test]
    fn words_are_those_of_eyrie_plan() {
        let instance = read(Some("mesh:4x4"), None, Some("2d(2,1)")).unwrap();
        assert_eq!((instance.laid.shape.as_slice(), instance.laid.spares.len()), (&[3, 3][..], 7));
        let instance = read(Some("torus:3x2"), None, Some("list:2,1;0")).unwrap();
        assert_eq!(instance.laid.spares, [5, 0]);
        assert!(read(Some("mesh:4x4"), None, Some("0")).unwrap().laid.spares.is_empty());
        for (network, job, spares, fault) in [
            (Some("ring:4"), None, None, "network kind"),
            (Some("graph:/no/such/file"), None, None, "/no/such/file"),
            (None, Some("4x4"), Some("0"), "needs as many nodes"),
            (None, None, Some("6"), "leave nothing"),
            (None, None, Some("list:process9"), "no node name"),
        ] {
            let error = read(network, job, spares).map(|_| ()).unwrap_err();
            assert!(error.contains(fault) && !error.contains('\n'), "{error}");
        }
    }
}
