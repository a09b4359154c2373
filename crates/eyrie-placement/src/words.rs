//! Reads a job on its network from the words of a user. This is the only reader of `--network`,
//! `--job`, `--ranks-per-node`, `--slots`, `--spares` and `--traffic`, for `eyrie plan`, the
//! controller and the C library. The caller reads files: there is no I/O here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use eyrie_topology::graph::Graph;
use eyrie_topology::spec::{self, Files, Parsed};
use eyrie_topology::{coords, hostlist, refuse, Layout, Network, NetworkNode, TopologyError};

use crate::job::Job;
use crate::planning_input::Failures;
use crate::spares::{self, Arrangement, Laid, SpareSet};
use crate::traffic::Traffic;

/// The user's words; `None` where there are none.
pub struct Words<'a> {
    /// Without it the network is made of the hosts.
    pub network: Option<&'a str>,
    /// A file with the names of the network's nodes in order, one host or host list a line.
    pub names: Option<&'a str>,
    /// Host of each process; node i of a network made of hosts is process i. Empty, where the job
    /// may use every node.
    pub hosts: &'a [&'a str],
    /// Node of each process in the network as the program gives it, below 0 where it does not. As
    /// many as hosts, or none.
    pub nodes: &'a [i32],
    pub job: Option<&'a str>,
    /// The part of the grid of ranks that each node has: extents, or a number of ranks that follow
    /// each other. By default one.
    pub ranks_per_node: Option<&'a str>,
    /// Most ranks that a node may have; by default as many as it starts with.
    pub slots: Option<u32>,
    /// By default planes: `nd(2,1)`, on a line `1d(1,1)`.
    pub spares: Option<&'a str>,
    pub arrangement: Arrangement,
    pub traffic: Option<&'a str>,
    /// Bytes of a message.
    pub bytes: u64,
    /// Reads the files that the words name.
    pub files: Files<'a>,
}

/// Bytes of a message of a pattern in a running job: nodes are compared by numbers of messages.
const MESSAGE_BYTES: u64 = 1 << 20;

impl<'a> Words<'a> {
    /// Those of a job that runs on these hosts, spares last.
    pub fn of_running_job(
        network: &'a str,
        hosts: &'a [&'a str],
        traffic: Option<&'a str>,
        files: Files<'a>,
    ) -> Words<'a> {
        Words {
            network: Some(network),
            names: None,
            hosts,
            nodes: &[],
            job: None,
            ranks_per_node: None,
            slots: None,
            spares: None,
            arrangement: Arrangement::Contiguous,
            traffic,
            bytes: MESSAGE_BYTES,
            files,
        }
    }
}

