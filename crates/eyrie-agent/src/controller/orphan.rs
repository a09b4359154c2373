//! An agent without a controller: its ranks and roles go on, its messages are kept, and it waits
//! for another controller, which connects to the agent. It ends when its own controller lives and
//! has declared it dead, or when no controller comes in time.

use crate::background::{Background, Done, Reporter};
use crate::controller::connection::{connect, probe, Connection, Probed};
use crate::controller::contact::{Contact, Waiting, HAS_CONTROLLER};
use crate::controller::journal::JournalCopy;
use crate::host_dir::HostDir;
use crate::AgentConfig;
use eyrie_supervision::saver;
use eyrie_transport::handshake::HandshakeError;
use eyrie_transport::server::{self, Service};
use eyrie_transport::Stream;
use eyrie_wire::auth::Secret;
use eyrie_wire::control::{Claim, FromAgent, Orphans};
use eyrie_wire::role_address::Addr;
use eyrie_wire::NodeId;
use rustix::process::Pid;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often an orphan tries whether its controller can be reached after all.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// Listens for another controller.
struct ControllerListener {
    secret: Secret,
    contact: Arc<Contact>,
    reporter: Reporter,
}

impl Service for ControllerListener {
    fn secret(&self) -> &Secret {
        &self.secret
    }

    fn admit(&self, claim: &Claim) -> Result<(), String> {
        match claim {
            Claim::Controller { .. } if self.contact.is_open() => Ok(()),
            Claim::Controller { .. } => Err(format!("{HAS_CONTROLLER}{}", self.contact.addr())),
            Claim::Attached if self.contact.is_open() => Err("it has no controller".into()),
            Claim::Attached => Ok(()),
            _ => Err("this is an agent".into()),
        }
    }

    fn serve(&self, claim: Claim, _: Stream) {
        if let Claim::Controller { addr } = claim {
            self.reporter.report(Done::Controller(addr));
        }
    }

    // The peer learns of its refusal in the handshake.
    fn refused(&self, _: Option<Claim>, _: HandshakeError) {}
}

/// The agent and its controller: which one it has, and what becomes of the job without one.
pub struct Attachment {
    node: NodeId,
    secret: Secret,
    /// Where the controller listens.
    controller: Addr,
    /// Where processes on this host write their log.
    log: Option<PathBuf>,
    /// Its contact with the controller, and how long it waits for another one; `None`: it ends
    /// without one.
    waiting: Option<Waiting>,
    /// The process that saves the job, which outlives this one.
    saver: Option<Pid>,
    /// The copy of the controller's journal that is kept here.
    journal: JournalCopy,
}

impl Attachment {
    /// The agent of this node has this controller.
    pub fn new(config: &AgentConfig) -> Attachment {
        Attachment {
            node: config.node,
            secret: config.secret.clone(),
            controller: config.controller.clone(),
            log: config.log.clone(),
            waiting: None,
            saver: None,
            journal: JournalCopy::default(),
        }
    }

    /// The number of this node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Where the controller listens.
    pub fn controller(&self) -> &Addr {
        &self.controller
    }

    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Where processes on this host write their log.
    pub fn log(&self) -> Option<&Path> {
        self.log.as_deref()
    }

    /// The process that saves the job, if there is one.
    pub fn saver(&self) -> Option<Pid> {
        self.saver
    }

    /// The controller has sent something.
    pub fn contacted(&self) {
        if let Some(waiting) = &self.waiting {
            waiting.contacted();
        }
    }

    /// When the agent ends if no other controller comes.
    pub fn ends_at(&self) -> Option<Instant> {
        self.waiting.as_ref()?.until
    }

    /// When something is to be done here next.
    pub fn next_deadline(&self) -> Option<Instant> {
        let waiting = self.waiting.as_ref()?;
        let times = [waiting.until, waiting.save_at, waiting.contact.opens_at()];
        times.into_iter().flatten().min()
    }

    /// Keeps a piece of the controller's journal, and returns the answer.
    pub fn keep_journal(
        &mut self,
        dir: Option<&HostDir>,
        at: u64,
        bytes: &[u8],
        begins: bool,
        whole: bool,
    ) -> FromAgent {
        let of = (dir.map(HostDir::path), self.node, &self.secret);
        FromAgent::JournalKept(self.journal.keep(of, at, bytes, begins, whole))
    }

