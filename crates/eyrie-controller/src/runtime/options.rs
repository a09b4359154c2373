//! What a job is asked to be.

use super::launcher::{Cluster, Launcher};
use crate::inject::Injection;
use crate::machine::schedule::Interval;
use crate::record::LogLevel;
use anyhow::bail;
use eyrie_host::Images;
use eyrie_interface::answer::WayTo;
use eyrie_interface::options::{CpuLevel, Precaution};
use eyrie_interface::{Order, RolesAt};
use eyrie_placement::assign::spread;
use eyrie_router::Gateway;
use eyrie_wire::control::{CheckpointMode, Notices};
use eyrie_wire::directory::MessagePath;
use eyrie_wire::domains::Domains;
use eyrie_wire::health::Monitoring;
use eyrie_wire::role_address::{Bind, Interface, Ports, Security};
use eyrie_wire::{NodeId, RouterId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A path as it is: the journal takes names that are no text, too.
mod as_bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::ffi::OsString;
    use std::path::PathBuf;

    pub fn serialize<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
        path.as_ref().map(|path| path.as_os_str()).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathBuf>, D::Error> {
        Ok(Option::<OsString>::deserialize(from)?.map(PathBuf::from))
    }
}

/// How the roles of a job reach each other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reach {
    /// Unix sockets in the job's directory.
    Unix,
    Tcp {
        interface: Interface,
        ports: Ports,
        security: Security,
    },
}

impl Reach {
    /// What users must know of it.
    pub fn warning(&self) -> Option<String> {
        let Reach::Tcp { interface, security, .. } = self else { return None };
        let what = match security {
            Security::Encrypted => return None,
            Security::Authenticated => "can be read",
            Security::Off => "can be read and changed",
        };
        Some(format!(
            "--transport-security is not `encrypted`: what goes over the network at {interface} {what} \
             by others there"
        ))
    }

    /// On another host than the one that an address was named for, the hosts are asked again by
    /// which they reach this one.
    ///
    /// # Errors
    /// When there is none.
    pub fn find_anew(&mut self, cluster: Option<&Cluster>) -> anyhow::Result<()> {
        if let (Reach::Tcp { interface, .. }, Some(cluster)) = (self, cluster) {
            let Interface::Ip(ip) = interface else { return Ok(()) };
            if TcpListener::bind((*ip, 0)).is_err() {
                *interface = cluster.interface()?;
            }
        }
        Ok(())
    }

    /// Where the role that is called `name` is asked to listen.
    pub fn bind(&self, dir: &Path, name: &str) -> Bind {
        match self {
            Reach::Unix => Bind::Unix(dir.join(format!("{name}.sock"))),
            Reach::Tcp { interface, ports, security } => {
                Bind::Tcp { interface: interface.clone(), ports: *ports, security: *security }
            }
        }
    }

    /// Where the role or the agent that is called `name` is asked to listen on the node that
    /// reaches the controller by the address `peer`: there, unless users have named the interface.
    pub fn bind_for(&self, peer: Option<IpAddr>, dir: &Path, name: &str) -> Bind {
        let mut listen = self.bind(dir, name);
        if let (Bind::Tcp { interface: Interface::Ip(ip), .. }, Some(peer)) = (&mut listen, peer) {
            *ip = peer;
        }
        listen
    }
}

