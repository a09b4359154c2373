//! Puts a job together, for its first controller and for one that goes on with it, and ends it.

use super::admission::{Admission, Services};
use super::agents::{Agents, Returns};
use super::alike::Alike;
use super::children::Children;
use super::clock::Clock;
use super::cpu::Held;
use super::end::End;
use super::event_file::EventFile;
use super::images_dir::{ImagesDir, SavedJob};
use super::inbound::Inbound;
use super::job::Job;
use super::jobdir::JobDir;
use super::journal::{Beginning, Journal};
use super::journal_copies::Copies;
use super::last_output::LastOutput;
use super::launcher::Cluster;
use super::measuring::Measuring;
use super::monitoring::Monitoring;
use super::options::JobOptions;
use super::outlet::Outlet;
use super::output::Printer;
use super::parts;
use super::places::{Places, RoleAddresses};
use super::refusals::Refusals;
use super::roles::figures::Figures;
use super::roles::peers::RolePeers;
use super::roles::{routers, stores};
use super::router_files::RouterFiles;
use super::stdin::Stdin;
use super::users::Unanswered;
use super::waiting_users::Users;
use crate::machine::{Config, Event, Machine, SAVED_CODE};
use anyhow::Context;
use crossbeam_channel::{bounded, Receiver, Sender};
use eyrie_interface::RolesAt;
use eyrie_placement::Placement;
use eyrie_router::RouterEvent;
use eyrie_supervision::Sweeper;
use eyrie_wire::auth::Secret;
use eyrie_wire::RouterId;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Most messages of agents, users and others that wait for the main thread.
const MAX_INBOUND: usize = 1024;
/// Most events of routers that do. Their memory is taken when the job starts.
const MAX_ROUTER_EVENTS: usize = 4096;
/// How long writing the last answers to users may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The channels to the main thread. Who sends more than they hold waits until the main thread has
/// handled some, which waits for no other thread.
pub struct Channels {
    pub inbound_in: Sender<Inbound>,
    pub inbound: Receiver<Inbound>,
    router_in: Sender<(RouterId, RouterEvent)>,
    pub router_events: Receiver<(RouterId, RouterEvent)>,
}

pub fn channels() -> Channels {
    let (inbound_in, inbound) = bounded(MAX_INBOUND);
    let (router_in, router_events) = bounded(MAX_ROUTER_EVENTS);
    Channels { inbound_in, inbound, router_in, router_events }
}

/// What a job is made of that may go on where an earlier controller has ended.
pub struct Parts {
    pub dir: JobDir,
    pub secret: Secret,
    pub event_file: EventFile,
    pub printer: Printer,
    pub placement: Placement,
    pub images: Option<ImagesDir>,
    /// What was saved there.
    pub saved: Option<SavedJob>,
}

/// Puts a job together: it listens, and no agent was started.
///
/// # Errors
/// When something of it cannot be made.
pub fn assemble(
    beginning: Beginning,
    parts: Parts,
    channels: &Channels,
) -> anyhow::Result<(Job, Option<Sweeper>, JobDir)> {
    let options = &beginning.options;
    let Parts { dir, secret, event_file, printer, placement, images, saved } = parts;
    let sweeper = start_sweeper(options, &dir).context("cannot start a process")?;
    let inbound = channels.inbound_in.clone();
    // Before anything that must be ended: from here on a signal is a message.
    parts::watch_signals(inbound.clone())?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let store = stores::start_here(
        options,
        &beginning.kvsname,
        dir.path(),
        &secret,
        images.is_some(),
        &inbound,
    )?;
    let places = Places::new(options);
    let of_saved = images.as_ref().filter(|_| saved.is_some());
    let router_files = Arc::new(RouterFiles::default());
    if let Some(images) = of_saved {
        router_files.go_on_with(saved_routers(images, options)?);
    }
    let router_in = &channels.router_in;
    let routers = routers::start_here(options, &places, dir.path(), &secret, of_saved, router_in)?;
    let admission = Arc::new(Admission::new(options.nodes + options.spares));
    let unanswered = Unanswered::default();
    let last_output = LastOutput::default();
    let services = Arc::new(Services {
        secret: secret.clone(),
        admission: Arc::clone(&admission),
        inbound: inbound.clone(),
        router_files: Arc::clone(&router_files),
        unanswered: unanswered.clone(),
        published: event_file.published(),
        output: last_output.clone(),
    });
    let control = parts::listen(&options.reach, dir.path(), &services)?;
    let mut stdin = Stdin::new(dir.path())?;
    let outlived = options.can_be_resumed();
    let children = Children::new(control, secret.clone(), options.log.clone(), outlived);
    let (monitoring, unconducted) = Monitoring::begin(options, children.controller(), &secret);
    let config = config(options, &beginning.name);
    let (machine, alike, needed_images) = match saved {
        None => (Machine::new(config), Alike::default(), None),
        Some(saved) => {
            stdin.go_on(&saved.stdin).context("cannot keep the job's input")?;
            let needed = Some(saved.machine.images());
            (Machine::go_on(config, saved.machine), Alike::of_earlier(saved.alike), needed)
        }
    };
    let machine = machine.place_by(placement);
    let alike = alike.held(Held::of(beginning.options.cpu, &beginning.program.env));
    let job = Job {
        agents: Agents::default(),
        returns: Returns::default(),
        journal: Journal::default(),
        copies: Copies::default(),
        is_replaying: false,
        events: VecDeque::new(),
        users: Users::new(unanswered),
        end: End::default(),
        refusals: Refusals::default(),
        lines: None,
        joins: None,
        clock: Clock::start(),
        role_addresses: RoleAddresses::new((options.roles != RolesAt::Nodes).then_some(places)),
        event_file,
        outlet: Outlet::new(printer, last_output),
        roles: RolePeers::new(routers, store),
        figures: Figures::new(),
        measuring: Measuring::new(options),
        monitoring,
        inbound,
        alike,
        images,
        router_files,
        needed_images,
        dir: dir.path().into(),
        admission,
        stdin,
        children,
        secret,
        machine,
        beginning,
    };
    job.hear_later(unconducted.map(Event::Note));
    Ok((job, sweeper, dir))
}

