//! The parts that a job is made of besides its agents: store, routers, signals.

use super::inbound::Inbound;
use super::jobdir::JobDir;
use super::link::Remote;
use super::options::JobOptions;
use super::routers::JobRouter;
use super::store::JobStore;
use anyhow::Context;
use crossbeam_channel::Sender;
use eyrie_router::{Router, RouterEvent};
use eyrie_store::role::{self, StoreRole};
use eyrie_transport::{Addr, Directory, RouterId};
use eyrie_wire::auth::Secret;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use std::os::unix::fs::DirBuilderExt;

pub fn start_store(
    options: &JobOptions,
    dir: &JobDir,
    secret: &Secret,
    inbound: Sender<Inbound>,
) -> anyhow::Result<JobStore> {
    let listen = Addr::Unix(dir.path().join("store.sock"));
    let config = role::Config { dir: dir.path().join("store"), listen };
    if options.roles_apart {
        return Ok(JobStore::Apart(Remote::new(&config)?));
    }
    // Nobody listens any more only while the job ends.
    let tell = move |event| drop(inbound.send(Inbound::Store(event)));
    Ok(JobStore::Here(StoreRole::start(&config, secret.clone(), tell)?))
}

/// Who is where: the homes of ranks go round the routers.
pub fn directory(options: &JobOptions, dir: &JobDir) -> Directory {
    let routers = options.routers;
    let socket = |id| Addr::Unix(dir.path().join(format!("router-{id}.sock")));
    Directory {
        epoch: 1,
        home: (0..options.ranks).map(|rank| rank % routers).collect(),
        routers: (0..routers).map(socket).collect(),
    }
}

pub fn start_router(
    id: RouterId,
    options: &JobOptions,
    directory: &Directory,
    dir: &JobDir,
    secret: &Secret,
    events: Sender<(RouterId, RouterEvent)>,
) -> anyhow::Result<JobRouter> {
    let spill_dir = dir.path().join(format!("log-{id}"));
    std::fs::DirBuilder::new()
        .mode(0o700)
        .create(&spill_dir)
        .with_context(|| format!("cannot create {}", spill_dir.display()))?;
    let free = super::jobdir::free_bytes(&spill_dir)?;
    let config = eyrie_router::Config {
        id,
        at_home: directory.at_home(id),
        listen: directory.routers[id as usize].clone(),
        spill_dir,
        log_memory: options.log_memory,
        log_disk: options.log_disk.unwrap_or(free / 2 / u64::from(options.routers)),
    };
    if options.roles_apart {
        return Ok(JobRouter::Apart(Remote::new(&config)?));
    }
    let router = Router::start(config, secret.clone(), events).context("cannot start a router")?;
    Ok(JobRouter::Here(router))
}

/// Turns signals into messages.
pub fn watch_signals(inbound: Sender<Inbound>) -> anyhow::Result<()> {
    // SAFETY: ignoring a signal; reading a terminal that belongs to others then fails instead of
    // stopping us.
    unsafe { libc::signal(libc::SIGTTIN, libc::SIG_IGN) };
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP, SIGCHLD])?;
    std::thread::spawn(move || {
        for signal in signals.forever() {
            if inbound.send(Inbound::Signal(signal)).is_err() {
                return;
            }
        }
    });
    Ok(())
}
