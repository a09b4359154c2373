//! Roles on nodes: agents start their processes, which connect by themselves; then all ranks hear
//! where the roles are. The machine decides all of it.

use super::job::Job;
use super::roles::kind::Starting;
use super::roles::registry;
use crate::machine::Event;
use eyrie_wire::control::{Role, ToAgent};
use eyrie_wire::directory::Directory;
use eyrie_wire::NodeId;

impl Job {
    /// Has a role started on a node. `takes_over`: in the place of a lost one, of which nothing is
    /// left.
    pub fn start_role(&mut self, node: NodeId, role: Role, takes_over: bool) {
        let mut starting = Starting {
            options: &self.beginning.options,
            kvsname: &self.beginning.kvsname,
            dir: &self.dir,
            machine: &self.machine,
            figures: &mut self.figures,
            images: self.images.as_ref(),
            controller: self.children.controller(),
            peer: self.agents.peer(node),
            progress: self.journal.progress(),
        };
        match registry::of(role.kind).begin(&mut starting, role, takes_over) {
            Ok(session) => {
                self.roles.insert(role.kind, role.id, session);
                self.admission.expect_role(role);
                self.send(node, &ToAgent::StartRole(role));
            }
            Err(e) => {
                self.events.push_back(Event::RoleLost { role, cause: format!("{e:#}") });
            }
        }
    }

    /// All ranks are told where the roles are now.
    pub fn publish(&mut self, directory: Directory) {
        self.role_addresses.set_directory(directory);
        for node in self.agents.nodes() {
            self.send_directory(node);
        }
    }

    /// Tells the ranks of this node where the roles are, if all of them have been there.
    pub fn send_directory(&mut self, node: NodeId) {
        if self.role_addresses.directory().epoch == 0 {
            return;
        }
        let beside = self.machine.not_alone(node);
        let directory = Directory { beside, ..self.role_addresses.directory().clone() };
        self.send(node, &ToAgent::Directory(directory));
    }
}