/// Which word is wrong, and why, in one line that says what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WordError {
    #[error("{word}: {why}")]
    In { word: &'static str, why: TopologyError },
    /// Each word can be read, but they do not fit together.
    #[error(transparent)]
    Together(#[from] TopologyError),
}

pub(crate) fn wrong(word: &'static str) -> impl Fn(TopologyError) -> WordError {
    move |why| WordError::In { word, why }
}

/// A job on its network.
pub struct Instance {
    pub network: Box<dyn Network>,
    /// Host names by node number, if a file gave them.
    pub names: Vec<String>,
    /// The spares as they were written.
    pub spares: SpareSet,
    pub laid: Laid,
    /// The extents of the grid of ranks; those of `laid` are of the nodes that they start on.
    pub shape: Vec<usize>,
    pub job: Job,
    /// Node of each process.
    pub nodes: Vec<NetworkNode>,
}

impl Instance {
    /// Reads the words.
    ///
    /// # Errors
    /// Of the first word that is wrong.
    pub fn read(words: &Words) -> Result<Self, WordError> {
        let Parsed { network, layout: grid, mut names } = network(words)?;
        if let Some(path) = words.names {
            names = names_of(network.as_ref(), path, &words.files)?;
        }
        let nodes = nodes(words, network.as_ref(), &names)?;
        let shape = words.job.map(coords::parse_dims).transpose().map_err(wrong("job"))?;
        let place =
            Place { network: network.as_ref(), grid: grid.as_ref(), nodes: &nodes, names: &names };
        let (spares, laid) = lay(words, &place, shape.as_deref())?;
        let share =
            share(words.ranks_per_node, laid.shape.len()).map_err(wrong("ranks-per-node"))?;
        let shape = spares::grid_of_ranks(&laid, &share).map_err(wrong("ranks-per-node"))?;
        let slots = slots(words.slots, &share).map_err(wrong("slots"))?;
        let traffic = Traffic::read(words.traffic, &shape, words.bytes, words.files.text)
            .map_err(wrong("traffic"))?;
        let job = spares::job_on_slots(&laid, &share, slots, traffic)?;
        Ok(Instance { network, names, spares, laid, shape, job, nodes })
    }

    /// The failures from the texts of the nodes, one after another or all `at_once`.
    ///
    /// # Errors
    /// For a text that is no node, is given twice, or is listed as a spare.
    pub fn failures(&self, written: &[String], at_once: bool) -> Result<Failures, TopologyError> {
        let nodes = self.network.nodes();
        if written.len() > nodes {
            return refuse!("{} failed nodes are given but the network has {nodes}", written.len());
        }
        let listed = matches!(self.spares, SpareSet::List(_));
        let mut failed = Vec::new();
        for name in written {
            let node = spares::resolve(name, self.network.as_ref(), &self.laid.layout, &self.names)
                .map_err(|e| TopologyError(format!("--failed {name}: {e}")))?;
            if failed.contains(&node) {
                return refuse!("--failed {name} is given twice");
            }
            if listed && self.laid.spares.contains(&node) {
                return refuse!(
                    "--failed {name} is also listed as a spare: only live nodes can be spares"
                );
            }
            failed.push(node);
        }
        Ok(Failures::checked(failed, at_once))
    }

    /// A node as the user would write it: its host name, or its coordinates in the job's grid.
    pub fn node_name(&self, node: NetworkNode) -> String {
        let own = self.network.vertex_name(node);
        match (self.names.get(node as usize), self.laid.layout.cell(node)) {
            (Some(name), _) => name.clone(),
            (None, Some(cell)) if self.network.node_by_name(&own).is_none() => {
                coords::format(&coords::of(cell, self.laid.layout.dims()))
            }
            _ => own,
        }
    }
}

/// The part of the grid of ranks that each node has, on a grid of so many axes.
fn share(written: Option<&str>, axes: usize) -> Result<Vec<usize>, TopologyError> {
    let Some(written) = written else { return Ok(vec![1; axes]) };
    let extents = coords::parse_dims(written)?;
    match extents[..] {
        // Ranks follow each other along the last axis.
        [along] => Ok((1..axes).map(|_| 1).chain([along]).collect()),
        _ if extents.len() == axes => Ok(extents),
        _ => refuse!("{written:.40} has {} extents: the job has {axes}", extents.len()),
    }
}

/// Most ranks that a node may have.
fn slots(written: Option<u32>, share: &[usize]) -> Result<u32, TopologyError> {
    let ranks = share.iter().product::<usize>() as u32;
    match written {
        Some(slots) if slots < ranks => refuse!("{slots} are fewer than the {ranks} ranks a node"),
        slots => Ok(slots.unwrap_or(ranks)),
    }
}

/// The network that the words name, or the one made of the hosts.
pub(crate) fn network(words: &Words) -> Result<Parsed, WordError> {
    match words.network {
        Some(text) => spec::parse_with(text, &words.files).map_err(wrong("network")),
        None => {
            let network = Box::new(of_hosts(words.hosts)?);
            Ok(Parsed { network, layout: None, names: Vec::new() })
        }
    }
}

fn names_of(
    network: &dyn Network,
    path: &str,
    files: &Files,
) -> Result<Vec<String>, TopologyError> {
    let names = hostlist::read_file(&(files.text)(path)?)
        .map_err(|e| TopologyError(format!("{path}: {e}")))?;
    if names.len() != network.nodes() {
        return refuse!("{path}: {} names for {} nodes", names.len(), network.nodes());
    }
    Ok(names)
}

/// The node of each process: the one that the program gives; else that of its host's name, if the
/// network has a node for every host (a Slurm or graph file with the site's names); else its
/// number.
pub(crate) fn nodes(
    words: &Words,
    network: &dyn Network,
    names: &[String],
) -> Result<Vec<NetworkNode>, TopologyError> {
    let of_host = |host: &&str| spares::of_host(host, network, names);
    let of_hosts: Option<Vec<NetworkNode>> = match words.network {
        Some(_) => words.hosts.iter().map(of_host).collect(),
        None => None,
    };
    let mut nodes = Vec::new();
    for process in 0..words.hosts.len() {
        let said = words.nodes.get(process).copied().filter(|&n| n >= 0).map(|n| n as NetworkNode);
        let by_name = of_hosts.as_ref().map(|nodes| nodes[process]);
        let node = said.or(by_name).unwrap_or(process as NetworkNode);
        if node as usize >= network.nodes() {
            return refuse!(
                "process {process} is on node {node}: {} has nodes 0 to {}, none of them named {}",
                network.describe(),
                network.nodes() - 1,
                words.hosts[process]
            );
        }
        if let Some(other) = nodes.iter().position(|&n| n == node) {
            let name = network.vertex_name(node);
            return refuse!(
                "processes {other} and {process} are both on node {name}: one process a node"
            );
        }
        nodes.push(node);
    }
    Ok(nodes)
}

/// A network made of hosts: each process is a node at the switch of its host. This is what is known
/// without a description.
fn of_hosts(hosts: &[&str]) -> Result<Graph, TopologyError> {
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
    Graph::parse(&text)
        .map_err(|e| TopologyError(format!("network of {} hosts: {e}", switches.len())))
}

/// Where a job may be laid out.
struct Place<'a> {
    network: &'a dyn Network,
    grid: Option<&'a Layout>,
    /// The nodes of the processes. On a network without a grid the job uses only these, in order of
    /// processes.
    nodes: &'a [NetworkNode],
    /// Names of the network's nodes, if the network does not have its own.
    names: &'a [String],
}

