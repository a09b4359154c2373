//! The runtime of a job: sockets, processes, timers and files around the state machine. It decides
//! nothing.

mod admission;
mod alike;
mod children;
mod commands;
mod determinants;
mod event_file;
mod finish;
mod hear;
mod inbound;
mod job;
pub mod jobdir;
mod joining;
mod launcher;
mod link;
mod listener;
mod options;
mod output;
mod parts;
mod places;
pub mod program;
mod refusals;
mod roles;
mod routers;
mod show;
mod stdin;
mod store;
pub mod users;

pub use launcher::{Cluster, Launcher, ENV_NO_KILL, ENV_SPARES, SLURM_NODE};
pub use options::{JobOptions, Reach, RolesAt};
pub use program::NotRunnable;

use crate::machine::{Config, Event, Machine};
use admission::{Admission, Services};
use alike::Alike;
use anyhow::Context;
use children::{Child, Children};
use crossbeam_channel::{bounded, Sender};
use determinants::Gathered;
use event_file::EventFile;
use eyrie_placement::Placement;
use eyrie_transport::Directory;
use eyrie_wire::control::Role;
use inbound::Inbound;
use job::{Job, Users};
use jobdir::JobDir;
use output::Printer;
use places::Places;
use refusals::Refusals;
use routers::Routers;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stdin::Stdin;

/// Most messages of agents, users and others that wait for the main thread.
const MAX_INBOUND: usize = 1024;
/// Most events of routers that do.
const MAX_ROUTER_EVENTS: usize = 65536;

