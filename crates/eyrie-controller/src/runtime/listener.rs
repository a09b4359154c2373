//! Who comes to the controller's socket, and what it wants.

use super::admission::Services;
use super::inbound::Inbound;
use super::link::Link;
use super::users;
use crossbeam_channel::bounded;
use eyrie_transport::handshake::{HandshakeError, STEP_TIMEOUT};
use eyrie_transport::server::Service;
use eyrie_transport::{frame, Stream};
use eyrie_wire::auth::Secret;
use eyrie_wire::control::{Claim, Role};
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
    let Services { inbound, .. } = services;
    match claim {
        Claim::Agent { node, .. } => {
            let up = |link| inbound.send(Inbound::AgentUp { node, link }).is_ok();
            let hear = |message| inbound.send(Inbound::Agent { node, message }).is_ok();
            serve_role(stream, frame::read, up, hear);
            let _ = inbound.send(Inbound::AgentGone { node });
        }
        Claim::Role(role) => {
            let up = |link| inbound.send(Inbound::RoleUp { role, link }).is_ok();
            match role {
                Role::Router { id, generation } => {
                    let heard = |event| Inbound::Router { id, generation, event };
                    let hear = |event| inbound.send(heard(event)).is_ok();
                    serve_role(stream, frame::read_long, up, hear);
                }
                Role::Store { id } => {
                    let hear = |event| inbound.send(Inbound::Store { id, event }).is_ok();
                    serve_role(stream, frame::read_long, up, hear);
                }
            }
            let _ = inbound.send(Inbound::RoleGone { role });
        }
        // Admission refuses them.
        Claim::ImageUpload { .. }
        | Claim::ImageFetch { .. }
        | Claim::ImageCopy { .. }
        | Claim::Rank { .. } => {}
        Claim::User => {
            // A user who leaves before the answer misses nothing.
            let _ = serve_user(stream, services);
        }
    }
}

/// Hands on what a role says until its connection ends, or `up` or `hear` want no more.
fn serve_role<Message>(
    stream: Stream,
    read: fn(&mut BufReader<Stream>) -> std::io::Result<Message>,
    up: impl FnOnce(Link) -> bool,
    hear: impl Fn(Message) -> bool,
) {
    // It may have nothing to say for long: heartbeats watch agents, and processes are watched.
    if stream.set_timeout(None).is_err() {
        return;
    }
    let Ok(link) = Link::new(&stream) else { return };
    let mut input = BufReader::with_capacity(256 * 1024, stream);
    let mut more = up(link);
    while more {
        more = read(&mut input).is_ok_and(&hear);
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
