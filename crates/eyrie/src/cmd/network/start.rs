//! The nodes of a job on its network: which hosts are spares, and where each rank starts, for
//! `eyrie run`. eyrie-placement decides; here are the words of the user and the hosts.

use super::find::find;
use super::found::{names, Found, AUTO};
use super::measure::Way;
use eyrie_cli::instance::as_option;
use eyrie_controller::hosts::{self, Host};
use eyrie_controller::runtime::JobNetwork;
use eyrie_interface::options::StartBy;
use eyrie_placement::assign::spread;
use eyrie_placement::start::{self, Fill, Task};
use eyrie_placement::{CostModel, JobNode, SpareSet, Words};
use eyrie_topology::spec::Files;
use eyrie_wire::NodeId;
use std::fmt;
use std::str::FromStr;

/// How many nodes are held free, or which.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Spares {
    Count(u32),
    Set(SpareSet),
}

impl FromStr for Spares {
    type Err = String;

    fn from_str(text: &str) -> Result<Spares, String> {
        match text.parse() {
            Ok(count) => Ok(Spares::Count(count)),
            Err(_) => SpareSet::parse(text).map(Spares::Set).map_err(|e| e.to_string()),
        }
    }
}

impl fmt::Display for Spares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Spares::Count(count) => count.fmt(f),
            Spares::Set(set) => set.fmt(f),
        }
    }
}

impl Spares {
    /// How many they are, where that is known without a network.
    ///
    /// # Errors
    /// Where they are chosen by a network.
    pub fn count(&self) -> anyhow::Result<u32> {
        match self {
            Spares::Count(count) => Ok(*count),
            Spares::Set(SpareSet::Contiguous(count)) => Ok(u32::try_from(*count)?),
            Spares::Set(set) => anyhow::bail!(
                "--spares {set}: the network says which nodes these are: add --network, or give a \
                 number"
            ),
        }
    }
}

/// Most nodes of a job on this host.
const MOST_HERE: u32 = 100_000;

/// What the user wants.
pub struct Asked<'a> {
    pub network: &'a str,
    pub spares: &'a Spares,
    pub start: Option<StartBy>,
    pub traffic: Option<&'a str>,
    pub costs: CostModel,
    pub ranks: Option<u32>,
}

/// The nodes of the job, those that are held free last.
pub struct Nodes {
    /// Those that they are; none, where all are on this host.
    pub hosts: Vec<Host>,
    pub count: u32,
    pub start: Vec<NodeId>,
    pub spares: u32,
    pub network: JobNetwork,
    /// What users are told.
    pub notes: Vec<String>,
}