/// Runs a job to its end; returns the exit code. `placement` says where ranks of lost nodes go.
///
/// # Errors
/// When the job cannot be started.
pub fn run(options: JobOptions, placement: Box<dyn Placement>) -> anyhow::Result<i32> {
    options::check(&options)?;
    let mut program = program::prepare(&options.argv)?;
    let event_file = EventFile::create(options.events.as_deref())?;
    let base = jobdir::base(options.dir.as_deref())?;
    let name = options.job.clone().unwrap_or_else(|| format!("job-{}", std::process::id()));
    let kvsname = format!("eyrie_{:016x}", u64::from_le_bytes(eyrie_wire::auth::random()));
    let (dir, secret) = JobDir::create(&base, &name, options.routers, &kvsname, options.ranks)?;
    let cleaned = clean(&base);
    // On one host the agents remove it. It ends when this function does.
    let sweeper = options.cluster.is_some().then(|| eyrie_agent::Sweeper::start(dir.path()));
    let sweeper = sweeper.transpose().context("cannot start a process")?;
    let copied = options.cluster.as_ref().is_some_and(|cluster| cluster.send_binaries);
    let provided = vec![
        program::link_provider(&mut program, dir.path())?,
        program::preload_calls(&mut program, dir.path(), copied)?,
    ];
    // Who sends more than that waits until the main thread has handled some: it waits for nobody.
    let (inbound_in, inbound) = bounded(MAX_INBOUND);
    let (router_in, router_events) = bounded(MAX_ROUTER_EVENTS);
    // Before anything that must be ended: from here on a signal is a message.
    parts::watch_signals(inbound_in.clone())?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let printer = Printer::start(wake(inbound_in.clone()));
    let stores = parts::start_stores(&options, &kvsname, &dir, &secret, inbound_in.clone())?;
    let places = Places::new(&options);
    let routers = parts::start_routers(&options, &places, dir.path(), &secret, &router_in)?;
    let admission = Arc::new(Admission::new(options.nodes + options.spares));
    let services = Arc::new(Services {
        secret: secret.clone(),
        admission: Arc::clone(&admission),
        inbound: inbound_in.clone(),
    });
    let control = parts::listen(&options.reach, dir.path(), &services)?;
    let stdin = Stdin::start(dir.path(), inbound_in.clone())?;
    let mut children = Children::new(control, secret, options.log.clone());
    let routers_apart = (0..options.routers).map(|id| Role::Router { id, generation: 0 });
    let apart: Vec<Role> = match options.roles {
        RolesAt::Here => vec![],
        RolesAt::Apart => routers_apart.chain([Role::Store { id: store::THE_STORE }]).collect(),
        RolesAt::Nodes => vec![],
    };
    for role in apart {
        admission.expect_role(role);
        let started = children.spawn(Child::Role(role));
        started.with_context(|| format!("cannot start {role}"))?;
    }
    parts::start_agents(&mut children, &options, &dir, &provided, &inbound_in)?;
    // On nodes any of them may be lost.
    let copies = if options.roles == RolesAt::Nodes { 2 } else { 1 };
    let machine = Machine::new(Config {
        job: name.clone(),
        ranks: options.ranks,
        nodes: options.nodes,
        spares: options.spares,
        start: options.start(),
        hosts: options.cluster.as_ref().map_or(Vec::new(), Cluster::names),
        routers: options.routers,
        roles_on_nodes: options.roles == RolesAt::Nodes,
        stores: copies,
        image_copies: copies,
        checkpoint_every: options.checkpoint_every,
        checkpoint_order: options.checkpoint_order,
        checkpoint_mode: options.checkpoint_mode,
        heartbeat_timeout: options.heartbeat_timeout,
        agents_timeout: options.agents_timeout(),
        injections: options.injections.clone(),
    })
    .place_by(placement);
    // Roles on nodes are the machine's.
    let places = (options.roles != RolesAt::Nodes).then_some(places);
    let mut job = Job {
        name,
        kvsname,
        links: BTreeMap::new(),
        determinants: Gathered::default(),
        events: VecDeque::new(),
        output: None,
        shared: vec![BTreeSet::new(); options.ranks as usize],
        stdin_wanted: None,
        users: Users::default(),
        end: None,
        quiet_end: false,
        reader_left: false,
        refusals: Refusals::default(),
        begun: Instant::now(),
        drawn: Instant::now(),
        waiting_said: Duration::ZERO,
        options,
        program,
        event_file,
        printer,
        stores,
        store_bytes: 0,
        routers: Routers::new(routers),
        places,
        directory: Directory::default(),
        store_addr: None,
        provided,
        came: BTreeSet::new(),
        launcher_words: BTreeMap::new(),
        joining: BTreeMap::new(),
        inbound: inbound_in.clone(),
        alike: Alike::default(),
        dir: dir.path().into(),
        admission,
        stdin,
        children,
        machine,
    };
    cleaned.into_iter().for_each(|text| job.tell(Event::Note(text)));
    job.options.reach.warning().into_iter().for_each(|text| job.tell(Event::Note(text)));
    let warning = job.options.cluster.as_ref().and_then(Cluster::warning);
    warning.into_iter().for_each(|text| job.tell(Event::Note(text)));
    let code = job.run(&inbound, &router_events);
    let code = job.finish(&inbound, code, sweeper.as_ref());
    drop(dir);
    drop(sweeper);
    Ok(code)
}

/// Makes the main thread look at the printer. When it has other things to hear it does so anyway.
fn wake(inbound: Sender<Inbound>) -> impl Fn() + Send + 'static {
    move || drop(inbound.try_send(Inbound::OutputFailed))
}

/// Removes what dead jobs left below `base`; says how much.
fn clean(base: &std::path::Path) -> Vec<String> {
    let (mut removed, mut said) = (Vec::new(), Vec::new());
    for job in jobdir::dead_jobs(base) {
        let (name, amount) = (job.name.clone(), job.amount);
        match job.remove() {
            Ok(()) => removed.push((name, amount)),
            Err(e) => said.push(format!("cannot remove what dead job {name} left: {e}")),
        }
    }
    if !removed.is_empty() {
        said.push(format!("removed what dead jobs left: {}", jobdir::in_words(&removed)));
    }
    said
}