    /// Listens for another controller from now on.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn prepare_to_wait(
        &mut self,
        orphans: &Orphans,
        dir: Option<&HostDir>,
        background: &Background,
        connection: &mut Connection,
    ) -> Result<(), String> {
        let contact = Contact::new(orphans.heartbeat_timeout, self.controller.to_string());
        let contact = Arc::new(contact);
        let listener = ControllerListener {
            secret: self.secret.clone(),
            contact: Arc::clone(&contact),
            reporter: background.reporter(),
        };
        let addr = server::listen(&orphans.listen, Arc::new(listener))
            .map_err(|e| format!("cannot listen for another controller: {e}"))?;
        connection.send(&FromAgent::Reachable { addr });
        let Orphans { timeout, save, .. } = *orphans;
        self.waiting = Some(Waiting { timeout, contact, until: None, save, save_at: None });
        self.show_controller(dir, connection);
        Ok(())
    }

    /// Handles the end of the connection to the controller; returns whether another one may come.
    pub fn wait_for_another(
        &mut self,
        background: &Background,
        connection: &mut Connection,
    ) -> bool {
        let Some(waiting) = &mut self.waiting else { return false };
        tracing::info!("the controller is gone");
        connection.lose();
        if !waiting.contact.lost.swap(true, Ordering::SeqCst) {
            waiting.begin(self.node);
            let contact = Arc::clone(&waiting.contact);
            let addr = self.controller.clone();
            let secret = self.secret.clone();
            let claim = Claim::Lost { node: self.node };
            let reporter = background.reporter();
            std::thread::spawn(move || {
                while contact.lost.load(Ordering::SeqCst) {
                    match probe(&addr, &secret, &claim) {
                        Probed::Refused => return reporter.report(Done::DeclaredDead),
                        // Only the connection was lost.
                        Probed::Known => reporter.report(Done::Controller(addr.clone())),
                        Probed::Unreachable => {}
                    }
                    std::thread::sleep(PROBE_EVERY);
                }
            });
        }
        true
    }

    /// Connects to another controller that has come.
    pub fn follow(&mut self, addr: Addr, dir: Option<&HostDir>, connection: &mut Connection) {
        let claim = self.claim();
        let Some(waiting) = self.waiting.as_mut().filter(|w| w.contact.is_open()) else { return };
        let connected =
            connect(&addr, &self.secret, &claim).and_then(|stream| Ok(connection.go_on(stream)?));
        match connected {
            Ok(()) => {
                tracing::info!(%addr, "another controller has come");
                waiting.contacted();
                waiting.contact.found(addr.to_string());
                waiting.end();
                self.controller = addr;
                self.show_controller(dir, connection);
            }
            // That controller may try again.
            Err(e) => tracing::warn!("another controller cannot be reached: {e:#}"),
        }
    }

    /// Shows other jobs on this host whether there is a controller. A silent one may be gone.
    pub fn show_contact(&self, dir: Option<&mut HostDir>) {
        let Some(waiting) = &self.waiting else { return };
        let attached = !waiting.contact.is_open();
        if let Some(dir) = dir {
            dir.set_attached(attached);
        }
    }

    /// No controller has come in time: saves the job where there is a copy of the journal.
    pub fn save_when_due(&mut self, dir: Option<&HostDir>) {
        let due = |waiting: &&mut Waiting| waiting.save_at.is_some_and(|at| at <= Instant::now());
        let Some(waiting) = self.waiting.as_mut().filter(due) else { return };
        waiting.save_at = None;
        let Some(dir) = dir.filter(|_| self.journal.is_kept()) else { return };
        match saver::start(dir.path(), self.log.as_deref()) {
            Ok(child) => {
                tracing::info!(pid = child.id(), "no controller has come: the job is saved");
                self.saver = Pid::from_raw(child.id() as i32);
            }
            Err(e) => tracing::warn!("the job cannot be saved: {e}"),
        }
    }

    /// The file from which the roles on this host read the controller's address.
    pub fn controller_file(&self, dir: Option<&HostDir>) -> Option<PathBuf> {
        self.waiting.as_ref()?;
        Some(dir?.path().join(format!("controller-{}", self.node)))
    }

    /// Writes the controller's address for the roles on this host.
    fn show_controller(&self, dir: Option<&HostDir>, connection: &mut Connection) {
        let Some(file) = self.controller_file(dir) else { return };
        let partial = file.with_extension("partial");
        let written = std::fs::write(&partial, self.controller.to_string());
        if let Err(e) = written.and_then(|()| std::fs::rename(&partial, &file)) {
            let text = format!("{} cannot be written: {e}", file.display());
            connection.send(&FromAgent::Note { text });
        }
    }

    fn claim(&self) -> Claim {
        Claim::Agent { node: self.node, pid: std::process::id() }
    }
}
