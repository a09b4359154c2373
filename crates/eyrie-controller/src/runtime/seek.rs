//! Looks for the agents of nodes that do not answer, where they listen for a controller: one that
//! waits for any comes back to this one, and one that has another says so, which ends this one. Two
//! controllers must never go on with one job.

use super::inbound::{Heard, Inbound};
use super::job::Job;
use eyrie_agent::HAS_CONTROLLER;
use eyrie_transport::handshake::{self, HandshakeError};
use eyrie_transport::{Addr, Stream};
use eyrie_wire::auth::Secret;
use eyrie_wire::control::Claim;
use eyrie_wire::Node;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long each step of asking an agent may take, and how long to wait before it is asked again.
const STEP_TIMEOUT: Duration = Duration::from_secs(2);
const ASK_AGAIN: Duration = Duration::from_secs(1);

impl Job {
    /// The machine hears which nodes are on this host: without others all of them.
    pub fn tell_home(&mut self) {
        let all = 0..self.machine.nodes_up().count() as Node;
        if self.home.as_ref().is_some_and(|(known, _)| *known == all.end) {
            return;
        }
        let cluster = self.options.cluster.as_ref();
        let is_here = |node: &Node| cluster.is_none_or(|cluster| cluster.is_here(*node));
        let home: Vec<Node> = all.clone().filter(is_here).collect();
        self.home = Some((all.end, home.len()));
        self.take(Heard::Home(home));
    }

    /// Looks for the agents of these nodes, and of no others any more.
    pub fn seek(&mut self, nodes: Vec<Node>) {
        self.sought.store(true, Ordering::SeqCst);
        self.sought = Arc::default();
        if self.is_replaying {
            return;
        }
        let until = Instant::now() + self.options.alone_for();
        let ours = self.children.controller().to_string();
        for node in nodes {
            let Some(agent) = self.reached_at.get(&node).cloned() else { continue };
            let (secret, ours, over) = (self.secret.clone(), ours.clone(), self.sought.clone());
            let inbound = self.inbound.clone();
            std::thread::spawn(move || {
                let again = || !over.load(Ordering::SeqCst) && Instant::now() < until;
                while again() {
                    if let Some(by) = other_controller(&agent, &secret, &ours, &over) {
                        tracing::info!(node, %by, "has another controller");
                        return drop(inbound.send(Inbound::Heard(Heard::Replaced { by })));
                    }
                    std::thread::sleep(ASK_AGAIN);
                }
            });
        }
    }
}

/// Tells an agent that the controller `ours` is there. Returns the address of another one that it
/// has.
fn other_controller(
    agent: &Addr,
    secret: &Secret,
    ours: &str,
    over: &AtomicBool,
) -> Option<String> {
    let mut stream = Stream::connect(agent, STEP_TIMEOUT).ok()?;
    let claim = Claim::Controller { addr: ours.into() };
    match handshake::connect(&mut stream, secret, &claim) {
        Err(HandshakeError::Refused(why)) if !over.load(Ordering::SeqCst) => {
            why.strip_prefix(HAS_CONTROLLER).filter(|by| *by != ours).map(String::from)
        }
        _ => None,
    }
}