/// What `eyrie run` is asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobOptions {
    pub ranks: u32,
    pub nodes: u32,
    pub spares: u32,
    pub routers: u32,
    pub roles: RolesAt,
    pub path: MessagePath,
    pub reach: Reach,
    /// The hosts that the nodes are; else all nodes are on this one.
    pub cluster: Option<Cluster>,
    /// Most ranks that a node starts with.
    pub slots: u32,
    /// What ranks observe besides messages is recorded, and replayed to those that re-execute.
    pub record: bool,
    pub checkpoint_every: Interval,
    pub checkpoint_order: Order,
    pub checkpoint_mode: CheckpointMode,
    pub injections: Vec<Injection>,
    #[serde(with = "as_bytes")]
    pub events: Option<PathBuf>,
    pub json: bool,
    /// Where metrics are served, and the collector that traces go to.
    pub metrics: Option<SocketAddr>,
    pub traces: Option<String>,
    pub job: Option<String>,
    #[serde(with = "as_bytes")]
    pub dir: Option<PathBuf>,
    /// Where the images outlive the job, so that it can be saved.
    #[serde(with = "as_bytes")]
    pub images: Option<PathBuf>,
    /// How long before the end of its allocation the job is saved.
    pub save_before: Option<Duration>,
    /// Bytes of log that each router holds in memory.
    pub log_memory: u64,
    /// Bytes of log that each router may write to disk; else half of what is free, for all of them.
    pub log_disk: Option<u64>,
    /// Where agents write what they do, absolute.
    #[serde(with = "as_bytes")]
    pub log: Option<PathBuf>,
    pub heartbeat_timeout: Duration,
    /// How long ranks wait for another controller when this one has died.
    pub orphan_timeout: Duration,
    /// How agents hear that their hosts are about to be taken away, and whether such a node is
    /// drained.
    pub notices: Notices,
    pub drain_on_notice: bool,
    /// What is done about a node that is suspect, and one that is failing.
    pub on_suspect: Precaution,
    pub on_failing: Precaution,
    /// How nodes and ranks are watched, if they are.
    pub monitoring: Option<Monitoring>,
    /// The network that the nodes are in.
    pub network: Option<JobNetwork>,
    /// What ranks send each other until that is measured: words of `eyrie plan`.
    pub traffic: Option<String>,
    /// How the ranks of lost nodes get their nodes: a word of `eyrie plan`, checked before.
    pub policy: Option<String>,
    /// Bytes per second of a link of the network, where that was said.
    pub bandwidth: Option<u64>,
    /// How long the job is likely to run.
    pub run_time: Duration,
    /// Sockets of the program's own that lead out of a rank do not refuse its image: in a restored
    /// rank they are broken connections.
    pub drop_sockets: bool,
    /// Images have the content of the program and its libraries, so that ranks can go on where
    /// these are missing or others.
    pub self_contained: bool,
    /// The lowest level of events that are shown as lines.
    pub show: LogLevel,
    /// What ranks are started to use of their processors; else all.
    pub cpu: Option<CpuLevel>,
    /// The domains of the job: this controller's ranks, nodes and roles are those of one of them.
    pub domains: Option<InDomain>,
    pub argv: Vec<OsString>,
}

/// The network that the nodes of a job are in, and where in it they are.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobNetwork {
    /// Words of `eyrie plan`.
    pub words: String,
    /// The text of the file that the words name, where there is no such file: it was found out.
    pub text: Option<String>,
    /// The network's node of each node of the job.
    pub places: Vec<u32>,
    /// For each rank the node that it starts on, where all nodes are on this host.
    pub start: Vec<NodeId>,
}

/// What a domain's controller is told of the domains. `ranks` of the options counts those of all
/// domains, while `Cluster::start` has a node for each: for a rank of another domain the gateway's.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InDomain {
    pub domains: Domains,
    /// The node that the gateway runs on: the one that other domains reach.
    pub gateway: NodeId,
    /// The port at which it listens there.
    pub port: u16,
    /// Name of the job's PMI key value space, the same in all domains.
    pub kvsname: String,
    /// How commands reach the sites of the others, as far as this domain has started them.
    pub ways: Ways,
    /// It joins a running job.
    pub joins: bool,
}

/// How commands reach the sites of other domains.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Ways {
    /// The command that takes ssh's arguments, and the eyrie command at all sites.
    pub ssh: OsString,
    pub eyrie: OsString,
    /// Ssh destinations, by the names of domains; `None`: the user has started it there.
    pub destinations: BTreeMap<String, Option<String>>,
}

