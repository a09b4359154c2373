//! How agents are started on other hosts: a command for each, whose standard input is told the job's
//! secret. What a launcher's end means is decided elsewhere: an agent that has connected needs it no
//! more.

use crate::hosts::Host;
use anyhow::{bail, Context};
use eyrie_transport::{Addr, Interface};
use eyrie_wire::Node;
use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How long ssh may take to reach a host, in seconds.
const CONNECT_TIMEOUT_S: u32 = 15;

/// The hosts of a job, and how agents get there.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub hosts: Vec<Host>,
    /// For each rank the node that it starts on.
    pub start: Vec<Node>,
    pub launcher: Launcher,
    /// The eyrie command on the hosts.
    pub agent: PathBuf,
}

/// How agents are started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Launcher {
    /// This command, which takes ssh's arguments.
    Ssh(OsString),
}

impl Cluster {
    /// Names of the nodes.
    pub fn names(&self) -> Vec<String> {
        self.hosts.iter().map(|host| host.name.clone()).collect()
    }

    /// Whether the node is the host that this process runs on.
    pub fn is_here(&self, node: Node) -> bool {
        self.hosts.get(node as usize).is_some_and(|host| is_here(&host.name))
    }

    /// What starts the agent of a node on its host.
    pub fn command(&self, node: Node, controller: &Addr, log: Option<&Path>) -> Command {
        let Launcher::Ssh(ssh) = &self.launcher;
        let mut remote = OsString::from("exec ");
        remote.push(quoted(self.agent.as_os_str()));
        remote.push(format!(" agent --node {node} --connect {controller}"));
        if let Some(log) = log {
            remote.push(" --log ");
            remote.push(quoted(log.as_os_str()));
        }
        let mut command = ssh_command(ssh);
        command.arg("-T").arg(&self.hosts[node as usize].name).arg(remote);
        command
    }

    /// The interface of this host by which the other ones reach it, unless the user names one.
    ///
    /// # Errors
    /// When no other host has an address that this one could be reached from.
    pub fn interface(&self) -> anyhow::Result<Interface> {
        let Some(other) = self.hosts.iter().find(|host| !is_here(&host.name)) else {
            return Ok(Interface::LOOPBACK);
        };
        let ip = self.own_ip_towards(&other.name).with_context(|| {
            format!(
                "cannot find the address by which {} reaches this host; name one with --interface",
                other.name
            )
        })?;
        Ok(Interface::Ip(ip))
    }

    fn own_ip_towards(&self, host: &str) -> anyhow::Result<IpAddr> {
        let Launcher::Ssh(ssh) = &self.launcher;
        let name = ssh_name(ssh, host).unwrap_or_else(|| host.to_string());
        // Nothing is sent: the kernel says by which address it would be.
        let at = (name.as_str(), 9).to_socket_addrs()?.next();
        let Some(at) = at else { bail!("{name} has no address") };
        let any: SocketAddr = match at {
            SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
            SocketAddr::V6(_) => ([0u16; 8], 0).into(),
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(at)?;
        let ip = socket.local_addr()?.ip();
        anyhow::ensure!(!ip.is_loopback(), "{name} is this host itself");
        Ok(ip)
    }
}

fn ssh_command(ssh: &OsStr) -> Command {
    let mut command = Command::new(ssh);
    // Nobody is there to type a password.
    command.args(["-o", "BatchMode=yes", "-o"]).arg(format!("ConnectTimeout={CONNECT_TIMEOUT_S}"));
    command
}

/// The name or address that ssh's configuration has for a host.
fn ssh_name(ssh: &OsStr, host: &str) -> Option<String> {
    let said = Command::new(ssh).args(["-G", host]).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    text.lines().find_map(|line| line.strip_prefix("hostname ")).map(str::to_string)
}

/// Whether a name is this host's own.
fn is_here(name: &str) -> bool {
    let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_string();
    name == "localhost" || name == own || (!own.is_empty() && name == short(&own))
}

/// A word as every shell takes it for itself.
fn quoted(word: &OsStr) -> OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let mut bytes = vec![b'\''];
    for byte in word.as_bytes() {
        match byte {
            b'\'' => bytes.extend(b"'\\''"),
            byte => bytes.push(*byte),
        }
    }
    bytes.push(b'\'');
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts;

    fn cluster(agent: &str) -> Cluster {
        Cluster {
            hosts: hosts::parse_list("localhost:1,far.example:2").unwrap(),
            start: vec![0, 1, 1],
            launcher: Launcher::Ssh("ssh".into()),
            agent: agent.into(),
        }
    }

    #[test]
    fn a_command_line_of_ssh_survives_any_path() {
        let command = cluster("/it's here/eyrie").command(
            1,
            &"tcp:10.0.0.1:4000".parse().unwrap(),
            Some(Path::new("/a b.log")),
        );
        let args: Vec<_> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
        assert_eq!(args[4..6], ["-T", "far.example"]);
        let expected = "exec '/it'\\''s here/eyrie' agent --node 1 --connect tcp:10.0.0.1:4000 \
                        --log '/a b.log'";
        assert_eq!(args[6], expected);
        // A shell reads it back.
        let words = args[6].replace("exec ", "printf '%s\\n' ");
        let said = Command::new("sh").args(["-c", &words]).output().unwrap();
        assert!(String::from_utf8_lossy(&said.stdout).starts_with("/it's here/eyrie\nagent\n"));
    }

    #[test]
    fn this_host_is_known_by_its_names() {
        let cluster = cluster("/eyrie");
        assert!(cluster.is_here(0) && !cluster.is_here(1) && !cluster.is_here(2));
        let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
        assert!(is_here(&own));
    }
}