/// The process that removes the job's directory after it; none on one host, where the agents do.
fn start_sweeper(options: &JobOptions, dir: &JobDir) -> std::io::Result<Option<Sweeper>> {
    let sweeper = match (options.can_be_resumed(), &options.cluster) {
        (true, _) => {
            let save = options.images.is_some();
            let start = |lock| Sweeper::start_for(dir.path(), options.orphan_timeout, save, lock);
            dir.lock().map(start)
        }
        (false, Some(_)) => Some(Sweeper::start(dir.path())),
        (false, None) => None,
    };
    sweeper.transpose()
}

/// What routers go on with, looked at before any process is started.
fn saved_routers(images: &ImagesDir, options: &JobOptions) -> anyhow::Result<Vec<PathBuf>> {
    let files: Vec<PathBuf> =
        (0..options.routers).filter_map(|id| images.router(RouterId(id))).collect();
    if options.roles == RolesAt::Nodes {
        files.iter().try_for_each(|file| eyrie_router::verify(file))?;
    }
    Ok(files)
}

/// What the machine is told of the job.
fn config(options: &JobOptions, name: &str) -> Config {
    // On nodes any of them may be lost.
    let copies = if options.roles == RolesAt::Nodes { 2 } else { 1 };
    Config {
        job: name.into(),
        ranks: options.ranks,
        nodes: options.nodes,
        spares: options.spares,
        start: options.start(),
        slots: options.slots_of_nodes(),
        hosts: options.cluster.as_ref().map_or(Vec::new(), Cluster::names),
        routers: options.routers,
        path: options.path,
        roles_on_nodes: options.roles == RolesAt::Nodes,
        stores: copies,
        image_copies: copies,
        can_be_saved: options.images.is_some(),
        archive: options.has_archive(),
        drain_on_notice: options.drain_on_notice,
        run_time: options.run_time,
        on_suspect: options.on_suspect,
        on_failing: options.on_failing,
        checkpoint_every: options.checkpoint_every,
        checkpoint_order: options.checkpoint_order,
        checkpoint_mode: options.checkpoint_mode,
        self_contained: options.self_contained,
        heartbeat_timeout: options.heartbeat_timeout,
        agents_timeout: options.agents_timeout(),
        alone_for: options.alone_for(),
        agents_come_back: options.can_be_resumed(),
        injections: options.injections.clone(),
        domains: options.domains.as_ref().map(|of| of.domains.clone()),
        gateway: options.domains.as_ref().map(|of| of.gateway),
        joins: options.domains.as_ref().is_some_and(|of| of.joins),
    }
}

impl Job {
    /// Starts the processes of the job.
    ///
    /// # Errors
    /// When one cannot be made.
    pub fn start_parts(&mut self, dir: &JobDir) -> anyhow::Result<()> {
        let Job { children, beginning, inbound, .. } = self;
        let Beginning { options, provided, .. } = beginning;
        parts::start_agents(children, options, dir, provided, inbound)
    }
}

/// Ends a job, and removes what is left of it; returns its exit code.
pub fn finish(
    job: Job,
    channels: Channels,
    code: i32,
    sweeper: Option<Sweeper>,
    dir: JobDir,
) -> i32 {
    let unanswered = job.users.unanswered();
    // A router that waits until its events are heard would not end.
    drop(channels.router_events);
    let code = job.finish(&channels.inbound, code, sweeper.as_ref());
    // Users who still wait for an answer, or ask now, hear by this that there is none.
    drop(channels.inbound);
    unanswered.wait(ANSWER_TIMEOUT);
    if code == SAVED_CODE {
        dir.leave_old_states();
    }
    drop(dir);
    drop(sweeper);
    code
}

/// Makes the main thread look at the printer. When it has other things to hear it does so anyway.
pub fn wake(inbound: Sender<Inbound>) -> impl Fn() + Send + 'static {
    move || drop(inbound.try_send(Inbound::OutputFailed))
}
