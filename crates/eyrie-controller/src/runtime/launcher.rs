//! How agents are started on other hosts: a command for each, whose standard input is told the
//! job's secret. What a launcher's end means is decided elsewhere: an agent that has connected
//! needs it no more.

use super::program::Provided;
use crate::hosts::Host;
use anyhow::{bail, Context};
use eyrie_host::shell::{self, quoted};
use eyrie_supervision::{bounded, in_own_session};
use eyrie_transport::role;
use eyrie_wire::auth::Secret;
use eyrie_wire::role_address::{Addr, Interface};
use eyrie_wire::NodeId;
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Where Slurm says which node a process runs on.
pub const SLURM_NODE: &str = "SLURMD_NODENAME";
/// What `eyrie run` takes as --spares where it is not given.
pub const ENV_SPARES: &str = "EYRIE_SPARES";
/// Set in jobs whose allocation outlives its nodes, which Slurm does not tell.
pub const ENV_NO_KILL: &str = "EYRIE_NO_KILL";
/// How long ssh or Slurm may take to say what they know of a host.
const ASKING_TIMEOUT: Duration = Duration::from_secs(10);
/// How long ssh may take to reach a host, in seconds.
const CONNECT_TIMEOUT_S: u32 = 15;

/// The hosts of a job, and how agents get there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cluster {
    pub hosts: Vec<Host>,
    /// For each rank the node that it starts on.
    pub start: Vec<NodeId>,
    pub launcher: Launcher,
    /// The eyrie command on the hosts.
    pub agent: PathBuf,
    /// The command and its libraries are sent to the hosts, which do not have them.
    pub send_binaries: bool,
    /// With more hosts than this ssh goes to some of them, which start the agents of others.
    pub fanout: u32,
}

/// How agents are started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Launcher {
    /// This command, which takes ssh's arguments, once for each host.
    Ssh(OsString),
    /// One `srun` for all hosts, within the allocation that this process runs in.
    Slurm,
    /// The user does it, by the lines that are shown.
    Manual,
}

/// Whose agents are to be started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// Those of all nodes, at the start.
    All,
    /// That of one; within another allocation of Slurm than this process runs in, when it is named.
    One(NodeId, Option<u64>),
    /// That of the first, which starts those of the others.
    Led(NodeId, Vec<NodeId>),
}

impl Target {
    /// The node of it that is reached from here; `None`: all are.
    pub fn node(&self) -> Option<NodeId> {
        match self {
            Target::All => None,
            Target::One(node, _) | Target::Led(node, _) => Some(*node),
        }
    }
}

impl Cluster {
    /// What starts agents on other hosts.
    pub fn command(
        &self,
        target: Target,
        controller: &Addr,
        log: Option<&Path>,
        files: &[SentFile],
    ) -> Command {
        match (&self.launcher, target) {
            (Launcher::Ssh(_) | Launcher::Manual, Target::One(node, None)) => {
                self.ssh_command(node, &[], controller, log, files)
            }
            (_, Target::Led(first, others)) => {
                self.ssh_command(first, &others, controller, log, files)
            }
            (_, Target::All) => self.srun_command(0..self.hosts.len(), None, controller, log),
            (_, Target::One(node, allocation)) => {
                let node = node.index();
                self.srun_command(node..node + 1, allocation, controller, log)
            }
        }
    }

    /// Whom ssh goes to for these nodes: each of them, or, where they are many, as many as each of
    /// those starts in turn. Files go to each host from here.
    pub fn targets(&self, nodes: &[NodeId]) -> Vec<Target> {
        let many = nodes.len() > self.fanout as usize && !self.send_binaries;
        let group = if many { (nodes.len() as f64).sqrt().ceil() as usize } else { 1 };
        let target = |group: &[NodeId]| match group {
            [node] => Target::One(*node, None),
            _ => Target::Led(group[0], group[1..].to_vec()),
        };
        nodes.chunks(group).map(target).collect()
    }

