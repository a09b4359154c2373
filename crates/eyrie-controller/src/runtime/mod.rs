//! The runtime of a job: sockets, processes, timers and files around the state machine. It decides
//! nothing.

mod admission;
mod alike;
mod assembly;
mod children;
mod commands;
mod determinants;
mod durable;
mod event_file;
mod finish;
mod hear;
mod inbound;
mod job;
pub mod jobdir;
mod joining;
mod journal;
mod launcher;
mod link;
mod listener;
mod options;
mod output;
mod parts;
mod places;
pub mod program;
mod refusals;
mod resume;
mod roles;
mod routers;
mod show;
mod stdin;
mod store;
pub mod users;
mod written;

pub use journal::Beginning;
pub use launcher::{Cluster, Launcher, ENV_NO_KILL, ENV_SPARES, SLURM_NODE};
pub use options::{JobOptions, Reach, RolesAt};
pub use program::NotRunnable;
pub use resume::{resume, Resume};

use anyhow::Context;
use assembly::{assemble, channels, finish, wake, Parts};
use event_file::EventFile;
use eyrie_placement::Placement;
use inbound::Heard;
use jobdir::JobDir;
use journal::Journal;
use output::Printer;
use written::Written;

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
    let copied = options.cluster.as_ref().is_some_and(|cluster| cluster.send_binaries);
    let provided = vec![
        program::link_provider(&mut program, dir.path())?,
        program::preload_calls(&mut program, dir.path(), copied)?,
    ];
    let beginning = Beginning {
        version: env!("CARGO_PKG_VERSION").into(),
        name,
        kvsname,
        options,
        program,
        provided,
    };
    let (journal, written) = match beginning.options.can_be_resumed() {
        true => (
            Journal::begin(dir.path(), &beginning).context("cannot write the journal")?,
            Written::create(&dir.path().join(written::FILE))?,
        ),
        false => (Journal::default(), Written::default()),
    };
    let channels = channels();
    let printer = Printer::start(written, wake(channels.inbound_in.clone()));
    let parts = Parts { dir, secret, event_file, printer, placement };
    let (mut job, sweeper, dir) = assemble(beginning, parts, &channels)?;
    job.admission.open();
    job.journal = journal;
    let warnings =
        [job.options.reach.warning(), job.options.cluster.as_ref().and_then(Cluster::warning)];
    let said = cleaned.into_iter().chain(warnings.into_iter().flatten());
    said.for_each(|text| job.take(Heard::Note(text)));
    job.start_parts(&dir)?;
    job.stdin.start(channels.inbound_in.clone());
    let code = job.run(&channels.inbound, &channels.router_events);
    Ok(finish(job, &channels.inbound, code, sweeper, dir))
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