impl Ways {
    /// How a command reaches the site of the domain of this name. `own`: the domain of this site;
    /// `all`: all of them.
    ///
    /// # Errors
    /// Says where the command is to be typed, or which domains there are.
    pub fn to(&self, name: &str, own: &str, all: &[&str]) -> Result<WayTo, String> {
        if own == name {
            return Ok(WayTo::Here);
        }
        if !all.contains(&name) {
            return Err(format!("there is no domain {name}: domains are {}", all.join(", ")));
        }
        match self.destinations.get(name) {
            Some(Some(destination)) => Ok(WayTo::Ssh {
                program: self.ssh.clone().into(),
                destination: destination.clone(),
                eyrie: self.eyrie.clone().into(),
            }),
            Some(None) => Err(format!(
                "domain {name} was started by hand: type the command at its site, without --domain"
            )),
            None => Err(format!(
                "the way to domain {name} is not known in domain {own}: type the command at the \
                 site where `eyrie run` was started, or without --domain at that of {name}"
            )),
        }
    }
}

impl JobOptions {
    /// What images have of the program and its libraries.
    pub fn image_files(&self) -> Images {
        if self.self_contained {
            Images::HaveFiles
        } else {
            Images::NeedFiles
        }
    }

    /// Whether another controller could go on with the job: nothing but the controller itself is in
    /// its process.
    pub fn can_be_resumed(&self) -> bool {
        self.roles == RolesAt::Nodes
    }

    /// Whether the images of a job that is saved are copied to a store beside the controller: the
    /// others are on the nodes, and are gone with the job.
    pub fn has_archive(&self) -> bool {
        self.roles == RolesAt::Nodes && self.images.is_some()
    }

    /// How many routers the job has in this domain, with the gateway to other domains.
    pub fn routers_and_gateway(&self) -> u32 {
        self.routers + u32::from(self.domains.is_some())
    }

    /// What this router is to know of other domains, if it is the gateway to them.
    pub fn gateway_of(&self, router: RouterId) -> Option<Gateway> {
        let of = self.domains.as_ref().filter(|_| router == RouterId(self.routers))?;
        Some(Gateway { domains: of.domains.clone(), port: of.port })
    }

    /// How long all agents may take to come up.
    pub fn agents_timeout(&self) -> Duration {
        match self.cluster.as_ref().map(|cluster| &cluster.launcher) {
            Some(Launcher::Manual) => BY_HAND_TIMEOUT,
            _ => AGENTS_TIMEOUT,
        }
    }

    /// After so long agents that have lost their controller have ended: they find that out, and
    /// wait for another one, where they can.
    pub fn alone_for(&self) -> Duration {
        let saved =
            self.images.as_ref().map_or(Duration::ZERO, |_| eyrie_supervision::saver::PATIENCE);
        if self.can_be_resumed() {
            CONNECTION_TIMEOUT + self.orphan_timeout + saved
        } else {
            CONNECTION_TIMEOUT
        }
    }

    /// For each rank the node that it starts on.
    pub fn start(&self) -> Vec<NodeId> {
        match (&self.cluster, &self.network) {
            (Some(cluster), _) => cluster.start.clone(),
            (None, Some(network)) => network.start.clone(),
            (None, None) => spread(self.ranks, self.nodes).map(NodeId).collect(),
        }
    }

    /// Most ranks that each node may have, where that was said.
    pub fn slots_of_nodes(&self) -> Vec<Option<u32>> {
        match &self.cluster {
            Some(cluster) => cluster.hosts.iter().map(|host| host.slots).collect(),
            None => vec![Some(self.slots); (self.nodes + self.spares) as usize],
        }
    }
}

/// How long it takes at most until the end of a connection is found out ([`eyrie_transport`]).
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// How long all agents may take to come up, and those that a user starts by hand.
const AGENTS_TIMEOUT: Duration = Duration::from_secs(30);
const BY_HAND_TIMEOUT: Duration = Duration::from_secs(600);

