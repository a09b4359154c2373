//! Roles on nodes: their processes are started by the agents there, connect by themselves, and are
//! told what they are; who is where then goes to all ranks. The machine decides all of it.

use super::job::Job;
use super::link::{encode_long, Session};
use super::parts;
use super::store::JobStore;
use crate::machine::{Event, StoreId};
use eyrie_router::SavedAt;
use eyrie_store::role::StoreCommand;
use eyrie_transport::{Bind, Directory, Interface, KeptUntil, RouterId};
use eyrie_wire::control::{Role, RoleKind, ToAgent};
use eyrie_wire::Node;

impl Job {
    /// Has a role started on a node. `takes_over`: in the place of a lost one, of which nothing is
    /// left.
    pub fn start_role(&mut self, node: Node, role: Role, takes_over: bool) {
        let Role { kind, id, generation } = role;
        if kind == RoleKind::Store {
            return self.start_store(node, id);
        }
        let at_home = self.machine.at_home(id);
        let config = parts::router_config(id, generation, &self.options, at_home, &self.dir);
        match config {
            Ok(mut config) => {
                config.incarnations = self.machine.incarnations();
                config.kept_until = KeptUntil::Received;
                config.takes_over = takes_over;
                config.saved = self.saved_router(id);
                self.listen_on(node, &mut config.listen);
                self.routers.replace(id, Session::with(self.journal.progress(), &config));
                self.admission.expect_role(role);
                self.send(node, &ToAgent::StartRole(role));
            }
            Err(e) => {
                self.events.push_back(Event::RoleLost { role, cause: format!("{e:#}") });
            }
        }
    }

    /// What a router of a job that was saved begins with, until the job has started.
    fn saved_router(&self, id: RouterId) -> Option<SavedAt> {
        let images = self.images.as_ref().filter(|_| !self.machine.has_started())?;
        images.router(id)?;
        Some(SavedAt::Controller(self.children.controller().clone()))
    }

    fn start_store(&mut self, node: Node, id: StoreId) {
        let role = Role::first(RoleKind::Store, id);
        let mut config = parts::store_config(id, &self.options, &self.kvsname, &self.dir);
        self.listen_on(node, &mut config.listen);
        let progress = self.journal.progress();
        let mut session = Session::with(progress, &config);
        // Images of earlier incarnations are refused there, too.
        for (instance, _, _) in self.machine.rank_states() {
            session.send(progress, encode_long(&StoreCommand::Present(instance)));
        }
        self.stores.insert(id, JobStore::Apart(session));
        self.admission.expect_role(role);
        self.send(node, &ToAgent::StartRole(role));
    }

    /// A role, or an agent, listens at the address by which its node reaches the controller, unless
    /// users have named the interface.
    pub fn listen_on(&self, node: Node, listen: &mut Bind) {
        if let Bind::Tcp { interface: Interface::Ip(ip), .. } = listen {
            if let Some(peer) = self.peers.get(&node) {
                *ip = *peer;
            }
        }
    }

    /// All ranks are told where the roles are now.
    pub fn publish(&mut self, directory: Directory) {
        self.directory = directory;
        let nodes: Vec<Node> = self.links.keys().copied().collect();
        nodes.into_iter().for_each(|node| self.tell_where(node));
    }

    /// Tells the ranks of this node where the roles are, if all of them have been there.
    pub fn tell_where(&mut self, node: Node) {
        if self.directory.epoch == 0 {
            return;
        }
        let beside = self.machine.routers_on(node);
        let directory = Directory { beside, ..self.directory.clone() }.encode();
        self.send(node, &ToAgent::Directory { directory });
    }
}