impl Asked<'_> {
    /// The nodes of a job on these hosts.
    ///
    /// # Errors
    /// Names the word that is wrong, and the remedy.
    pub fn on_hosts(&self, hosts: &[Host], way: Way<'_>) -> anyhow::Result<Nodes> {
        self.has_ranks()?;
        let all: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
        let found = self.found(&all, Some(way));
        let fill = |order: &[usize], spares: u32| {
            let ordered: Vec<Host> = order.iter().map(|host| hosts[*host].clone()).collect();
            let started = hosts::start(&ordered, spares, self.ranks)?;
            Ok(started.nodes.iter().map(|node| node.0).collect())
        };
        let slots: Vec<Option<u32>> = hosts.iter().map(|host| host.slots).collect();
        let placed = self.placed(&found, &all, true, &fill, &slots)?;
        let start: Vec<NodeId> = placed.start.iter().copied().map(NodeId).collect();
        let used = start.iter().max().map_or(0, |last| last.0 + 1);
        let hosts: Vec<Host> = placed.order.iter().map(|host| hosts[*host].clone()).collect();
        Ok(Nodes {
            start,
            spares: hosts.len() as u32 - used,
            count: hosts.len() as u32,
            hosts,
            notes: self.notes(&found, placed.said),
            network: JobNetwork { places: placed.places, ..words(found) },
        })
    }

    /// The nodes of a job on this host, so many with ranks; `None`: one, or what planes of spares
    /// leave.
    ///
    /// # Errors
    /// As [`Asked::on_hosts`].
    pub fn here(&self, nodes: Option<u32>, usual: (u32, u32)) -> anyhow::Result<Nodes> {
        self.has_ranks()?;
        let (usual_ranks, usual_nodes) = usual;
        let ranks = self.ranks.unwrap_or(usual_ranks);
        let count = match self.spares {
            Spares::Count(count) => nodes.unwrap_or(usual_nodes).saturating_add(*count),
            Spares::Set(set @ SpareSet::Planes { .. }) if self.network == AUTO => anyhow::bail!(
                "--spares {set} needs a network with coordinates: name it with --network, or give \
                 a number"
            ),
            Spares::Set(set @ SpareSet::Planes { .. }) => {
                let found = self.found(&[], None);
                let text = |path: &str| found.file(path);
                let files = Files { text: &text, slurm_topology: None, taper: 1.0 };
                let words = Words::of_running_job(&found.words, &[], None, files);
                start::nodes_of_planes(&words, set).map_err(as_option)?
            }
            Spares::Set(SpareSet::List(list)) => nodes.unwrap_or(usual_nodes) + list.len() as u32,
            Spares::Set(SpareSet::Contiguous(count) | SpareSet::Scattered(count)) => {
                nodes.unwrap_or(usual_nodes).saturating_add(u32::try_from(*count)?)
            }
        };
        anyhow::ensure!(count <= MOST_HERE, "{count} nodes on this host: at most {MOST_HERE}");
        let all: Vec<String> = (0..count).map(|node| format!("node{node}")).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let found = self.found(&all, None);
        let fill = |order: &[usize], spares: u32| {
            let started = (order.len() as u32).saturating_sub(spares);
            match nodes.filter(|nodes| *nodes != started) {
                _ if started == 0 => Err("no node is left for ranks: keep fewer spares".into()),
                Some(nodes) => Err(format!(
                    "--nodes {nodes}: the spares ({}) leave {started} nodes for ranks; give that, \
                     or leave --nodes out",
                    self.spares
                )),
                None => Ok(spread(ranks, started).collect::<Vec<JobNode>>()),
            }
        };
        let placed = self.placed(&found, &all, false, &fill, &[])?;
        let start: Vec<NodeId> = placed.start.iter().copied().map(NodeId).collect();
        Ok(Nodes {
            hosts: Vec::new(),
            count,
            start: start.clone(),
            spares: placed.spares,
            notes: self.notes(&found, placed.said),
            network: JobNetwork { start, places: placed.places, ..words(found) },
        })
    }

    fn has_ranks(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.ranks != Some(0), "a job needs at least one rank");
        Ok(())
    }

    /// The network, as the user says it or as it is found out.
    fn found(&self, hosts: &[&str], way: Option<Way<'_>>) -> Found {
        match self.network {
            AUTO => find(hosts, way),
            network => Found::said(network),
        }
    }

    /// `named`: the hosts are real ones.
    fn placed(
        &self,
        found: &Found,
        hosts: &[&str],
        named: bool,
        fill: Fill<'_>,
        slots: &[Option<u32>],
    ) -> anyhow::Result<start::Started> {
        let hosts = names(hosts.iter().copied());
        let text = |path: &str| found.file(path);
        let files = Files { text: &text, slurm_topology: None, taper: 1.0 };
        let words = Words::of_running_job(&found.words, &hosts, self.traffic, files);
        let by_network = match self.start {
            Some(start) => start == StartBy::Network,
            // Where it knows no hosts, their order says where they are: the user has chosen it.
            None => named && start::knows_hosts(&words).map_err(as_option)?,
        };
        let spares = match self.spares {
            Spares::Count(count) => start::Spares::Count(*count),
            Spares::Set(set) => start::Spares::Set(set),
        };
        let task = Task { spares, by_network, named, fill, slots, costs: self.costs };
        start::place(&words, &task).map_err(as_option)
    }

    fn notes(&self, found: &Found, said: Option<String>) -> Vec<String> {
        let found = if self.network == AUTO { found.lines() } else { Vec::new() };
        found.into_iter().chain(said).collect()
    }
}

