//! What goes out to agents and roles. Nothing here waits for them, or decides.

use super::inbound::{Heard, Inbound, Peer};
use super::job::Job;
use super::link::{encode, Link, Session};
use super::roles::peers::THE_STORE;
use crate::machine::StoreId;
use eyrie_store::role::StoreCommand;
use eyrie_transport::Addr;
use eyrie_wire::control::{Role, RoleKind, ToAgent};
use eyrie_wire::Node;

impl Job {
    /// Sends a message to the agent of a node that is up.
    pub fn send(&mut self, node: Node, message: &ToAgent) {
        if let Some(session) = self.agents.session(node) {
            session.send(self.journal.progress(), encode(message));
        }
    }

    /// Tells a store. A store that is lost is told nothing: its session would keep it for ever.
    pub fn tell_store(&mut self, store: StoreId, command: StoreCommand) {
        let is_lost = !self.machine.is_current(Role::first(RoleKind::Store, store));
        let archives = self.is_archive(store);
        // What an earlier controller has had done here is done.
        if is_lost && !archives || self.is_replaying && archives {
            return;
        }
        let told = self.roles.tell_store(self.journal.progress(), store, command);
        if let Err(text) = told {
            self.hear_later([Heard::Note(text)]);
        }
    }

    /// Whether it is the store beside the controller of a job whose other stores are on nodes.
    pub fn is_archive(&self, store: StoreId) -> bool {
        store == THE_STORE && self.beginning.options.has_archive()
    }

    /// Has something heard that comes of what this controller itself does: by way of the journal,
    /// as all else.
    pub fn hear_later(&self, heard: impl IntoIterator<Item = Heard> + Send + 'static) {
        let inbound = self.inbound.clone();
        // The main thread must not wait for itself. It receives no more only while the job ends.
        std::thread::spawn(move || {
            heard.into_iter().for_each(|heard| drop(inbound.send(Inbound::Heard(heard))));
        });
    }

    /// Where a store listens. The machine names none that has not said it.
    pub fn store_address(&self, store: StoreId) -> String {
        let addr = self.machine.store_on_node(store).or(self.whereabouts.store());
        addr.map_or(String::new(), Addr::to_string)
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