impl Place<'_> {
    /// The nodes that the job may use.
    fn layout(&self) -> Result<Layout, TopologyError> {
        let all = self.network.nodes();
        match self.grid {
            Some(grid) => Ok(grid.clone()),
            None if self.nodes.is_empty() => Layout::identity(&[all], all),
            None => Layout::new(&[self.nodes.len()], self.nodes.to_vec(), all),
        }
    }

    /// The default spares: planes on two sides of the grid, or of the job.
    fn usual_spares(&self, shape: Option<&[usize]>) -> String {
        let axes = match (self.grid, shape) {
            (Some(grid), _) => grid.dims().len(),
            (None, Some(shape)) => shape.len(),
            (None, None) => 1,
        };
        format!("{axes}d({},1)", axes.min(2))
    }
}

/// Lays out the job and its spares; returns also the text of the spares.
fn lay(
    words: &Words,
    place: &Place,
    shape: Option<&[usize]>,
) -> Result<(SpareSet, Laid), TopologyError> {
    let usual = place.usual_spares(shape);
    let written = words.spares.unwrap_or(&usual);
    let spares = match written.strip_prefix("hosts:") {
        Some(hosts) if !words.hosts.is_empty() => SpareSet::List(on_hosts(words, place, hosts)?),
        _ => SpareSet::parse(written)?,
    };
    if spares == SpareSet::Contiguous(0) {
        return Ok((spares, without_spares(place, shape)?));
    }
    let resolve = |name: &str, layout: &Layout| match own(name) {
        Some(node) => Ok(node),
        None => spares::resolve(name, place.network, layout, place.names),
    };
    let around = matches!(spares, SpareSet::Planes { .. }) && place.grid.is_none();
    let layout = if around { None } else { Some(place.layout()?) };
    let arrangement = words.arrangement;
    let laid = spares::lay(place.network, layout.as_ref(), shape, &spares, arrangement, &resolve)?;
    if around && !place.nodes.is_empty() {
        return Ok((spares, on_nodes(laid, place)?));
    }
    Ok((spares, laid))
}

