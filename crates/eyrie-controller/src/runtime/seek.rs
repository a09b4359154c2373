//! Looks for the agents of nodes that do not answer, where they listen for a controller: one that
//! waits for any comes back to this one, and one that has another says so, which ends this one. Two
//! controllers must never go on with one job.

use super::inbound::Inbound;
use super::job::Job;
use crate::machine::Event;
use eyrie_agent::HAS_CONTROLLER;
use eyrie_transport::handshake::{self, HandshakeError};
use eyrie_transport::Stream;
use eyrie_wire::auth::Secret;
use eyrie_wire::control::Claim;
use eyrie_wire::role_address::Addr;
use eyrie_wire::NodeId;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long each step of asking an agent may take, and how long to wait before it is asked again.
const STEP_TIMEOUT: Duration = Duration::from_secs(2);
const ASK_AGAIN: Duration = Duration::from_secs(1);

impl Job {
    /// Looks for the agents of these nodes, and of no others any more.
    pub fn seek(&mut self, nodes: Vec<NodeId>) {
        let over = self.agents.seek_anew();
        if self.is_replaying {
            return;
        }
        let until = Instant::now() + self.beginning.options.alone_for();
        let ours = self.children.controller().clone();
        for node in nodes {
            let Some(agent) = self.agents.reached_at(node).cloned() else { continue };
            let secret = self.secret.clone();
            let ours = ours.clone();
            let over = Arc::clone(&over);
            let inbound = self.inbound.clone();
            std::thread::spawn(move || {
                let again = || !over.load(Ordering::SeqCst) && Instant::now() < until;
                while again() {
                    if let Some(by) = other_controller(&agent, &secret, &ours, &over) {
                        tracing::info!(%node, %by, "has another controller");
                        return drop(inbound.send(Inbound::Heard(Event::Replaced { by }.into())));
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
    ours: &Addr,
    over: &AtomicBool,
) -> Option<String> {
    let mut stream = Stream::connect(agent, STEP_TIMEOUT).ok()?;
    let claim = Claim::Controller { addr: ours.clone() };
    match handshake::connect(&mut stream, secret, &claim) {
        Err(HandshakeError::Refused(why)) if !over.load(Ordering::SeqCst) => {
            why.strip_prefix(HAS_CONTROLLER).filter(|by| *by != ours.to_string()).map(String::from)
        }
        _ => None,
    }
}
