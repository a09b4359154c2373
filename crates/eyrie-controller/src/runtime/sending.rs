//! What goes out to agents and roles. Nothing here waits for them, or decides.

use super::cpu;
use super::inbound::{Heard, Inbound};
use super::job::Job;
use super::link::{encode, Link, Session};
use super::roles::peers::THE_STORE;
use crate::machine::{Event, Peer, ToPeer};
use eyrie_store::role::StoreCommand;
use eyrie_wire::control::{Role, RoleKind, ToAgent};
use eyrie_wire::NodeId;
use eyrie_wire::StoreId;

impl Job {
    /// Sends a message to the agent of a node that is up.
    pub fn send(&mut self, node: NodeId, message: &ToAgent) {
        if let Some(session) = self.agents.session(node) {
            session.send(self.journal.progress(), encode(message));
        }
    }

    /// Sends a message of the machine.
    pub fn send_to(&mut self, to: ToPeer) {
        match to {
            // One is asked for again, and an agent that comes back is told what was shown.
            ToPeer::Agent(
                node,
                message @ (ToAgent::Heartbeat { .. } | ToAgent::OutputShown { .. }),
            ) => self.agents.send_passing(node, encode(&message)),
            ToPeer::Agent(node, message) => {
                if matches!(message, ToAgent::Start(_)) {
                    self.settle_level();
                }
                self.send(node, &message)
            }
            ToPeer::Agents(message) => {
                self.agents.send_all(self.journal.progress(), &encode(&message))
            }
            ToPeer::Router(id, message) => {
                self.roles.send_router(self.journal.progress(), id, message)
            }
            ToPeer::Routers(message) => self.roles.send_routers(self.journal.progress(), &message),
            ToPeer::Store(store, message) => self.send_store(store, message),
            ToPeer::Stores(message) => {
                for store in self.roles.stores() {
                    self.send_store(store, message.clone());
                }
            }
        }
    }

    /// Before the first rank starts: holds all of them to what the hosts have in common that have
    /// come by now, if that was asked for.
    fn settle_level(&mut self) {
        let Some(level) = self.alike.settle() else { return };
        let mut env = self.beginning.program.env.clone();
        let notes = cpu::hold(&level, &mut env);
        self.beginning.program.env.clone_from(&env);
        let message = encode(&ToAgent::Environment(env));
        self.agents.send_all(self.journal.progress(), &message);
        self.events.extend(notes.into_iter().map(Event::Note));
    }

    /// Sends to a store. One that is lost is sent nothing: its session would keep it for ever.
    pub fn send_store(&mut self, store: StoreId, command: StoreCommand) {
        let is_lost = !self.machine.is_current(Role::first(RoleKind::Store, store.0));
        let archives = self.is_archive(store);
        // What an earlier controller has had done here is done.
        if is_lost && !archives || self.is_replaying && archives {
            return;
        }
        let told = self.roles.send_store(self.journal.progress(), store, command);
        if let Err(text) = told {
            self.hear_later([Event::Note(text)]);
        }
    }

    /// Whether it is the store beside the controller of a job whose other stores are on nodes.
    pub fn is_archive(&self, store: StoreId) -> bool {
        store == THE_STORE && self.beginning.options.has_archive()
    }

    /// Has something heard that comes of what this controller itself does: by way of the journal,
    /// as all else.
    pub fn hear_later<H: Into<Heard>>(&self, heard: impl IntoIterator<Item = H> + Send + 'static) {
        let inbound = self.inbound.clone();
        // The main thread must not wait for itself. It receives no more only while the job ends.
        std::thread::spawn(move || {
            for heard in heard {
                let _ = inbound.send(Inbound::Heard(heard.into()));
            }
        });
    }

    /// The session with an agent or a role.
    pub fn session(&mut self, by: Peer) -> Option<&mut Session> {
        match by {
            Peer::Role(role) if !self.machine.is_current(role) => None,
            Peer::Agent(node) => self.agents.session(node),
            Peer::Role(Role { kind, id, .. }) => self.roles.session(kind, id),
        }
    }

    /// Whether this is the connection that there is at present.
    pub fn is_present(&mut self, by: Peer, link: u64) -> bool {
        let present = self.session(by).and_then(|session| session.link().map(Link::id));
        present == Some(link)
    }

    /// The sessions with all agents and roles.
    pub fn sessions(&mut self) -> impl Iterator<Item = &mut Session> {
        self.agents.sessions().chain(self.roles.sessions())
    }
}