fn words(found: Found) -> JobNetwork {
    let Found { words, text, .. } = found;
    JobNetwork { words, text, places: Vec::new(), start: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked<'a>(network: &'a str, spares: &'a Spares, ranks: u32) -> Asked<'a> {
        let ranks = Some(ranks);
        let costs = CostModel::default();
        Asked { network, spares, start: None, traffic: None, costs, ranks }
    }

    #[test]
    fn spares_are_a_number_or_a_set() {
        let read = |text: &str| text.parse::<Spares>().map(|spares| spares.to_string());
        assert_eq!(read("3"), Ok("3".into()));
        assert_eq!(read("2D(2,1)"), Ok("2d(2,1)".into()));
        assert!(read("some").unwrap_err().contains("write nd(d,w)"));
        let planes: Spares = "2d(2,1)".parse().unwrap();
        let last: Spares = "contiguous:3".parse().unwrap();
        assert!(planes.count().unwrap_err().to_string().contains("add --network"));
        assert_eq!(last.count().unwrap(), 3);
    }

    #[test]
    fn nodes_on_this_host_are_as_many_as_planes_leave() {
        let planes: Spares = "2d(2,1)".parse().unwrap();
        let nodes = asked("mesh:3x3", &planes, 4).here(None, (1, 1)).unwrap();
        assert_eq!((nodes.count, nodes.spares), (9, 5));
        assert_eq!(nodes.network.places[..4], [0, 1, 3, 4]);
        assert_eq!(nodes.start, [0, 1, 2, 3].map(NodeId));
        let error = asked("mesh:3x3", &planes, 4).here(Some(3), (1, 1)).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("leave 4 nodes for ranks"), "{error}");
        let two = Spares::Count(2);
        let nodes = asked("auto", &two, 4).here(Some(2), (1, 1)).unwrap();
        assert_eq!((nodes.count, nodes.spares, nodes.start.len()), (4, 2, 4));
        assert!(nodes.notes[0].contains("all nodes are on this host"), "{:?}", nodes.notes);
    }

    #[test]
    fn hosts_are_placed_by_a_network_that_knows_them() {
        let conf = std::env::temp_dir().join(format!("eyrie-racks-{}.conf", std::process::id()));
        let text = "SwitchName=r0 Nodes=a,c\nSwitchName=r1 Nodes=b,d\nSwitchName=t Switches=r0,r1";
        std::fs::write(&conf, text).unwrap();
        let network = format!("slurm:{}", conf.display());
        let none = Spares::Count(0);
        let launcher = eyrie_controller::runtime::Launcher::Manual;
        let way = Way { launcher: &launcher, eyrie: "eyrie".as_ref() };
        let list = hosts::parse_list("u@a:1,u@b:1,c:1,d:1").unwrap();
        let matrix = std::env::temp_dir().join(format!("eyrie-pairs-{}", std::process::id()));
        std::fs::write(&matrix, "0 1 100000 9\n2 3 100000 9\n").unwrap();
        let traffic = format!("matrix:{}", matrix.display());
        let asked = Asked { traffic: Some(&traffic), ..asked(&network, &none, 4) };
        let nodes = asked.on_hosts(&list, way).unwrap();
        let rack = |rank: usize| nodes.network.places[nodes.start[rank].index()] / 2;
        assert_eq!((rack(0), rack(2)), (rack(1), rack(3)));
        let name = |rank: usize| nodes.hosts[nodes.start[rank].index()].name.as_str();
        assert!(["u@a", "u@b", "c", "d"].contains(&name(0)));
        let strangers = hosts::parse_list("a,x").unwrap();
        let error = asked.on_hosts(&strangers, way).map(|_| ()).unwrap_err().to_string();
        assert!(error.starts_with("--network: switch tree"), "{error}");
        std::fs::remove_file(conf).unwrap();
        std::fs::remove_file(matrix).unwrap();
    }
}