/// Converts a job with planes of spares to the processes' nodes: node i becomes that of process i.
fn on_nodes(laid: Laid, place: &Place) -> Result<Laid, TopologyError> {
    let cells = laid.layout.cells();
    if cells > place.nodes.len() {
        let of = place.nodes.len();
        return refuse!("job and spares: needs {cells} nodes: there are {of} processes");
    }
    let of =
        |nodes: &[NetworkNode]| nodes.iter().map(|&n| place.nodes[n as usize]).collect::<Vec<_>>();
    let line: Vec<NetworkNode> = (0..cells).map(|cell| laid.layout.node(cell)).collect();
    let layout = Layout::new(laid.layout.dims(), of(&line), place.network.nodes())?;
    Ok(Laid { layout, home: of(&laid.home), spares: of(&laid.spares), ..laid })
}

/// The nodes of the processes on these hosts, in the form that `resolve` reads. A host may be
/// written without its domain.
fn on_hosts(words: &Words, place: &Place, hosts: &str) -> Result<Vec<String>, TopologyError> {
    let mut found = Vec::new();
    for host in hosts.split(';').map(str::trim).filter(|host| !host.is_empty()) {
        let is = |name: &str| name == host || name.split('.').next() == Some(host);
        let before = found.len();
        let there = words.hosts.iter().zip(place.nodes).filter(|(name, _)| is(name));
        found.extend(there.map(|(_, node)| format!("#{node}")));
        if found.len() == before {
            let known: BTreeSet<&str> = words.hosts.iter().copied().collect();
            let known = known.into_iter().take(8).collect::<Vec<_>>().join(", ");
            return refuse!(
                "spares `hosts:{hosts:.60}`: no process is on host {host:.40}; there are {known}"
            );
        }
    }
    Ok(found)
}

/// A job on every node, for programs that squeeze.
fn without_spares(place: &Place, shape: Option<&[usize]>) -> Result<Laid, TopologyError> {
    let layout = place.layout()?;
    let shape = shape.unwrap_or(layout.dims()).to_vec();
    if shape.iter().product::<usize>() != layout.cells() {
        return refuse!(
            "job {} without spares needs as many nodes: {} has {}",
            coords::format_dims(&shape),
            place.network.describe(),
            layout.cells()
        );
    }
    let home = (0..layout.cells()).map(|cell| layout.node(cell)).collect();
    Ok(Laid { layout, shape, home, spares: Vec::new(), notes: Vec::new() })
}

