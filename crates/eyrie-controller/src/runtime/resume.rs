//! Another controller goes on with a job: it hears again what the journal says, finds the agents of
//! the job, and takes over when they and their roles have come back.

use super::assembly::{assemble, channels, finish, wake, Parts};
use super::backlog::SavedOutput;
use super::beside::FromOutside;
use super::event_file::EventFile;
use super::images_dir::ImagesDir;
use super::inbound::{Heard, Inbound};
use super::job::Job;
use super::jobdir::{ControllerRuns, JobDir};
use super::journal::{Beginning, Entry, Head, Journal};
use super::launcher::own_ip_to;
use super::options::Reach;
use super::output::Printer;
use super::roles::peers::THE_STORE;
use super::running::Running;
use super::snapshot::Snapshot;
use super::written::Written;
use super::{hear, jobdir, journal, parts, taken_output, written};
use crate::machine::{Event, FromPeer, Peer};
use anyhow::{bail, Context};
use crossbeam_channel::Receiver;
use eyrie_agent::HAS_CONTROLLER;
use eyrie_placement::Placement;
use eyrie_store::role::StoreEvent;
use eyrie_transport::handshake::HandshakeError;
use eyrie_transport::role;
use eyrie_wire::auth::Secret;
use eyrie_wire::control::{Claim, FromAgent};
use eyrie_wire::formats::JOURNAL;
use eyrie_wire::role_address::{Addr, Interface};
use eyrie_wire::NodeId;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc, Mutex};
use std::time::{Duration, Instant};

/// How long agents and roles may take to come back, besides the time after which a silent node is
/// declared dead; then they count as lost.
const RETURN_TIMEOUT: Duration = Duration::from_secs(2);
/// How long agents of a job that has ended may take to come back, to be told so.
const LAST_TIMEOUT: Duration = Duration::from_secs(2);
/// How long to wait before an agent is asked again, and how often its host may say that
/// nothing listens there: an agent without a controller always does.
const ASK_AGAIN: Duration = Duration::from_millis(100);
const MAX_REFUSALS: u32 = 5;

/// What users say of how to go on.
#[derive(Clone, Debug)]
pub struct Resume {
    pub job: String,
    pub dir: Option<PathBuf>,
    /// The job's directory, where its name would not do.
    pub at: Option<PathBuf>,
    /// Go on with the nodes that can be reached, though most of them cannot.
    pub force: bool,
    /// Where agents write what they do, absolute.
    pub log: Option<PathBuf>,
    /// Save the job at once, and show nothing: who goes on with what is saved does.
    pub save: bool,
}

