//! The parts that a job is made of besides its roles: listeners, agents, signals, and what comes
//! from outside.

use super::admission::Services;
use super::beside::{FromOutside, Stop};
use super::children::{Child, Children};
use super::inbound::{Heard, Inbound};
use super::jobdir::JobDir;
use super::launcher::{Launcher, Target};
use super::options::{JobOptions, Reach};
use super::program::Provided;
use crate::machine::Event;
use anyhow::Context;
use crossbeam_channel::Sender;
use eyrie_transport::server;
use eyrie_wire::role_address::{Addr, Bind};
use eyrie_wire::NodeId;
use signal_hook::consts::{
    SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGURG, SIGUSR1, SIGUSR2, SIGXCPU,
};
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::sync::Arc;

/// Listens for users in the job's directory, and for the roles of the job where they reach the
/// controller: there, too, or at an address of its own, which is returned.
pub fn listen(reach: &Reach, dir: &Path, services: &Arc<Services>) -> anyhow::Result<Addr> {
    let users = Bind::Unix(eyrie_agent::user_socket(dir));
    let addr = server::listen(&users, Arc::clone(services))
        .with_context(|| format!("cannot listen in {}", dir.display()))?;
    match reach {
        Reach::Unix => Ok(addr),
        Reach::Tcp { .. } => server::listen(&reach.bind(dir, "control"), Arc::clone(services))
            .context("cannot listen for agents; see --interface and --port-range"),
    }
}

/// Tells the job what comes from outside.
pub fn hear_outside(from_outside: Receiver<FromOutside>, inbound: Sender<Inbound>) {
    std::thread::spawn(move || {
        for told in from_outside {
            let event = match told {
                FromOutside::Stop(Stop { code, cause }) => Event::Stop { code, cause },
                FromOutside::DomainLost { domain, stop: Stop { code, cause } } => {
                    Event::DomainLost { domain, code, cause }
                }
                FromOutside::Unwatched => Event::Unwatched,
            };
            // The main thread receives no more only while the job ends.
            let _ = inbound.send(Inbound::Heard(event.into()));
        }
    });
}

/// Starts an agent for each node: on this host, or on the host that the node is.
///
/// # Errors
/// When a process cannot be made. An agent that does not come up is found later.
pub fn start_agents(
    children: &mut Children,
    options: &JobOptions,
    dir: &JobDir,
    provided: &[Provided],
    inbound: &Sender<Inbound>,
) -> anyhow::Result<()> {
    let nodes = 0..options.nodes + options.spares;
    let Some(cluster) = &options.cluster else {
        for node in nodes {
            let started = children.spawn(Child::Agent(NodeId(node)));
            started.with_context(|| format!("cannot start the agent of node {node}"))?;
        }
        return Ok(());
    };
    let files = cluster.files(provided)?;
    let hear = |node| hear_launcher(inbound, node);
    match &cluster.launcher {
        Launcher::Ssh(ssh) => {
            let (here, elsewhere): (Vec<NodeId>, Vec<NodeId>) =
                nodes.map(NodeId).partition(|node| cluster.is_here(*node));
            for node in here {
                let started = children.spawn(Child::Agent(node));
                started.with_context(|| format!("cannot start the agent of node {node}"))?;
            }
            for target in cluster.targets(&elsewhere) {
                let node = target.node();
                let started = children.launch(cluster, target, &files, hear(node));
                started.with_context(|| {
                    let host = node.map(|node| &cluster.hosts[node.index()].name);
                    let host = host.map_or("other hosts", |h| h);
                    let ssh = ssh.to_string_lossy();
                    format!("cannot start an agent on {host} with {ssh}; see --launcher-exec")
                })?;
            }
        }
        Launcher::Slurm => children
            .launch(cluster, Target::All, &files, hear(None))
            .context("cannot start agents with srun")?,
        Launcher::Manual => {
            let secret = dir.write_secret_line()?;
            let text = cluster.by_hand(children.controller(), &secret);
            // The user who is to start them reads this.
            eprint!("{text}");
        }
    }
    Ok(())
}

/// What hands on what is said on the way to the agent of a node, or to those of all nodes.
pub fn hear_launcher(
    inbound: &Sender<Inbound>,
    node: Option<NodeId>,
) -> impl Fn(Option<String>) + Send + 'static {
    let inbound = inbound.clone();
    // The main thread receives no more only while the job ends.
    move |line| {
        drop(inbound.send(Inbound::Heard(match line {
            Some(line) => Heard::LauncherSaid { node, line },
            None => Heard::LauncherGone { node },
        })))
    }
}

/// Those of children, and what users and batch systems send to programs.
const HEARD: [i32; 10] =
    [SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGURG, SIGXCPU];

/// Those that reach the ranks of the job.
pub fn passed_signals() -> impl Iterator<Item = i32> {
    HEARD
        .into_iter()
        .filter(|signal| *signal != SIGCHLD && !(*signal == SIGHUP && is_ignored(SIGHUP)))
}

/// Whether this process was started so that it does not notice a signal, as nohup(1) does.
fn is_ignored(signal: i32) -> bool {
    // SAFETY: all zero is a valid sigaction, which the kernel fills.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}

/// Turns signals into messages.
pub fn watch_signals(inbound: Sender<Inbound>) -> anyhow::Result<()> {
    // SAFETY: ignoring a signal; reading a terminal that belongs to others then fails instead of
    // stopping us.
    unsafe { libc::signal(libc::SIGTTIN, libc::SIG_IGN) };
    let heard = HEARD.into_iter().filter(|signal| *signal != SIGHUP || !is_ignored(SIGHUP));
    let mut signals = signal_hook::iterator::Signals::new(heard)?;
    std::thread::spawn(move || {
        for signal in signals.forever() {
            if inbound.send(Inbound::Signal(signal)).is_err() {
                return;
            }
        }
    });
    Ok(())
}