/// A node in the form of [`on_hosts`].
fn own(name: &str) -> Option<NetworkNode> {
    name.strip_prefix('#')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(
        network: Option<&str>,
        job: Option<&str>,
        spares: Option<&str>,
    ) -> Result<Instance, String> {
        // On a described network there are as many processes as nodes; their hosts do not matter.
        let hosts: &[&str] =
            if network.is_some() { &[] } else { &["a", "a", "b", "b", "c.cluster", "c.cluster"] };
        on(network, hosts, &[], job, spares)
    }

    fn on(
        network: Option<&str>,
        hosts: &[&str],
        nodes: &[i32],
        job: Option<&str>,
        spares: Option<&str>,
    ) -> Result<Instance, String> {
        let text = |path: &str| {
            std::fs::read_to_string(path).map_err(|e| TopologyError::new(format!("{path}: {e}")))
        };
        let files = Files { text: &text, slurm_topology: None, taper: 1.0 };
        let words = Words {
            network,
            names: None,
            hosts,
            nodes,
            job,
            ranks_per_node: None,
            slots: None,
            spares: Some(spares.unwrap_or("1")),
            arrangement: Arrangement::Contiguous,
            traffic: None,
            bytes: 1024,
            files,
        };
        Instance::read(&words).map_err(|e| e.to_string())
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
    fn wrong_words_are_named_for_every_caller() {
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

    #[test]
    fn a_node_has_the_part_of_the_grid_that_was_said() {
        let read = |ranks_per_node: &str, slots| {
            let text = |_: &str| Err(TopologyError::new("there are no files"));
            let words = Words {
                network: Some("mesh:4x4"),
                names: None,
                hosts: &[],
                nodes: &[],
                job: None,
                ranks_per_node: Some(ranks_per_node),
                slots,
                spares: None,
                arrangement: Arrangement::Contiguous,
                traffic: None,
                bytes: 1024,
                files: Files { text: &text, slurm_topology: None, taper: 1.0 },
            };
            let instance = Instance::read(&words).map_err(|e| e.to_string())?;
            Ok::<_, String>((instance.shape, instance.job.ranks(), instance.job.slots))
        };
        assert_eq!(read("1", None), Ok((vec![3, 3], 9, 1)));
        assert_eq!(read("4", None), Ok((vec![3, 12], 36, 4)));
        assert_eq!(read("2x1", Some(3)), Ok((vec![6, 3], 18, 3)));
        for (ranks_per_node, slots, fault) in [
            ("2x2x2", None, "ranks-per-node: 2x2x2 has 3 extents: the job has 2"),
            ("4", Some(3), "slots: 3 are fewer than the 4 ranks a node"),
            ("0", None, "ranks-per-node: "),
            ("many", None, "ranks-per-node: "),
            ("4000000000x4000000000", None, "ranks-per-node: "),
        ] {
            let error = read(ranks_per_node, slots).unwrap_err();
            assert!(error.starts_with(fault) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn spares_by_host() {
        let instance = read(None, None, Some("hosts:b")).unwrap();
        assert_eq!((instance.laid.home, instance.laid.spares), (vec![0, 1, 4, 5], vec![2, 3]));
        let instance = read(None, Some("1x3"), Some("hosts:c;a.")).map(|_| ());
        assert!(instance
            .unwrap_err()
            .contains("no process is on host a.; there are a, b, c.cluster"));
        let instance = read(None, None, Some("hosts:c;a")).unwrap();
        assert_eq!(instance.laid.spares, [4, 5, 0, 1]);
    }

    /// A site has more nodes than the job, and lists them in its own order.
    #[test]
    fn processes_are_on_the_nodes_that_have_their_hosts_names() {
        let site = "eyrie-graph 1\nroutes shortest\nswitch s\n".to_string();
        let site = (0..8).fold(site, |t, n| t + &format!("node n{n}\nlink n{n} s\n"));
        let path = std::env::temp_dir().join(format!("eyrie-graph-{}", std::process::id()));
        std::fs::write(&path, site).unwrap();
        let network = format!("graph:{}", path.display());
        let hosts = ["n6", "n1.cluster", "n5", "n3", "n0"];
        let laid = |nodes: &[i32], job, spares| {
            let instance = on(Some(&network), &hosts, nodes, job, Some(spares));
            instance.map(|i| (i.nodes, i.laid.home, i.laid.spares))
        };
        let found = laid(&[], Some("2x2"), "1").unwrap();
        assert_eq!(found, (vec![6, 1, 5, 3, 0], vec![6, 1, 5, 3], vec![0]));
        assert_eq!(laid(&[], Some("4"), "list:n1").unwrap().1, [6, 5, 3, 0]);
        assert_eq!(laid(&[], None, "hosts:n5;n6").unwrap().1, [1, 3, 0]);
        assert_eq!(laid(&[], Some("4"), "1d(1,1)").unwrap().2, [0]);
        assert_eq!(laid(&[], None, "0").unwrap().1, [6, 1, 5, 3, 0]);
        assert_eq!(laid(&[2, -1, -1, -1, 7], None, "1").unwrap().0, [2, 1, 5, 3, 7]);
        for (nodes, spares, fault) in [
            (&[6, 6, 5, 3, 0], "1", "processes 0 and 1 are both on node n6"),
            (&[8, 1, 5, 3, 0], "1", "process 0 is on node 8"),
            (&[6, 1, 5, 3, 0], "1d(2,1)", "needs 6 nodes: there are 5 processes"),
        ] {
            let error = laid(nodes, Some("4"), spares).unwrap_err();
            assert!(error.contains(fault), "{error}");
        }
        // Without names, process i is on node i.
        let plain = on(Some(&network), &["x"; 6], &[], None, None).unwrap();
        assert_eq!(plain.nodes, [0, 1, 2, 3, 4, 5]);
        std::fs::remove_file(path).unwrap();
    }
}