/// Goes on with a job; returns its exit code. `placement` says where ranks of lost nodes go;
/// `from_outside` is what an `eyrie run` tells that sees what becomes of this controller. `begun`
/// hears when the job can be asked.
///
/// # Errors
/// When there is no such job, its controller lives, its journal is no good, or its agents are not
/// there any more.
pub fn resume(
    resume: &Resume,
    placement: impl FnOnce(&Beginning) -> anyhow::Result<Placement>,
    from_outside: Option<mpsc::Receiver<FromOutside>>,
    begun: impl FnOnce(Running<'_>),
) -> anyhow::Result<i32> {
    let wanted = match &resume.at {
        Some(dir) => dir.clone(),
        None => jobdir::find_to_resume(&jobdir::base(resume.dir.as_deref())?, &resume.job)?,
    };
    if wanted.is_dir() && !journal::is_in(&wanted) {
        // It may just be cleared up: it is not touched.
        bail!(no_journal(&wanted));
    }
    let (dir, secret) = JobDir::take_over(&wanted)?;
    let (path, read, damaged) = newest(dir.path())?;
    let version = &read.head.beginning.version;
    let ours = journal::this_version();
    if *version != ours {
        bail!("this is Eyrie {ours}, the job's is {version}");
    }
    let placement = placement(&read.head.beginning)?;
    let kept = Journal::go_on(&path, &read);
    let kept = kept.with_context(|| format!("cannot write {}", path.display()))?;
    let journal::Read { head: Head { mut beginning, snapshot, .. }, entries, .. } = read;
    let event_file = EventFile::go_on(beginning.options.events.as_deref(), dir.path())?;
    beginning.options.log.clone_from(&resume.log);
    listen_here(&mut beginning.options.reach, snapshot.as_ref(), &entries);
    let channels = channels();
    let before = snapshot.as_ref().map_or([0; 2], Snapshot::written);
    let (written, note) = if resume.save {
        (Written::default(), None)
    } else {
        let into = taken_output::paths(&beginning);
        Written::go_on(&dir.path().join(written::FILE), before, &into)?
    };
    let printer = Printer::start(written, wake(channels.inbound_in.clone()));
    let images = beginning.options.images.as_deref().map(ImagesDir::open_again);
    let no_images =
        images.as_ref().and_then(|images| Some(format!("{:#}", images.as_ref().err()?)));
    if let (true, Some(why)) = (resume.save, &no_images) {
        bail!("the job cannot be saved: {why}");
    }
    let parts = Parts {
        dir,
        secret: secret.clone(),
        event_file,
        printer,
        placement,
        images: images.and_then(Result::ok),
        saved: None,
    };
    let (mut job, sweeper, mut dir) = assemble(beginning, parts, &channels)?;
    if resume.save {
        job.outlet.keep(SavedOutput { before, pieces: vec![] });
    }
    snapshot.map_or(Ok(()), |snapshot| job.go_on_from(snapshot))?;
    job.hear_all_again(entries);
    // A role that came before it was expected would take itself for lost.
    job.admission.open();
    job.journal = kept;
    damaged.into_iter().chain(note).for_each(|text| job.take(Event::Note(text)));
    job.wait_for_returns(&channels.inbound, &secret, resume.force)?;
    no_images.map_or(Ok(()), |why| job.lose_archive(why))?;
    job.watch_deadline();
    if let Some(from_outside) = from_outside {
        job.take(Event::Watched);
        parts::hear_outside(from_outside, channels.inbound_in.clone());
    }
    dir.own();
    begun(job.running());
    if resume.save {
        job.take(Event::Save { request: None })
    } else {
        job.stdin.start(channels.inbound_in.clone())
    }
    let code = match job.end.code() {
        Some(code) => code,
        None => job.run(&channels.inbound, &channels.router_events),
    };
    if resume.save && job.machine.has_finished() {
        job.keep_its_end()?;
    }
    Ok(finish(job, channels, code, sweeper, dir))
}

fn no_journal(dir: &Path) -> String {
    format!(
        "there is no journal of the job in {}: it was started with one host, --roles here or \
         --images, or its journal is on other hosts",
        dir.display()
    )
}

/// The journal that goes furthest, of those in the job's directory: the controller's, or a copy;
/// under the name that a controller's has. And what is said of one that is damaged.
fn newest(dir: &Path) -> anyhow::Result<(PathBuf, journal::Read, Option<String>)> {
    let (path, read, note) = furthest(dir)?;
    // Its name may be that of a copy, which an agent on this host goes on to write.
    let own = dir.join(journal::FILE);
    if path != own {
        let partial = own.with_extension("partial");
        std::fs::copy(&path, &partial).and_then(|_| std::fs::rename(&partial, &own))?;
    }
    Ok((own, read, note))
}

/// As [`newest`], and nothing is changed. A journal that is damaged is left out where a copy goes
/// as far.
pub fn furthest(dir: &Path) -> anyhow::Result<(PathBuf, journal::Read, Option<String>)> {
    let mut found: Option<(PathBuf, journal::Read)> = None;
    let mut damaged: Option<(u64, String)> = None;
    for entry in std::fs::read_dir(dir)?.flatten() {
        if !journal::is_journal(&entry.file_name().to_string_lossy()) {
            continue;
        }
        let shown = entry.path().display().to_string();
        let bytes = std::fs::read(entry.path()).with_context(|| format!("cannot read {shown}"))?;
        match journal::read(&bytes) {
            Ok(read) if found.as_ref().is_none_or(|(_, best)| best.end < read.end) => {
                found = Some((entry.path(), read));
            }
            Ok(_) => {}
            Err(at) => {
                let text = match JOURNAL.mistaken(&bytes) {
                    Some(what) => format!("{shown} cannot be read: {what}"),
                    None => format!("{shown} is damaged at byte {at} of {}", bytes.len()),
                };
                damaged = damaged.max(Some((journal::end_of_damaged(&bytes), text)));
            }
        }
    }
    let as_far = |end: u64| found.as_ref().is_some_and(|(_, best)| best.end >= end);
    let note = match damaged {
        Some((end, text)) if !as_far(end) => {
            bail!("{text}: go on with the job on another host that has a copy of the journal")
        }
        damaged => damaged.map(|(_, text)| format!("{text}: a copy of it is used")),
    };
    let (path, read) = found.with_context(|| no_journal(dir))?;
    Ok((path, read, note))
}

/// Where the agents listened for another controller, when the journal ended.
pub fn agents_of(read: &journal::Read) -> Vec<Addr> {
    let mut agents: BTreeMap<NodeId, Addr> = BTreeMap::new();
    agents.extend(
        read.head.snapshot.iter().flat_map(|snapshot| snapshot.agents.reached_at().clone()),
    );
    for entry in &read.entries {
        if let Heard::From(_, FromPeer::Agent(node, FromAgent::Reachable { addr })) = &entry.heard {
            agents.insert(*node, addr.clone());
        }
    }
    agents.into_values().collect()
}

/// On another host than the last controller's, the interface is the one towards the agents.
fn listen_here(reach: &mut Reach, snapshot: Option<&Snapshot>, entries: &[Entry]) {
    let Reach::Tcp { interface, .. } = reach else { return };
    let agents = entries.iter().rev().filter_map(|entry| match &entry.heard {
        Heard::From(_, FromPeer::Agent(_, FromAgent::Reachable { addr })) => Some(addr.clone()),
        _ => None,
    });
    let agents = agents.chain(
        snapshot.into_iter().flat_map(|snapshot| snapshot.agents.reached_at().values()).cloned(),
    );
    let mut own = agents.filter_map(|addr: Addr| match addr {
        // The way to this host itself says nothing.
        Addr::Tcp { at, .. } => own_ip_to(at).ok().filter(|own| *own != at.ip()),
        Addr::Unix(_) => None,
    });
    if let Some(ip) = own.next() {
        *interface = Interface::Ip(ip);
    }
}

/// What is known of agents that are called.
#[derive(Default)]
struct Calls {
    /// None is called any more.
    over: AtomicBool,
    /// Where another controller listens that the last one has which had one.
    other: Mutex<BTreeMap<NodeId, String>>,
}

impl Calls {
    /// An agent has said that another controller listens there, or nothing of one.
    fn has_controller(&self, node: NodeId, addr: Option<String>) {
        let mut other = self.other.lock().unwrap_or_else(|e| e.into_inner());
        match addr {
            Some(addr) => drop(other.insert(node, addr)),
            None => drop(other.remove(&node)),
        }
    }

    /// How many agents have another controller, and where that listens.
    fn other_controller(&self) -> Option<(usize, String)> {
        let other = self.other.lock().unwrap_or_else(|e| e.into_inner());
        Some((other.len(), other.values().next()?.clone()))
    }
}

impl Job {
    /// The directory in which the job could be saved cannot be had.
    fn lose_archive(&mut self, why: String) -> anyhow::Result<()> {
        if !self.machine.has_started() {
            bail!("the job was just going on with what was saved: {why}");
        }
        self.take(Event::Note(format!("the job cannot be saved any more: {why}")));
        self.take(Event::StoreLost { store: THE_STORE });
        self.write_journal();
        Ok(())
    }

    /// Comes to the state of the controller that wrote the journal.
    fn hear_all_again(&mut self, entries: Vec<Entry>) {
        let heard = entries.len();
        self.is_replaying = true;
        for entry in entries {
            self.hear_again(entry);
        }
        self.is_replaying = false;
        self.clock.go_on();
        tracing::info!(heard, now = ?self.clock.time(), "the journal was heard again");
    }

    /// Waits until the agents and the roles have come back; who has not is lost.
    fn wait_for_returns(
        &mut self,
        inbound: &Receiver<Inbound>,
        secret: &Secret,
        force: bool,
    ) -> anyhow::Result<()> {
        let nodes: Vec<NodeId> = self.agents.nodes();
        let mut missing: BTreeSet<Peer> = nodes.iter().map(|node| Peer::Agent(*node)).collect();
        missing.extend(self.machine.roles_up().map(Peer::Role));
        let calls = Arc::new(Calls::default());
        for node in &nodes {
            self.call(*node, secret, &calls);
        }
        let early = self.hear_returns(inbound, &missing);
        calls.over.store(true, Ordering::SeqCst);
        if self.returns.is_behind() {
            bail!(
                "the journal on this host ends before what some nodes have heard since: go on where \
                 the other copy is"
            );
        }
        if self.end.has_come() {
            return Ok(());
        }
        missing.retain(|peer| !self.returns.has(*peer));
        self.check_that_enough_are_back(&nodes, &missing, &calls, force)?;
        self.clock.go_on();
        self.take(Event::Resumed);
        for peer in missing {
            self.take(hear::gone(peer));
        }
        for message in early {
            self.hear(message);
        }
        self.write_journal();
        Ok(())
    }

    /// Hears agents and roles as they come back, until all of these have, or are gone, or the time
    /// is over. What else was heard meanwhile.
    fn hear_returns(
        &mut self,
        inbound: &Receiver<Inbound>,
        missing: &BTreeSet<Peer>,
    ) -> Vec<Inbound> {
        // Some have been told of a job's end.
        let patience = match self.end.code() {
            Some(_) => LAST_TIMEOUT,
            None => RETURN_TIMEOUT + self.beginning.options.heartbeat_timeout,
        };
        let until = Instant::now() + patience;
        let mut early = Vec::new();
        let mut gone = BTreeSet::new();
        while !missing.iter().all(|peer| self.returns.has(*peer) || gone.contains(peer)) {
            let Some(left) = until.checked_duration_since(Instant::now()) else { break };
            let message = match inbound.recv_timeout(left) {
                Ok(
                    up @ (Inbound::AgentUp { .. }
                    | Inbound::RoleUp { .. }
                    | Inbound::Heard(Heard::From(
                        _,
                        FromPeer::Store(_, StoreEvent::Listening(_)),
                    ))),
                ) => {
                    self.hear(up);
                    continue;
                }
                Ok(message) => message,
                Err(_) => break,
            };
            match &message {
                Inbound::Heard(Heard::Event(Event::AgentGone(node))) => {
                    gone.extend(self.with_roles(*node))
                }
                Inbound::Gone { by: by @ Peer::Agent(node), link, .. }
                    if self.is_present(*by, *link) =>
                {
                    gone.extend(self.with_roles(*node));
                }
                Inbound::Heard(Heard::From(
                    _,
                    FromPeer::Agent(_, FromAgent::RoleEnded { role, .. }),
                )) => drop(gone.insert(Peer::Role(*role))),
                _ => {}
            }
            early.push(message);
        }
        early
    }

    /// Of these nodes half must be back, or `force` says that the others are lost: else they may
    /// have another controller.
    fn check_that_enough_are_back(
        &self,
        nodes: &[NodeId],
        missing: &BTreeSet<Peer>,
        calls: &Calls,
        force: bool,
    ) -> anyhow::Result<()> {
        let back = nodes.iter().filter(|node| !missing.contains(&Peer::Agent(**node))).count();
        let are_few = back * 2 <= nodes.len() && back < nodes.len();
        if let (true, Some((with, addr))) = (are_few, calls.other_controller()) {
            let name = &self.beginning.name;
            bail!(ControllerRuns(format!(
                "job {name} runs, and {with} of its {} nodes have a controller, at {addr}: see \
                 `eyrie status {name}` there",
                nodes.len(),
            )));
        }
        if are_few && !force {
            bail!(
                "{back} of {} nodes can be reached: the others may go on without this host. Where \
                 they are lost, go on with `eyrie resume --force {}`",
                nodes.len(),
                self.beginning.name
            );
        }
        Ok(())
    }

    /// A node and the roles on it.
    fn with_roles(&self, node: NodeId) -> Vec<Peer> {
        let on_it = self.machine.roles().filter(|(_, on)| *on == node);
        on_it.map(|(role, _)| Peer::Role(role)).chain([Peer::Agent(node)]).collect()
    }

    /// Tells the agent of a node, again and again, that this controller is there.
    fn call(&self, node: NodeId, secret: &Secret, calls: &Arc<Calls>) {
        let Some(agent) = self.agents.reached_at(node).cloned() else { return };
        let claim = Claim::Controller { addr: self.children.controller().clone() };
        let secret = secret.clone();
        let calls = Arc::clone(calls);
        let inbound = self.inbound.clone();
        std::thread::spawn(move || {
            let mut refusals = 0;
            while !calls.over.load(Ordering::SeqCst) && refusals < MAX_REFUSALS {
                let called = role::connect(&agent, &secret, &claim);
                calls.has_controller(node, called.as_ref().err().and_then(other_controller));
                match called {
                    Ok(_) => return,
                    Err(e) => {
                        tracing::info!(%node, %agent, "not reached: {e}");
                        refusals = if nothing_listens(&e) { refusals + 1 } else { 0 };
                    }
                }
                std::thread::sleep(ASK_AGAIN);
            }
            if refusals == MAX_REFUSALS {
                // The main thread receives no more only while the job ends.
                let _ = inbound.send(Inbound::Heard(Event::AgentGone(node).into()));
            }
        });
    }
}

/// Where the controller listens that the agent has.
fn other_controller(refusal: &HandshakeError) -> Option<String> {
    let HandshakeError::Refused(text) = refusal else { return None };
    text.strip_prefix(HAS_CONTROLLER).map(str::to_string)
}

/// Whether the host says that nothing listens there.
pub fn nothing_listens(error: &HandshakeError) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, NotFound};
    let HandshakeError::Io(e) = error else { return false };
    matches!(e.kind(), ConnectionRefused | NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::formats;

    #[test]
    fn a_file_of_another_format_is_no_journal_and_is_named() {
        let dir = tempfile::tempdir().unwrap();
        for other in formats::ALL.into_iter().filter(|other| **other != JOURNAL) {
            let bytes = [&other.magic[..], &[0; 100]].concat();
            std::fs::write(dir.path().join(journal::FILE), bytes).unwrap();
            let refused = furthest(dir.path()).map(drop).unwrap_err().to_string();
            assert!(refused.contains(&format!("it is {}", other.name)), "{refused}");
        }
    }
}