    /// What is sent to each host: the command first, then what ranks need.
    ///
    /// # Errors
    /// When a file cannot be found.
    pub fn files(&self, provided: &[Provided]) -> anyhow::Result<Vec<SentFile>> {
        if !self.send_binaries {
            return Ok(Vec::new());
        }
        let own = std::env::current_exe().context("cannot find the eyrie command itself")?;
        let all = provided.iter().map(|(name, path)| (name.clone(), PathBuf::from(path)));
        let sent = |(name, path): (String, PathBuf)| {
            let meta =
                path.metadata().with_context(|| format!("cannot read {}", path.display()))?;
            Ok(SentFile { name, path, bytes: meta.len() })
        };
        std::iter::once(("eyrie".to_string(), own)).chain(all).map(sent).collect()
    }

    /// Names of the nodes.
    pub fn names(&self) -> Vec<String> {
        self.hosts.iter().map(|host| host.name.clone()).collect()
    }

    /// Whether the node is the host that this process runs on.
    pub fn is_here(&self, node: NodeId) -> bool {
        self.hosts.get(node.index()).is_some_and(|host| is_here(&host.name))
    }

    /// What starts the agent of a node on its host, over ssh, and has it start those of `others`.
    fn ssh_command(
        &self,
        node: NodeId,
        others: &[NodeId],
        controller: &Addr,
        log: Option<&Path>,
        files: &[SentFile],
    ) -> Command {
        let mut remote = OsString::from("exec ");
        let words = format!("agent --node {node} --connect {controller}");
        match files {
            [] => {
                remote.push(quoted(self.agent.as_os_str()));
                remote.push(format!(" {words}"));
            }
            files => {
                remote.push("sh -c ");
                remote.push(quoted(receiving(files, &words).as_ref()));
                // More words may follow; they are the agent's.
                remote.push(" sh");
            }
        }
        let name = |node: NodeId| &self.hosts[node.index()].name;
        if !others.is_empty() {
            let others: Vec<_> = others.iter().map(|n| format!("{n}={}", name(*n))).collect();
            remote.push(" --ssh ");
            remote.push(quoted(self.ssh()));
            remote.push(" --lead ");
            remote.push(quoted(others.join(",").as_ref()));
        }
        if let Some(log) = log {
            remote.push(" --log ");
            remote.push(quoted(log.as_os_str()));
        }
        let mut command = shell::ssh(self.ssh(), CONNECT_TIMEOUT_S, name(node));
        command.arg(remote);
        command
    }

    /// What starts the agents of all nodes within an allocation of Slurm: one step, which neither
    /// the end of a task nor that of a node ends. A task knows by its node's name which node it is.
    fn srun_command(
        &self,
        nodes: Range<usize>,
        allocation: Option<u64>,
        controller: &Addr,
        log: Option<&Path>,
    ) -> Command {
        let first = nodes.start.to_string();
        let count = nodes.len();
        let names: Vec<&str> = self.hosts[nodes].iter().map(|host| host.name.as_str()).collect();
        let names = names.join(",");
        let mut command = Command::new("srun");
        command
            .args(["--overlap", "--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--mpi=none"])
            .args(["--cpu-bind=none", "--ntasks-per-node=1", "--input=all", "--unbuffered"])
            .arg(format!("--nodes={count}"))
            .arg(format!("--ntasks={count}"))
            .arg(format!("--nodelist={names}"))
            .args(allocation.map(|job| format!("--jobid={job}")))
            .arg(&self.agent)
            .args(["agent", "--first", &first, "--among", &names])
            .args(["--connect", &controller.to_string()])
            .args(log.iter().flat_map(|file| ["--log".as_ref(), file.as_os_str()]));
        command
    }

    /// What the user is to do who starts the agents; `secret` is the file that they read.
    pub fn by_hand(&self, controller: &Addr, secret: &Path) -> String {
        let agent = quoted(self.agent.as_os_str());
        let mut text = format!(
            "eyrie: start an agent on each host by its line; agent-secret is a copy of {} that only \
             you can read:\n",
            secret.display()
        );
        for (node, host) in self.hosts.iter().enumerate() {
            let agent = agent.to_string_lossy();
            text += &format!(
                "  on {}: {agent} agent --node {node} --connect {controller} <agent-secret\n",
                host.name
            );
        }
        text
    }

