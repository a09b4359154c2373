//! The parts that a job is made of besides its agents: store, routers, signals.

use super::admission::Services;
use super::children::{Child, Children};
use super::images_dir::ImagesDir;
use super::inbound::{Heard, Inbound, Letter};
use super::jobdir::JobDir;
use super::launcher::{Launcher, Target};
use super::link::{JournalProgress, Session};
use super::options::{JobOptions, Reach, RolesAt};
use super::places::Places;
use super::program::Provided;
use super::routers::JobRouter;
use super::store::{JobStore, THE_STORE};
use crate::machine::StoreId;
use anyhow::Context;
use crossbeam_channel::Sender;
use eyrie_router::{Router, RouterEvent, SavedAt};
use eyrie_store::role::{self, StoreRole};
use eyrie_transport::{server, Addr, Bind, KeptUntil, RouterId};
use eyrie_wire::auth::Secret;
use eyrie_wire::Node;
use signal_hook::consts::{
    SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGURG, SIGUSR1, SIGUSR2, SIGXCPU,
};
use std::collections::BTreeMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

/// What a store is told at its start.
pub fn store_config(id: StoreId, options: &JobOptions, job: &str, dir: &Path) -> role::Config {
    let name = format!("store-{id}");
    let listen = options.reach.bind(dir, &name);
    let (dir, sync) = match &options.images {
        // What was saved must be there after a power failure, too.
        Some(images) if options.roles != RolesAt::Nodes || id == THE_STORE => {
            (ImagesDir::store(images), true)
        }
        _ => (dir.join(name), false),
    };
    role::Config { job: job.into(), dir, sync, listen }
}

/// The store beside the controller: that of a job's start, or, where stores run on nodes, the one
/// in which images are `archived`, if they are.
///
/// # Errors
/// When it cannot be started.
pub fn start_stores(
    options: &JobOptions,
    job: &str,
    dir: &JobDir,
    secret: &Secret,
    archived: Option<&Path>,
    inbound: &Sender<Inbound>,
) -> anyhow::Result<BTreeMap<StoreId, JobStore>> {
    let config = store_config(THE_STORE, options, job, dir.path());
    let store = match options.roles {
        RolesAt::Nodes if archived.is_none() => return Ok(BTreeMap::new()),
        RolesAt::Apart => JobStore::Apart(Session::with(JournalProgress::NO_JOURNAL, &config)),
        RolesAt::Here | RolesAt::Nodes => {
            let inbound = inbound.clone();
            if let Bind::Unix(socket) = &config.listen {
                // That of an earlier controller, which is dead.
                drop(std::fs::remove_file(socket));
            }
            // Nobody listens any more only while the job ends.
            let tell = move |event| {
                let (id, letter) = (THE_STORE, Letter::NONE);
                drop(inbound.send(Inbound::Heard(Heard::Store { id, letter, event })));
            };
            JobStore::Here(StoreRole::start(&config, secret.clone(), tell)?)
        }
    };
    Ok(BTreeMap::from([(THE_STORE, store)]))
}

/// What a router is told at its start. `generation`: how many have had its number before.
///
/// # Errors
/// When the disk of the job's directory does not say what is free.
pub fn router_config(
    id: RouterId,
    generation: u32,
    options: &JobOptions,
    at_home: Vec<bool>,
    dir: &Path,
) -> anyhow::Result<eyrie_router::Config> {
    let free = super::jobdir::free_bytes(dir)?;
    // One that takes the place of another on the same host must not meet what that has left.
    let name = match generation {
        0 => id.to_string(),
        _ => format!("{id}.{generation}"),
    };
    Ok(eyrie_router::Config {
        id,
        kept_until: KeptUntil::Logged,
        takes_over: false,
        saved: None,
        incarnations: vec![1; at_home.len()],
        at_home,
        listen: options.reach.bind(dir, &format!("router-{name}")),
        spill_dir: dir.join(format!("log-{name}")),
        log_memory: options.log_memory,
        log_disk: options.log_disk.unwrap_or(free / 2 / u64::from(options.routers)),
    })
}

/// The routers of a job's start, unless they run on nodes; those that are threads are started.
///
/// # Errors
/// When one cannot be started.
pub fn start_routers(
    options: &JobOptions,
    places: &Places,
    dir: &Path,
    secret: &Secret,
    images: Option<&ImagesDir>,
    events: &Sender<(RouterId, RouterEvent)>,
) -> anyhow::Result<Vec<JobRouter>> {
    if options.roles == RolesAt::Nodes {
        return Ok(Vec::new());
    }
    let start = |id| {
        let mut config = router_config(id, 0, options, places.at_home(id), dir)?;
        config.saved = images.and_then(|images| images.router(id)).map(SavedAt::File);
        if options.roles == RolesAt::Apart {
            return Ok(JobRouter::Apart(Session::with(JournalProgress::NO_JOURNAL, &config)));
        }
        let shown = config.spill_dir.display();
        let made = std::fs::DirBuilder::new().mode(0o700).create(&config.spill_dir);
        made.with_context(|| format!("cannot create {shown}"))?;
        let router = Router::start(config, secret.clone(), events.clone());
        Ok(JobRouter::Here(router.context("cannot start a router")?))
    };
    (0..options.routers).map(start).collect()
}

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
            let started = children.spawn(Child::Agent(node));
            started.with_context(|| format!("cannot start the agent of node {node}"))?;
        }
        return Ok(());
    };
    let files = cluster.files(provided)?;
    let hear = |node| hear_launcher(inbound, node);
    match &cluster.launcher {
        Launcher::Ssh(ssh) => {
            let (here, elsewhere): (Vec<Node>, Vec<Node>) =
                nodes.partition(|node| cluster.is_here(*node));
            for node in here {
                let started = children.spawn(Child::Agent(node));
                started.with_context(|| format!("cannot start the agent of node {node}"))?;
            }
            for target in cluster.targets(&elsewhere) {
                let node = target.node();
                let started = children.launch(cluster, target, &files, hear(node));
                started.with_context(|| {
                    let host = node.map(|node| &cluster.hosts[node as usize].name);
                    let (host, ssh) = (host.map_or("other hosts", |h| h), ssh.to_string_lossy());
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
            // Whoever is to start them reads this.
            eprint!("{text}");
        }
    }
    Ok(())
}

/// What hands on what is said on the way to the agent of a node, or to those of all nodes.
pub fn hear_launcher(
    inbound: &Sender<Inbound>,
    node: Option<Node>,
) -> impl Fn(Option<String>) + Send + 'static {
    let inbound = inbound.clone();
    // Nobody listens any more only while the job ends.
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
