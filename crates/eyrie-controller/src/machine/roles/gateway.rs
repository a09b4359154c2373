//! The gateway of a domain: a router for the ranks of all other domains, on the one host that these
//! reach. It never moves. Nothing is lost with it: senders keep their messages until another domain
//! has confirmed them, and tell their own primary router what they have seen before they tell the
//! gateway, as they do with a router on their own host. So no rank is imaged because of it, and
//! while its host is gone everything but messages to other domains goes on.

use super::hosting::{Hosting, ATTEMPTS};
use super::places::Places;
use crate::machine::config::Config;
use crate::machine::io::{Command, ToPeer};
use crate::machine::outbox::consequence::Consequence;
use crate::machine::state::RoleStateName;
use crate::record::{in_words, Record};
use eyrie_router::RouterCommand;
use eyrie_wire::control::RoleKind;
use eyrie_wire::directory::Directory;
use eyrie_wire::{NodeId, RouterId};

impl Hosting<'_> {
    /// Starts the gateway, where the job has other domains; false when its node is not up.
    pub fn start_gateway(&mut self) -> bool {
        let Some(id) = self.config.gateway_router() else { return true };
        let Some(node) = self.places().node_for_gateway(self.config) else { return false };
        let until = self.out.now() + self.router_patience();
        self.roles.add(RoleKind::Router, id.0, node, until);
        self.order_router(id, false);
        true
    }

    /// The gateway learns where the routers of its domain are.
    pub fn tell_gateway(&mut self, directory: &Directory) {
        if let Some(id) = self.config.gateway_router() {
            let directory = RouterCommand::Directory(directory.clone());
            self.out.push(Command::Send(ToPeer::Router(id, directory)));
        }
    }

    /// The gateway is gone. Another one is started on its host, as soon as that is there.
    pub fn gateway_lost(&mut self, id: RouterId, cause: String, by_itself: bool) {
        let Some(entry) = self.roles.get_mut(RoleKind::Router, id.0) else { return };
        if !entry.is(RoleStateName::Down) {
            let node = entry.node();
            let listened = entry.lose(by_itself);
            if entry.failed() >= ATTEMPTS {
                return self.out.end(1, Some(format!("the gateway cannot be started: {cause}")));
            }
            self.out.follows(Consequence::GatewayLost);
            if listened && self.out.has_started() {
                self.out.summary_mut().roles_lost += 1;
                let role = self.router_in_words(id);
                self.out.record(Record::RoleLost { role, node, cause, ranks: vec![] });
            }
            self.end_waiting_for(id);
        }
        if self.out.has_ended() {
            return;
        }
        let Some(node) = self.places().node_for_gateway(self.config) else {
            return self.wait_for_gateway();
        };
        let until = self.out.now() + self.router_patience();
        if let Some(entry) = self.roles.get_mut(RoleKind::Router, id.0) {
            entry.replace(node, until);
        }
        let takes_over = self.out.has_started();
        self.order_router(id, takes_over);
    }

    fn wait_for_gateway(&mut self) {
        let Some(node) = self.config.gateway else { return };
        let host = in_words(node, self.nodes.hosts());
        let text = format!(
            "messages to other domains wait until the host of the gateway, {host}, is back: `eyrie \
             join` brings it"
        );
        self.out.note(text);
    }
}

impl Places<'_> {
    /// The node of the gateway, or another one on the same host; `None` while none is up.
    fn node_for_gateway(self, config: &Config) -> Option<NodeId> {
        let node = config.gateway?;
        let name = self.nodes.hosts().get(node.index());
        let is_it = |other: &NodeId| {
            let other_name = self.nodes.hosts().get(other.index());
            *other == node || name.is_some() && other_name == name
        };
        self.nodes.up().find(is_it)
    }
}
