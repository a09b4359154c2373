//! The controller's socket: who comes, proves itself and what it wants. A connection gets a thread; a peer that
//! has not proven itself gets neither memory nor time beyond a bound.

use super::agents::Link;
use super::images;
use super::inbound::Inbound;
use super::users;
use crossbeam_channel::{bounded, Sender};
use eyrie_store::Store;
use eyrie_transport::handshake::{accept, HandshakeError};
use eyrie_transport::{frame, Addr, Listener, Stream};
use eyrie_wire::auth::Secret;
use eyrie_wire::control::Claim;
use eyrie_wire::{Incarnation, Node, Rank, RankInstance};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// How long each step of a handshake or a user's request may take.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// Most connections that are in their handshake at a time.
const MAX_STRANGERS: usize = 64;
/// Longest request of a user in bytes.
const MAX_REQUEST: u64 = 64 * 1024;

/// Who may come in.
#[derive(Debug, Default)]
pub struct Gate {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    nodes: u32,
    connected: BTreeSet<Node>,
    lost: BTreeSet<Node>,
    newest: BTreeMap<Rank, Incarnation>,
}

impl Inner {
    fn is_present(&self, instance: RankInstance) -> bool {
        let newest = self.newest.get(&instance.rank).copied().unwrap_or(1);
        newest == instance.incarnation
    }
}

impl Gate {
    pub fn new(nodes: u32) -> Gate {
        Gate { inner: Mutex::new(Inner { nodes, ..Inner::default() }) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// From now on the node's agent is refused.
    pub fn give_up(&self, node: Node) {
        self.inner().lost.insert(node);
    }

    /// From now on images of older incarnations are refused.
    pub fn fence(&self, instance: RankInstance) {
        self.inner().newest.insert(instance.rank, instance.incarnation);
    }

    /// Whether this is the rank's present incarnation.
    pub fn is_present(&self, instance: RankInstance) -> bool {
        self.inner().is_present(instance)
    }

    fn admit(&self, claim: &Claim) -> Result<(), String> {
        let mut inner = self.inner();
        match *claim {
            Claim::Agent { node, .. } if inner.lost.contains(&node) => {
                Err(format!("node {node} was given up"))
            }
            Claim::Agent { node, .. } if node >= inner.nodes || !inner.connected.insert(node) => {
                Err(format!("node {node} is not expected"))
            }
            Claim::ImageUpload { instance, .. } if !inner.is_present(instance) => {
                Err(format!("{instance} is not its newest any more"))
            }
            Claim::Rank { .. } => Err("ranks connect to routers".into()),
            _ => Ok(()),
        }
    }
}

/// What every connection's thread needs.
pub struct Door {
    pub secret: Secret,
    pub gate: Arc<Gate>,
    pub store: Arc<Store>,
    pub inbound: Sender<Inbound>,
}

/// Opens the controller's socket and serves it until the process ends.
///
/// # Errors
/// When the socket cannot be made.
pub fn listen(addr: &Addr, door: Door) -> std::io::Result<()> {
    let listener = Listener::bind(addr)?;
    let door = Arc::new(door);
    let strangers = Arc::new(AtomicUsize::new(0));
    std::thread::spawn(move || {
        loop {
            let Ok(stream) = listener.accept() else {
                // Out of descriptors: those that are open come to an end.
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            if strangers.fetch_add(1, Ordering::Relaxed) >= MAX_STRANGERS {
                strangers.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let (door, strangers) = (Arc::clone(&door), Arc::clone(&strangers));
            std::thread::spawn(move || {
                let met = meet(stream, &door);
                strangers.fetch_sub(1, Ordering::Relaxed);
                if let Some((claim, stream)) = met {
                    serve(claim, stream, &door);
                }
            });
        }
    });
    Ok(())
}

/// The handshake; says why when somebody is refused.
fn meet(mut stream: Stream, door: &Door) -> Option<(Claim, Stream)> {
    stream.set_timeout(Some(STEP_TIMEOUT)).ok()?;
    let mut woke = None;
    let met = accept(&mut stream, &door.secret, |claim| {
        let admitted = door.gate.admit(claim);
        if let (Err(_), Claim::Agent { node, .. }) = (&admitted, claim) {
            woke = Some(*node);
        }
        admitted
    });
    match met {
        Ok(claim) => Some((claim, stream)),
        Err(error) => {
            let message = match (woke, error) {
                (Some(node), _) => Inbound::AgentWoke { node },
                // Somebody who looked whether the socket is there.
                (_, HandshakeError::Io(_)) => return None,
                (_, error) => Inbound::Note(format!("a connection was refused: {error}")),
            };
            let _ = door.inbound.send(message);
            None
        }
    }
}

fn serve(claim: Claim, stream: Stream, door: &Door) {
    // Every send fails only when the job is over.
    match claim {
        Claim::Agent { node, .. } => {
            serve_agent(node, stream, door);
            let _ = door.inbound.send(Inbound::AgentGone { node });
        }
        Claim::ImageUpload { instance, image } => {
            images::receive(instance, image, stream, door);
        }
        Claim::ImageFetch { rank, image } => images::send(rank, image, stream, door),
        // The gate lets none in.
        Claim::Rank { .. } => {}
        Claim::User => {
            // A user who leaves before the answer misses nothing.
            let _ = serve_user(stream, door);
        }
    }
}

fn serve_agent(node: Node, stream: Stream, door: &Door) {
    // An agent may be silent, or slow, for long: the heartbeat watches it.
    if stream.set_timeout(None).is_err() {
        return;
    }
    let Ok(link) = Link::new(&stream) else { return };
    let _ = door.inbound.send(Inbound::AgentUp { node, link });
    let mut input = BufReader::with_capacity(256 * 1024, stream);
    while let Ok(message) = frame::read(&mut input) {
        if door.inbound.send(Inbound::Agent { node, message }).is_err() {
            return;
        }
    }
}

fn serve_user(mut stream: Stream, door: &Door) -> std::io::Result<()> {
    let mut request = String::new();
    BufReader::new(&mut stream).take(MAX_REQUEST).read_line(&mut request)?;
    let (answer, answered) = bounded(1);
    let patience = users::parse(&request).map_or(STEP_TIMEOUT, |request| request.patience());
    let _ = door.inbound.send(Inbound::User { request, answer });
    if let Ok(text) = answered.recv_timeout(patience) {
        writeln!(stream, "{text}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gate_refuses_the_lost_the_unexpected_and_the_old() {
        let gate = Gate::new(2);
        let agent = |node| Claim::Agent { node, pid: 1 };
        let upload = |incarnation| Claim::ImageUpload {
            instance: RankInstance { rank: 3, incarnation },
            image: 1,
        };
        assert!(gate.admit(&agent(0)).is_ok());
        assert!(gate.admit(&agent(0)).is_err(), "twice");
        assert!(gate.admit(&agent(2)).is_err(), "no such node");
        gate.give_up(1);
        assert!(gate.admit(&agent(1)).unwrap_err().contains("given up"));
        assert!(gate.admit(&upload(1)).is_ok());
        gate.fence(RankInstance { rank: 3, incarnation: 2 });
        assert!(gate.admit(&upload(1)).is_err() && gate.admit(&upload(2)).is_ok());
    }
}
