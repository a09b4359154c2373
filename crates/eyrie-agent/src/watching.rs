//! Which of the other hosts with roles this one reaches. The agent reports when a host that was
//! reached is no longer reached, and when it is again. The controller decides what that means.

use crate::node::{Agent, Done};
use crate::orphan::notify;
use crate::reach::Target;
use eyrie_wire::addr::Addr;
use eyrie_wire::control::FromAgent;
use eyrie_wire::Node;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

impl Agent {
    /// Connects to these hosts from now on, and to no others.
    pub fn watch_hosts(&mut self, hosts: Vec<(Node, Addr)>, within: Duration) {
        let tcp = |(node, addr): (Node, Addr)| match addr {
            Addr::Tcp { at, .. } => Some((node, at)),
            Addr::Unix(_) => None,
        };
        let hosts: Vec<(Node, SocketAddr)> = hosts.into_iter().filter_map(tcp).collect();
        self.watched.retain(|node, target| hosts.contains(&(*node, target.addr)));
        for (node, addr) in hosts {
            let (done, waker) = (self.done.0.clone(), Arc::clone(&self.waker));
            let report = move |reached| notify(&done, &waker, Done::Reached { node, reached });
            self.watched.entry(node).or_insert_with(|| Target::new(addr, within, report));
        }
    }

    /// Reports that another host is reached again, or no longer.
    pub fn host_reached(&mut self, node: Node, reached: bool) {
        self.connection.send(&FromAgent::Reached { node, reached });
    }
}