    /// What users must know of where the job runs.
    pub fn warning(&self) -> Option<String> {
        let unsaid = self.launcher == Launcher::Slurm && std::env::var_os(ENV_NO_KILL).is_none();
        unsaid.then(|| {
            "Slurm ends the whole job when one of its nodes fails, unless its allocation was made with \
             --no-kill, which cannot be seen from here; `eyrie sbatch` submits with it"
                .into()
        })
    }

    /// The command that takes ssh's arguments.
    fn ssh(&self) -> &OsStr {
        match &self.launcher {
            Launcher::Ssh(ssh) => ssh,
            Launcher::Slurm | Launcher::Manual => "ssh".as_ref(),
        }
    }

    /// The interface of this host by which the other ones reach it, unless the user names one.
    ///
    /// # Errors
    /// When no other host has an address that this one could be reached from.
    pub fn interface(&self) -> anyhow::Result<Interface> {
        let own = std::env::var(SLURM_NODE).unwrap_or_default();
        let is_other = |host: &&Host| !is_here(&host.name) && host.name != own;
        let Some(other) = self.hosts.iter().find(is_other) else {
            return Ok(Interface::LOOPBACK);
        };
        let ip = self.own_ip_towards(&other.name).with_context(|| {
            format!(
                "no address is known of host {}: correct its name, or give the address by which hosts \
                 reach this one with --interface",
                other.name
            )
        })?;
        Ok(Interface::Ip(ip))
    }

    fn own_ip_towards(&self, host: &str) -> anyhow::Result<IpAddr> {
        let name = match self.launcher {
            Launcher::Slurm => slurm_name(host),
            Launcher::Ssh(_) | Launcher::Manual => ssh_name(self.ssh(), host),
        };
        let name = name.unwrap_or_else(|| host.to_string());
        let at = (name.as_str(), 9).to_socket_addrs()?.next();
        let Some(at) = at else { bail!("{name} has no address") };
        Ok(own_ip_to(at)?)
    }
}

/// Starts the agent of a node on its host, from that of another node: what is said on the way there
/// is said here. `job`: where its controller listens, and its secret.
///
/// # Errors
/// When the process cannot be made, or does not take the secret.
pub fn lead(
    node: NodeId,
    host: &str,
    ssh: &OsStr,
    (controller, secret): (&Addr, &Secret),
    log: Option<&Path>,
) -> anyhow::Result<()> {
    let agent = std::env::current_exe().context("cannot find the eyrie command itself")?;
    let mut remote = OsString::from("exec ");
    remote.push(quoted(agent.as_os_str()));
    remote.push(format!(" agent --node {node} --connect {controller}"));
    if let Some(log) = log {
        remote.push(" --log ");
        remote.push(quoted(log.as_os_str()));
    }
    let mut command = shell::ssh(ssh, CONNECT_TIMEOUT_S, host);
    command.arg(remote).stdin(Stdio::piped()).stdout(Stdio::null());
    // What ends this process's group asks this process first.
    let mut child = in_own_session(&mut command).spawn()?;
    // A line that any pipe holds.
    child
        .stdin
        .take()
        .map_or(Ok(()), |mut stdin| Ok(stdin.write_all(role::secret_line(secret).as_bytes())?))
}

/// The address of this host by which it reaches another. Nothing is sent: the kernel says by which
/// address it would be.
///
/// # Errors
/// When there is no way there.
pub fn own_ip_to(at: SocketAddr) -> std::io::Result<IpAddr> {
    let any: SocketAddr = match at {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(at)?;
    Ok(socket.local_addr()?.ip())
}

/// The address that Slurm has for a node.
fn slurm_name(node: &str) -> Option<String> {
    let show = ["--oneliner", "show", "node", node];
    let said = bounded::run(Command::new("scontrol").args(show), ASKING_TIMEOUT).ok()?;
    said.stdout
        .split_whitespace()
        .find_map(|word| word.strip_prefix("NodeAddr="))
        .map(str::to_string)
}

/// The name or address that ssh's configuration has for a host.
fn ssh_name(ssh: &OsStr, host: &str) -> Option<String> {
    let said = bounded::run(Command::new(ssh).args(["-G", host]), ASKING_TIMEOUT).ok()?;
    said.stdout.lines().find_map(|line| line.strip_prefix("hostname ")).map(str::to_string)
}

/// Whether a name is this host's own.
pub fn is_here(name: &str) -> bool {
    let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_string();
    name == "localhost" || name == own || (!own.is_empty() && name == short(&own))
}

/// A file that goes over the launcher's standard input, before the secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SentFile {
    pub name: String,
    pub path: PathBuf,
    pub bytes: u64,
}

