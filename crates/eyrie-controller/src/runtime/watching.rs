//! Which nodes are on this host, and which hosts the agents are to connect to, so that it is known
//! which hosts do not reach each other: those with roles, and those that they have not reached.

use super::agents::WhoMeets;
use super::job::Job;
use super::link::encode;
use crate::machine::Event;
use eyrie_wire::control::ToAgent;
use eyrie_wire::NodeId;
use std::collections::BTreeSet;

impl Job {
    /// The machine hears which nodes are on this host: without others all of them.
    pub fn find_nodes_here(&mut self) {
        let count = self.machine.nodes_up().count() as u32;
        if self.agents.looked_at() == Some(count) {
            return;
        }
        let cluster = self.beginning.options.cluster.as_ref();
        let is_here = |node: &NodeId| cluster.is_none_or(|cluster| cluster.is_here(*node));
        let here: Vec<NodeId> = NodeId::first(count).filter(is_here).collect();
        self.agents.set_here(count, here.len());
        self.take(Event::NodesHere(here));
    }

    /// Agents hear which hosts these are when that changes. Where nothing listens for a controller
    /// none is.
    pub fn order_watches(&mut self) {
        if !self.agents.can_be_reached() || !self.machine.has_started() {
            return;
        }
        let roles = self.machine.roles().map(|(_, node)| node).collect();
        let known = WhoMeets { roles, unreached: self.machine.unreached().collect() };
        // Mostly nothing has changed.
        if !self.agents.must_watch(&known) {
            return;
        }
        let WhoMeets { roles, unreached } = known;
        for node in self.agents.nodes() {
            let lost = unreached.iter().filter(|(from, _)| *from == node).map(|(_, to)| *to);
            let mut hosts: BTreeSet<NodeId> = roles.iter().copied().chain(lost).collect();
            hosts.remove(&node);
            let hosts: Vec<NodeId> = hosts.into_iter().collect();
            if self.agents.watches_others(node, &hosts) {
                self.watch_from(node, &hosts);
            }
        }
    }

    /// The order ends with the connection, and is sent again over the next.
    fn watch_from(&self, node: NodeId, hosts: &[NodeId]) {
        let address = |host: &NodeId| Some((*host, self.agents.reached_at(*host)?.clone()));
        let hosts = hosts.iter().filter_map(address).collect();
        let within = self.beginning.options.heartbeat_timeout;
        self.agents.send_passing(node, encode(&ToAgent::Watch { hosts, within }));
    }
}