/// Refuses what cannot be.
///
/// # Errors
/// Names what is wrong, and the remedy.
pub fn check(options: &JobOptions) -> anyhow::Result<()> {
    let JobOptions { ranks, nodes, slots, routers, .. } = *options;
    if ranks == 0 || nodes == 0 || routers == 0 {
        bail!("a job needs at least one rank, one node and one router");
    }
    let placed = options.cluster.is_some();
    if !placed && u64::from(ranks) > u64::from(nodes) * u64::from(slots) {
        bail!(
            "{ranks} ranks do not fit on {nodes} nodes of {slots} slots each; give more with --nodes or --slots"
        );
    }
    if let Some(why) = cannot_have_domains(options) {
        bail!("{why}");
    }
    for injection in &options.injections {
        injection.check(ranks, nodes + options.spares).map_err(anyhow::Error::msg)?;
    }
    Ok(())
}

/// Why a job over several domains cannot be as it was asked for.
fn cannot_have_domains(options: &JobOptions) -> Option<&'static str> {
    options.domains.as_ref()?;
    if options.images.is_some() {
        Some("a job over several domains cannot be saved yet: leave --images out")
    } else if options.path == MessagePath::Direct {
        Some("between domains messages go through routers: leave --path direct out")
    } else if options.roles != RolesAt::Nodes {
        Some("a job over several domains has its roles on nodes: leave --roles here out")
    } else {
        None
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Options of a small job.
    pub fn options() -> JobOptions {
        JobOptions {
            ranks: 2,
            nodes: 2,
            spares: 0,
            routers: 2,
            path: MessagePath::Router,
            roles: RolesAt::Nodes,
            reach: Reach::Unix,
            cluster: None,
            slots: 2,
            record: true,
            checkpoint_every: Interval::Off,
            checkpoint_order: Order::Batch,
            checkpoint_mode: CheckpointMode::Async,
            injections: vec![],
            events: None,
            json: false,
            metrics: None,
            traces: None,
            job: None,
            dir: None,
            images: None,
            save_before: None,
            log_memory: 1 << 20,
            log_disk: None,
            log: None,
            heartbeat_timeout: Duration::from_secs(10),
            orphan_timeout: Duration::from_secs(60),
            notices: Notices::default(),
            drain_on_notice: true,
            on_suspect: Precaution::Image,
            on_failing: Precaution::Drain,
            monitoring: None,
            network: None,
            traffic: None,
            policy: None,
            bandwidth: None,
            run_time: Duration::from_secs(3600),
            drop_sockets: false,
            self_contained: false,
            show: LogLevel::Normal,
            cpu: None,
            domains: None,
            argv: vec!["true".into()],
        }
    }
    #[test]
    fn a_way_to_a_site_is_known_or_it_is_said_where_the_command_is_to_be_typed() {
        let destinations = [("cloud", Some("login")), ("lab", None)];
        let destinations =
            destinations.map(|(name, to)| (name.to_string(), to.map(String::from))).into();
        let ways = Ways { ssh: "ssh".into(), eyrie: "/opt/eyrie".into(), destinations };
        let to = |ways: &Ways, name: &str| ways.to(name, "home", &["home", "cloud", "lab"]);
        assert_eq!(to(&ways, "home"), Ok(WayTo::Here));
        let way = WayTo::Ssh {
            program: "ssh".into(),
            destination: "login".into(),
            eyrie: "/opt/eyrie".into(),
        };
        assert_eq!(to(&ways, "cloud"), Ok(way));
        let refused = |ways: &Ways, name: &str| to(ways, name).unwrap_err();
        assert!(refused(&ways, "lab").contains("started by hand: type the command at its site"));
        assert!(refused(&ways, "west").contains("domains are home, cloud, lab"));
        let none = Ways::default();
        assert!(refused(&none, "cloud").contains("type the command at the site where `eyrie run`"));
    }
}
