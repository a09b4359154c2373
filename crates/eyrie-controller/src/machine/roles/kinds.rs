//! The kinds of role that run on nodes. What each of them does when it comes, goes or must move
//! stands in a file of its own; here is which file that is, so that one more kind is one more file
//! and its rows here and in [`super::entry`].

use super::hosting::Hosting;
use eyrie_transport::Addr;
use eyrie_wire::control::Role;
use eyrie_wire::Node;

impl Hosting<'_> {
    /// Starts the roles, once all agents are there. True: they all listen, or run elsewhere.
    pub fn are_ready(&mut self) -> bool {
        if !self.config.roles_on_nodes {
            return true;
        }
        if self.roles.routers.is_empty() {
            if !self.start_routers() {
                return false;
            }
            self.start_missing_stores();
        }
        self.roles.all().all(|role| role.is_up())
    }

    /// A role says where it listens.
    pub fn role_up(&mut self, role: Role, addr: Addr) {
        match role {
            _ if !self.is_current(role) => {}
            Role::Router { id, .. } => self.router_listens(id, addr),
            Role::Store { id } => self.store_listens(id, addr),
        }
    }

    /// A role is gone, or could not be started.
    pub fn role_lost(&mut self, role: Role, cause: String) {
        match role {
            _ if !self.is_current(role) => {}
            Role::Router { id, .. } => self.router_lost(id, cause, true),
            Role::Store { id } => self.store_lost(id, cause, true),
        }
    }

    /// The routers that a lost node had.
    pub fn lose_routers_on(&mut self, node: Node) {
        for id in self.roles.routers_on(node) {
            if !self.out.has_ended() {
                self.router_lost(id, format!("node {node} is lost"), false);
            }
        }
    }

    /// The stores that a lost node had.
    pub fn lose_stores_on(&mut self, node: Node) {
        let there = self.roles.stores.iter().filter(|(_, store)| store.node == node);
        for id in there.map(|(id, _)| *id).collect::<Vec<_>>() {
            if !self.out.has_ended() {
                self.store_lost(id, format!("node {node} is lost"), false);
            }
        }
    }
}
