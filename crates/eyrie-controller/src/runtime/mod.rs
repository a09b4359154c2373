//! The runtime of a job: sockets, processes, timers and files around the state machine. It decides
//! nothing.

mod admission;
mod agents;
mod alike;
mod arrivals;
mod assembly;
mod backlog;
mod beside;
mod children;
mod clock;
mod commands;
mod cpu;
mod deadline;
mod durable;
mod elsewhere;
mod end;
mod event_file;
mod health;
mod hear;
mod held;
mod images_dir;
mod inbound;
mod job;
pub mod jobdir;
mod joining;
mod journal;
mod journal_copies;
mod last_output;
mod launcher;
mod link;
mod listener;
mod measuring;
mod monitoring;
mod network;
mod new_domain;
mod options;
mod outlet;
mod output;
mod parts;
mod places;
pub mod program;
mod publishing;
mod refusals;
mod resume;
mod roles;
mod router_files;
mod running;
mod save_files;
mod seek;
mod sending;
mod shorten;
mod show;
mod shutdown;
mod snapshot;
mod stdin;
mod subscribers;
mod taken_output;
pub mod users;
mod waiting_users;
mod watching;
mod written;

pub use beside::{Beside, FromOutside, LineChange, LineIs, NewSite, Spared, Stop};
pub use elsewhere::Elsewhere;
pub use event_file::appended;
pub use eyrie_keeper::check as check_ledgers;
pub use jobdir::ControllerRuns;
pub use journal::Beginning;
pub use launcher::{is_here, lead, Cluster, Launcher, ENV_NO_KILL, ENV_SPARES, SLURM_NODE};
pub use options::{InDomain, JobNetwork, JobOptions, Reach, Ways};
pub use parts::passed_signals;
pub use program::NotRunnable;
pub use resume::{resume, Resume};
pub use running::Running;

use crate::machine::Event;
use alike::Alike;
use anyhow::{bail, Context};
use assembly::{assemble, channels, finish, wake, Parts};
use backlog::SavedOutput;
use cpu::Held;
use event_file::EventFile;
use eyrie_host::{in_common, lacking, look_at_node};
use eyrie_image::processor::Level;
use eyrie_placement::Placement;
use eyrie_store::role::StoreCommand;
use eyrie_wire::agent::{ENV_DROP_SOCKETS, ENV_RECORD};
use images_dir::{ImagesDir, SavedJob};
use inbound::Inbound;
use jobdir::JobDir;
use journal::Journal;
use output::Printer;
use roles::peers::THE_STORE;
use signal_hook::consts::SIGCHLD;
use written::Written;

/// A directory of images, held for the job that is to go on with what was saved there.
pub struct Resumption {
    images: ImagesDir,
    saved: Option<SavedJob>,
}

impl Resumption {
    /// Opens the directory.
    ///
    /// # Errors
    /// When it cannot be read, is of another version of Eyrie, or a job runs that has its images
    /// there.
    pub fn open(images: &std::path::Path) -> anyhow::Result<Resumption> {
        let images = ImagesDir::open(images)?;
        let saved = images.saved()?;
        let version = saved.as_ref().map(|saved| saved.beginning.version.as_str());
        let ours = journal::this_version();
        let shown = images.path().display();
        match version {
            Some(theirs) if theirs != ours => {
                bail!("this is Eyrie {ours}, and {theirs} saved the job in {shown}")
            }
            _ => Ok(Resumption { images, saved }),
        }
    }

    /// The name of the job that was saved there, if one was.
    pub fn name(&self) -> Option<&str> {
        self.saved.as_ref().map(|saved| saved.beginning.name.as_str())
    }

    /// What the job was asked to be that was saved there, if one was.
    pub fn options(&self) -> Option<&JobOptions> {
        self.saved.as_ref().map(|saved| &saved.beginning.options)
    }
}

