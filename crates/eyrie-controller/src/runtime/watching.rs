//! Which hosts the agents are to connect to, so that it is known who does not reach whom: those
//! with roles, and those that they have not reached.

use super::job::{Job, WhoMeets};
use super::link::encode;
use eyrie_wire::control::ToAgent;
use eyrie_wire::Node;
use std::collections::BTreeSet;

impl Job {
    /// Agents hear which hosts these are when that changes. Where nothing listens for a controller
    /// none is.
    pub fn tell_whom_to_watch(&mut self) {
        if self.reached_at.is_empty() || !self.machine.has_started() {
            return;
        }
        let roles = self.machine.roles().map(|(_, node)| node).collect();
        let known = WhoMeets { roles, unreached: self.machine.unreached().collect() };
        // Mostly nothing has changed.
        if self.watched.as_ref() == Some(&known) {
            return;
        }
        self.watched = Some(known.clone());
        let WhoMeets { roles, unreached } = known;
        let nodes: Vec<Node> = self.links.keys().copied().collect();
        for node in nodes {
            let lost = unreached.iter().filter(|(from, _)| *from == node).map(|(_, to)| *to);
            let mut hosts: BTreeSet<Node> = roles.iter().copied().chain(lost).collect();
            hosts.remove(&node);
            let hosts: Vec<Node> = hosts.into_iter().collect();
            if self.watching.get(&node) != Some(&hosts) {
                self.watch_from(node, &hosts);
                self.watching.insert(node, hosts);
            }
        }
    }

    /// It ends with the connection, and is told again over the next.
    fn watch_from(&self, node: Node, hosts: &[Node]) {
        let Some(session) = self.links.get(&node) else { return };
        let address = |host: &Node| Some((*host, self.reached_at.get(host)?.to_string()));
        let hosts = hosts.iter().filter_map(address).collect();
        let within = self.options.heartbeat_timeout;
        session.send_passing(encode(&ToAgent::Watch { hosts, within }));
    }
}