/// The script by which a host takes files from its standard input into a directory of its own, and
/// then becomes the agent, `words`. The first of the files is the command.
fn receiving(files: &[SentFile], words: &str) -> String {
    // The ranks get the mask that the host gives its user.
    let mut script =
        "m=$(umask); umask 077; d=$(mktemp -d /tmp/eyrie-sent-XXXXXXXX) || exit 1; ".to_string();
    script += "trap 'rm -rf \"$d\"' EXIT; ";
    for SentFile { name, bytes, .. } in files {
        // It takes no byte more than it is told.
        script += &format!("head -c {bytes} >\"$d/{name}\" && ");
    }
    let command = &files[0].name;
    script += &format!("chmod 700 \"$d/{command}\" || exit 1; ");
    script +=
        &format!("trap - EXIT; umask \"$m\"; exec \"$d/{command}\" {words} --sent \"$d\" \"$@\"");
    script
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts;

    fn cluster(agent: &str) -> Cluster {
        Cluster {
            hosts: hosts::parse_list("localhost:1,far.example:2").unwrap(),
            start: vec![NodeId(0), NodeId(1), NodeId(1)],
            launcher: Launcher::Ssh("ssh".into()),
            agent: agent.into(),
            send_binaries: false,
            fanout: 256,
        }
    }

    #[test]
    fn a_command_line_of_ssh_survives_any_path() {
        let command = cluster("/it's here/eyrie").ssh_command(
            NodeId(1),
            &[],
            &"tcp:10.0.0.1:4000".parse().unwrap(),
            Some(Path::new("/a b.log")),
            &[],
        );
        let args: Vec<_> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
        assert_eq!((args[0].as_str(), args[5].as_str()), ("-T", "far.example"));
        let expected = "exec '/it'\\''s here/eyrie' agent --node 1 --connect tcp:10.0.0.1:4000 \
                        --log '/a b.log'";
        assert_eq!(args[6], expected);
        // A shell reads it back.
        let words = args[6].replace("exec ", "printf '%s\\n' ");
        let said = Command::new("sh").args(["-c", &words]).output().unwrap();
        assert!(String::from_utf8_lossy(&said.stdout).starts_with("/it's here/eyrie\nagent\n"));
    }

    #[test]
    fn many_hosts_are_reached_by_a_tree_in_which_each_is_once() {
        let few = cluster("/eyrie");
        assert_eq!(
            few.targets(&[NodeId(1), NodeId(5)]),
            [Target::One(NodeId(1), None), Target::One(NodeId(5), None)]
        );
        let nodes: Vec<NodeId> = NodeId::first(10_000).collect();
        let targets = few.targets(&nodes);
        let reached: Vec<NodeId> = (targets.iter())
            .flat_map(|target| match target {
                Target::Led(first, others) => [&[*first], &others[..]].concat(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!((targets.len(), reached), (100, nodes));
    }

    #[test]
    fn a_host_is_told_whose_agents_it_starts() {
        let addr = "tcp:10.0.0.1:4000".parse().unwrap();
        let command = cluster("/eyrie").ssh_command(NodeId(0), &[NodeId(1)], &addr, None, &[]);
        let words = command.get_args().last().unwrap().to_string_lossy().into_owned();
        assert_eq!(
            words,
            "exec /eyrie agent --node 0 --connect tcp:10.0.0.1:4000 --ssh ssh --lead 1=far.example"
        );
    }

    #[test]
    fn this_host_is_known_by_its_names() {
        let cluster = cluster("/eyrie");
        assert!(
            cluster.is_here(NodeId(0))
                && !cluster.is_here(NodeId(1))
                && !cluster.is_here(NodeId(2))
        );
        let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
        assert!(is_here(&own));
    }
}
