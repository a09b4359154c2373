//! The controller's socket: who comes, proves itself and what it wants. A connection gets a thread;
//! a peer that has not proven itself gets neither memory nor time beyond a bound.

use super::admission::Services;
use super::agents::Link;
use super::images;
use super::inbound::Inbound;
use super::users;
use crossbeam_channel::bounded;
use eyrie_transport::handshake::{accept, HandshakeError};
use eyrie_transport::{frame, Addr, Listener, RouterId, Stream};
use eyrie_wire::control::Claim;
use eyrie_wire::Node;
use std::io::{BufRead, BufReader, Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// How long each step of a handshake or a user's request may take.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// Most connections that are in their handshake at a time.
const MAX_STRANGERS: usize = 64;
/// Longest request of a user in bytes.
const MAX_REQUEST: u64 = 64 * 1024;

/// Opens the controller's socket and serves it until the process ends.
///
/// # Errors
/// When the socket cannot be made.
pub fn listen(addr: &Addr, services: Services) -> std::io::Result<()> {
    let listener = Listener::bind(addr)?;
    let services = Arc::new(services);
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
            let (services, strangers) = (Arc::clone(&services), Arc::clone(&strangers));
            std::thread::spawn(move || {
                let met = meet(stream, &services);
                strangers.fetch_sub(1, Ordering::Relaxed);
                if let Some((claim, stream)) = met {
                    serve(claim, stream, &services);
                }
            });
        }
    });
    Ok(())
}

/// The handshake; says why when somebody is refused.
fn meet(mut stream: Stream, services: &Services) -> Option<(Claim, Stream)> {
    stream.set_timeout(Some(STEP_TIMEOUT)).ok()?;
    let mut woke = None;
    let met = accept(&mut stream, &services.secret, |claim| {
        let admitted = services.admission.admit(claim);
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
            let _ = services.inbound.send(message);
            None
        }
    }
}

fn serve(claim: Claim, stream: Stream, services: &Services) {
    // Every send fails only when the job is over.
    match claim {
        Claim::Agent { node, .. } => {
            serve_agent(node, stream, services);
            let _ = services.inbound.send(Inbound::AgentGone { node });
        }
        Claim::Router { id } => {
            serve_router(id, stream, services);
            let _ = services.inbound.send(Inbound::RouterGone { id });
        }
        Claim::ImageUpload { instance, image } => {
            images::receive(instance, image, stream, services);
        }
        Claim::ImageFetch { rank, image } => images::send(rank, image, stream, services),
        // Admission refuses them.
        Claim::Rank { .. } => {}
        Claim::User => {
            // A user who leaves before the answer misses nothing.
            let _ = serve_user(stream, services);
        }
    }
}

fn serve_agent(node: Node, stream: Stream, services: &Services) {
    // An agent may say nothing for long: the heartbeat watches it.
    if stream.set_timeout(None).is_err() {
        return;
    }
    let Ok(link) = Link::new(&stream) else { return };
    let _ = services.inbound.send(Inbound::AgentUp { node, link });
    let mut input = BufReader::with_capacity(256 * 1024, stream);
    while let Ok(message) = frame::read(&mut input) {
        if services.inbound.send(Inbound::Agent { node, message }).is_err() {
            return;
        }
    }
}

fn serve_router(id: RouterId, stream: Stream, services: &Services) {
    // A router may have nothing to tell for long.
    if stream.set_timeout(None).is_err() {
        return;
    }
    let Ok(link) = Link::new(&stream) else { return };
    let _ = services.inbound.send(Inbound::RouterUp { id, link });
    let mut input = BufReader::with_capacity(256 * 1024, stream);
    while let Ok(event) = frame::read_long(&mut input) {
        if services.router_events.send((id, event)).is_err() {
            return;
        }
    }
}

fn serve_user(mut stream: Stream, services: &Services) -> std::io::Result<()> {
    let mut request = String::new();
    BufReader::new(&mut stream).take(MAX_REQUEST).read_line(&mut request)?;
    let (answer, answered) = bounded(1);
    let patience = users::parse(&request).map_or(STEP_TIMEOUT, |request| request.patience());
    let _ = services.inbound.send(Inbound::User { request, answer });
    if let Ok(text) = answered.recv_timeout(patience) {
        writeln!(stream, "{text}")?;
    }
    Ok(())
}
