//! Who comes to the controller's socket, and what it wants.

use super::admission::Services;
use super::inbound::Inbound;
use super::link::Link;
use super::users;
use crossbeam_channel::bounded;
use eyrie_transport::handshake::HandshakeError;
use eyrie_transport::server::{Service, STEP_TIMEOUT};
use eyrie_transport::{frame, RouterId, Stream};
use eyrie_wire::auth::Secret;
use eyrie_wire::control::Claim;
use eyrie_wire::Node;
use std::io::{BufRead, BufReader, Read, Write};

/// Longest request of a user in bytes.
const MAX_REQUEST: u64 = 64 * 1024;

impl Service for Services {
    fn secret(&self) -> &Secret {
        &self.secret
    }

    fn admit(&self, claim: &Claim) -> Result<(), String> {
        self.admission.admit(claim)
    }

    fn serve(&self, claim: Claim, stream: Stream) {
        serve(claim, stream, self);
    }

    fn refused(&self, claim: Option<Claim>, error: HandshakeError) {
        let message = match (claim, error) {
            (Some(Claim::Agent { node, .. }), _) => Inbound::AgentWoke { node },
            // Somebody who looked whether the socket is there.
            (_, HandshakeError::Io(_)) => return,
            (_, error) => Inbound::Note(format!("a connection was refused: {error}")),
        };
        let _ = self.inbound.send(message);
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
        Claim::Store => {
            serve_store(stream, services);
            let _ = services.inbound.send(Inbound::StoreGone);
        }
        // Admission refuses them.
        Claim::ImageUpload { .. } | Claim::ImageFetch { .. } | Claim::Rank { .. } => {}
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

fn serve_store(stream: Stream, services: &Services) {
    if stream.set_timeout(None).is_err() {
        return;
    }
    let Ok(link) = Link::new(&stream) else { return };
    let _ = services.inbound.send(Inbound::StoreUp { link });
    let mut input = BufReader::new(stream);
    while let Ok(event) = frame::read_long(&mut input) {
        if services.inbound.send(Inbound::Store(event)).is_err() {
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