/// Runs a job to its end; returns the exit code. `resumption`: it begins with what was saved there,
/// if anything was. `placement` says where ranks of lost nodes go. `notes` are events at the
/// beginning. `beside`: what goes on in this process besides. `begun` hears when the job can be
/// asked.
///
/// # Errors
/// When the job cannot be started.
pub fn run(
    options: JobOptions,
    resumption: Option<Resumption>,
    placement: Placement,
    notes: Vec<String>,
    beside: Option<Beside>,
    begun: impl FnOnce(Running<'_>),
) -> anyhow::Result<i32> {
    options::check(&options)?;
    let goes_on = resumption.is_some();
    let (images, saved) = match resumption {
        Some(Resumption { images, saved }) => (Some(images), saved),
        None => (options.images.as_deref().map(without_saved_job).transpose()?, None),
    };
    match (&images, &saved) {
        (Some(images), None) => images.begin_anew()?,
        (Some(images), Some(saved)) => show_the_rest(images, saved)?,
        (None, _) => {}
    }
    if let Some(code) = saved.as_ref().and_then(|saved| saved.machine.code()) {
        // It had come to its end, and all that it has printed was shown just now.
        if let Some(images) = images {
            images.end(true);
        }
        return Ok(code);
    }
    let (mut beginning, of_cpu) = begin(options, saved.as_ref())?;
    let base = jobdir::base(beginning.options.dir.as_deref())?;
    let Beginning { name, kvsname, options, .. } = &beginning;
    let (dir, secret) =
        JobDir::create(&base, name, options.routers_and_gateway(), kvsname, options.ranks)?;
    let event_file = EventFile::create(beginning.options.events.as_deref(), dir.path())?;
    let cleaned = clean(&base);
    provide(&mut beginning, dir.path(), saved.is_some())?;
    can_go_on_here(&beginning, saved.as_ref())?;
    // Wherever the job is gone on with, it must be there: the ranks know it.
    beginning.options.dir = beginning.options.dir.is_some().then_some(base);
    let (journal, written) = if beginning.options.can_be_resumed() {
        (
            Journal::begin(dir.path(), &beginning).context("cannot write the journal")?,
            Written::create(&dir.path().join(written::FILE))?,
        )
    } else {
        (Journal::default(), Written::default())
    };
    let channels = channels();
    let printer = Printer::start(written, wake(channels.inbound_in.clone()));
    let parts = Parts { dir, secret, event_file, printer, placement, images, saved };
    let (mut job, sweeper, dir) = assemble(beginning, parts, &channels)?;
    job.admission.open();
    job.journal = journal;
    if let Some(Beside { spared, ended, lines, joins, from_outside }) = beside {
        job.children.spare(spared, ended);
        // One that has ended already did so before signals were heard.
        let _ = channels.inbound_in.send(Inbound::Signal(SIGCHLD));
        job.lines = Some(lines);
        job.joins = joins;
        parts::hear_outside(from_outside, channels.inbound_in.clone());
    }
    let warnings = [
        job.beginning.options.reach.warning(),
        job.beginning.options.cluster.as_ref().and_then(Cluster::warning),
    ];
    let anew = (goes_on && job.needed_images.is_none())
        .then(|| "nothing was saved there: the job starts from its beginning".to_string());
    let said = cleaned.into_iter().chain(warnings.into_iter().flatten());
    let said = said.chain(notes).chain(anew).chain(of_cpu);
    said.for_each(|text| job.take(Event::Note(text)));
    if job.needed_images.is_some() {
        job.send_store(THE_STORE, StoreCommand::Inventory);
    }
    job.start_parts(&dir)?;
    begun(job.running());
    job.stdin.start(channels.inbound_in.clone());
    job.watch_deadline();
    let code = job.run(&channels.inbound, &channels.router_events);
    Ok(finish(job, channels, code, sweeper, dir))
}

/// Goes on with a job that was saved in a directory, as it was asked for and on the same hosts.
/// `begun` hears when the job can be asked.
///
/// # Errors
/// When nothing was saved there; as [`run`].
pub fn go_on(
    images: &std::path::Path,
    placement: impl FnOnce(&JobOptions) -> anyhow::Result<Placement>,
    begun: impl FnOnce(Running<'_>),
) -> anyhow::Result<i32> {
    let resumption = Resumption::open(images)?;
    let Some(options) = resumption.options().cloned() else {
        bail!("nothing was saved in {}", images.display());
    };
    // What was asked for by the clock has happened, and the events of that time stay.
    let images = Some(resumption.images.path().into());
    let mut options = JobOptions { injections: vec![], events: None, images, ..options };
    options.reach.find_anew(options.cluster.as_ref())?;
    let placement = placement(&options)?;
    run(options, Some(resumption), placement, Vec::new(), None, begun)
}

/// Shows what the ranks of a saved job had printed and no controller has shown yet.
fn show_the_rest(images: &ImagesDir, saved: &SavedJob) -> anyhow::Result<()> {
    let (Some(SavedOutput { before, pieces }), Some(file)) = (&saved.unshown, images.shown())
    else {
        return Ok(());
    };
    let (mut written, note) = Written::go_on(&file, *before, &[])?;
    if let Some(text) = note {
        eprintln!("eyrie: {text}");
    }
    let mut show = |(stream, bytes): &(_, Vec<u8>)| written.write(*stream, bytes);
    pieces.iter().try_for_each(&mut show).context("cannot write what the ranks have printed")
}

/// The directory of images of a job that begins anew: what was saved must not be lost for it.
fn without_saved_job(path: &std::path::Path) -> anyhow::Result<ImagesDir> {
    let images = ImagesDir::open(path)?;
    if images.saved()?.is_some() {
        let shown = images.path().display();
        bail!(
            "a job was saved in {shown}: go on with it by --resume-from {shown}, or remove that \
             directory"
        );
    }
    Ok(images)
}

/// What a job is made for: what users ask for now, but for what its ranks know already.
fn begin(
    options: JobOptions,
    saved: Option<&SavedJob>,
) -> anyhow::Result<(Beginning, Vec<String>)> {
    let version = journal::this_version();
    if let Some(SavedJob { beginning: before, .. }) = saved {
        let JobOptions { ranks, routers, dir, argv, self_contained, cpu, .. } =
            before.options.clone();
        if options.self_contained && !self_contained {
            bail!(
                "the saved job was started without --self-contained, so its images need the files \
                 of its program: leave it out to go on with them"
            );
        }
        if options.cpu.is_some() && options.cpu != cpu {
            bail!(
                "the ranks of the saved job were started with {}: leave --cpu out",
                cpu.map_or("all of their processors".into(), |cpu| format!("--cpu {}", cpu.name()))
            );
        }
        let options = JobOptions { ranks, routers, dir, argv, self_contained, cpu, ..options };
        let name = options.job.clone().unwrap_or_else(|| before.name.clone());
        let beginning = Beginning { version, name, options, provided: vec![], ..before.clone() };
        return Ok((beginning, vec![]));
    }
    let mut program = program::prepare(&options.argv)?;
    if options.drop_sockets {
        program.env.push((ENV_DROP_SOCKETS.into(), "1".into()));
    }
    let level = known_level(&options)?;
    let notes = level.map(|level| cpu::hold(&level, &mut program.env)).unwrap_or_default();
    let name = options.job.clone().unwrap_or_else(|| format!("job-{}", std::process::id()));
    let of_domains = options.domains.as_ref().map(|of| of.kvsname.clone());
    let kvsname = of_domains.unwrap_or_else(eyrie_supervision::place::new_name);
    Ok((Beginning { version, name, kvsname, options, program, provided: vec![] }, notes))
}

/// The level that ranks are held to; `None`: to none, or to what hosts have that have not come yet.
///
/// # Errors
/// When the ranks run on this host, which lacks it.
fn known_level(options: &JobOptions) -> anyhow::Result<Option<Level>> {
    let Some(asked) = options.cpu else { return Ok(None) };
    let is_here = options.cluster.is_none();
    let here = look_at_node();
    let Some(level) = Level::named(asked.name()) else {
        return Ok(in_common([&here].into_iter()).filter(|_| is_here));
    };
    match lacking(&level, &here).filter(|_| is_here) {
        Some(lacking) => bail!(
            "this host's CPU lacks {lacking} of --cpu {}: take a lower level, or --cpu common",
            asked.name()
        ),
        None => Ok(Some(level)),
    }
}

/// Puts what ranks need into the job's directory, and tells their program where it is. `known`: it
/// knows.
fn provide(beginning: &mut Beginning, dir: &std::path::Path, known: bool) -> anyhow::Result<()> {
    let copied = beginning.options.cluster.as_ref().is_some_and(|cluster| cluster.send_binaries);
    let mut told = beginning.program.clone();
    beginning.provided = vec![program::link_provider(&mut told, dir)?];
    beginning.provided.extend(program::preload(&mut told, dir, copied)?);
    if !beginning.options.record {
        told.env.push((ENV_RECORD.into(), "off".into()));
    }
    if !known {
        beginning.program = told;
    }
    Ok(())
}

/// Refuses to go on with a saved job on a host that does not restore its images. Other hosts are
/// compared when they join.
fn can_go_on_here(beginning: &Beginning, saved: Option<&SavedJob>) -> anyhow::Result<()> {
    let Some(saved) = saved.filter(|_| beginning.options.cluster.is_none()) else { return Ok(()) };
    let (name, facts) = alike::this_host(beginning);
    let held = Held::of(beginning.options.cpu, &beginning.program.env);
    let images = beginning.options.image_files();
    match Alike::of_earlier(saved.alike.clone()).held(held).obstacle(&name, &facts, images) {
        Some(why) => bail!("the saved job cannot go on here: {why}. What was saved stays"),
        None => Ok(()),
    }
}

/// Removes what dead jobs left below `base`; says how much.
fn clean(base: &std::path::Path) -> Vec<String> {
    let mut removed = Vec::new();
    let mut said = Vec::new();
    for job in jobdir::dead_jobs(base) {
        let name = job.name.clone();
        let amount = job.amount;
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
