//! An agent without a controller: its ranks and roles go on, its messages are kept, and it waits
//! for another controller, which connects to the agent. It ends when its own controller lives and
//! has declared it dead, or when no controller comes in time.

use crate::connection::{connect, probe, Probed};
use crate::node::{Agent, Done};
use crate::saver;
use crate::waiting::{Contact, Waiting, HAS_CONTROLLER};
use eyrie_transport::handshake::HandshakeError;
use eyrie_transport::server::{self, Service};
use eyrie_transport::Stream;
use eyrie_wire::addr::Addr;
use eyrie_wire::auth::Secret;
use eyrie_wire::control::{Claim, FromAgent, Orphans};
use rustix::process::Pid;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often an orphan tries whether its controller can be reached after all.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// Listens for another controller.
struct ControllerListener {
    secret: Secret,
    contact: Arc<Contact>,
    done: Sender<Done>,
    waker: Arc<UnixStream>,
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
            notify(&self.done, &self.waker, Done::Controller(addr));
        }
    }

    // The peer learns of its refusal in the handshake.
    fn refused(&self, _: Option<Claim>, _: HandshakeError) {}
}

/// Sends something to the agent's loop and wakes it.
pub fn notify(done: &Sender<Done>, mut waker: &UnixStream, what: Done) {
    // Both fail only when the agent ends.
    let _ = done.send(what);
    let _ = waker.write_all(&[1]);
}

impl Agent {
    /// Listens for another controller from now on.
    pub fn prepare_to_wait(&mut self, orphans: &Orphans) -> Result<(), String> {
        let contact = Contact::new(orphans.heartbeat_timeout, self.controller.to_string());
        let contact = Arc::new(contact);
        let listener = ControllerListener {
            secret: self.secret.clone(),
            contact: Arc::clone(&contact),
            done: self.done.0.clone(),
            waker: Arc::clone(&self.waker),
        };
        let addr = server::listen(&orphans.listen, Arc::new(listener))
            .map_err(|e| format!("cannot listen for another controller: {e}"))?;
        self.connection.send(&FromAgent::Reachable { addr });
        let Orphans { timeout, save, .. } = *orphans;
        self.waiting = Some(Waiting { timeout, contact, until: None, save, save_at: None });
        self.show_controller();
        Ok(())
    }

    /// Handles the end of the connection to the controller; returns whether another one may come.
    pub fn wait_for_another(&mut self) -> bool {
        let Some(waiting) = &mut self.waiting else { return false };
        tracing::info!("the controller is gone");
        self.connection.lose();
        if !waiting.contact.lost.swap(true, Ordering::SeqCst) {
            waiting.begin(self.node);
            let contact = Arc::clone(&waiting.contact);
            let (addr, secret) = (self.controller.clone(), self.secret.clone());
            let claim = Claim::Lost { node: self.node };
            let (done, waker) = (self.done.0.clone(), Arc::clone(&self.waker));
            std::thread::spawn(move || {
                while contact.lost.load(Ordering::SeqCst) {
                    match probe(&addr, &secret, &claim) {
                        Probed::Refused => return notify(&done, &waker, Done::DeclaredDead),
                        // Only the connection was lost.
                        Probed::Known => notify(&done, &waker, Done::Controller(addr.clone())),
                        Probed::Unreachable => {}
                    }
                    std::thread::sleep(PROBE_EVERY);
                }
            });
        }
        true
    }

    /// Connects to another controller that has come.
    pub fn follow(&mut self, addr: Addr) {
        let claim = self.claim();
        let Some(waiting) = self.waiting.as_mut().filter(|w| w.contact.is_open()) else { return };
        let connected = connect(&addr, &self.secret, &claim)
            .and_then(|stream| Ok(self.connection.go_on(stream)?));
        match connected {
            Ok(()) => {
                tracing::info!(%addr, "another controller has come");
                waiting.contacted();
                waiting.contact.found(addr.to_string());
                waiting.end();
                self.controller = addr;
                self.show_controller();
            }
            // That controller may try again.
            Err(e) => tracing::warn!("another controller cannot be reached: {e:#}"),
        }
    }

    /// Shows other jobs on this host whether there is a controller. A silent one may be gone.
    pub fn show_contact(&mut self) {
        let Some(waiting) = &self.waiting else { return };
        let attached = !waiting.contact.is_open();
        if let Some(dir) = &mut self.dir {
            dir.set_attached(attached);
        }
    }

    /// No controller has come in time: saves the job where there is a copy of the journal.
    pub fn save_when_due(&mut self) {
        let due = |waiting: &&mut Waiting| waiting.save_at.is_some_and(|at| at <= Instant::now());
        let Some(waiting) = self.waiting.as_mut().filter(due) else { return };
        waiting.save_at = None;
        let Some(dir) = self.dir.as_ref().filter(|_| self.journal.is_some()) else { return };
        match saver::start(dir.path(), self.log.as_deref()) {
            Ok(child) => {
                tracing::info!(pid = child.id(), "no controller has come: the job is saved");
                self.saver = Pid::from_raw(child.id() as i32);
            }
            Err(e) => tracing::warn!("the job cannot be saved: {e}"),
        }
    }

    /// The file from which the roles on this host read the controller's address.
    pub fn controller_file(&self) -> Option<PathBuf> {
        self.waiting.as_ref()?;
        Some(self.dir.as_ref()?.path().join(format!("controller-{}", self.node)))
    }

    /// Writes the controller's address for the roles on this host.
    fn show_controller(&mut self) {
        let Some(file) = self.controller_file() else { return };
        let partial = file.with_extension("partial");
        let written = std::fs::write(&partial, self.controller.to_string());
        if let Err(e) = written.and_then(|()| std::fs::rename(&partial, &file)) {
            let text = format!("{} cannot be written: {e}", file.display());
            self.connection.send(&FromAgent::Note { text });
        }
    }

    pub fn claim(&self) -> Claim {
        Claim::Agent { node: self.node, pid: std::process::id() }
    }
}
