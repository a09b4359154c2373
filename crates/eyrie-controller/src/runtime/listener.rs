//! Who comes to the controller's socket, and what it wants.

use super::admission::Services;
use super::inbound::{Heard, Inbound, Letter};
use super::link::{is_silence, Link};
use super::roles::registry;
use super::subscribers::SUBSCRIBER_PATIENCE;
use crate::machine::{Event, FromPeer, Peer};
use crossbeam_channel::{bounded, RecvTimeoutError, Sender};
use eyrie_interface::answer::refusal;
use eyrie_interface::Request;
use eyrie_transport::handshake::HandshakeError;
use eyrie_transport::server::Service;
use eyrie_transport::session::{Header, Kind};
use eyrie_transport::{frame, Stream};
use eyrie_wire::auth::Secret;
use eyrie_wire::control::{Claim, FromAgent};
use std::io::{self, BufRead, BufReader, Read as _, Write};
use std::sync::atomic::Ordering;

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
            (Some(Claim::Agent { node, .. } | Claim::Lost { node }), _) => Event::AgentWoke(node),
            // One that was replaced, and will be told.
            (Some(Claim::Role(role)), error) => return tracing::info!(%role, %error, "refused"),
            // A process that looked whether the socket is there.
            (_, HandshakeError::Io(_)) => return,
            (_, error) => Event::Note(format!("a connection was refused: {error}")),
        };
        let _ = self.inbound.send(Inbound::Heard(message.into()));
    }
}

fn serve(claim: Claim, stream: Stream, services: &Services) {
    // Every send fails only when the job is over.
    let Services { inbound, .. } = services;
    let send = |message| inbound.send(message).is_ok();
    match claim {
        Claim::Agent { node, .. } => {
            let up = |link, heard| send(Inbound::AgentUp { node, link, heard });
            let hear = |letter, message| {
                send(match message {
                    FromAgent::JournalKept(kept) => Inbound::JournalKept { node, kept },
                    message => Inbound::Heard(Heard::From(letter, FromPeer::Agent(node, message))),
                })
            };
            let decode = |payload: &[u8]| frame::decode(payload);
            let read = frame::read_payload;
            serve_role(stream, Peer::Agent(node), inbound, (read, decode), up, hear);
        }
        Claim::Role(role) => {
            let up = |link, heard| send(Inbound::RoleUp { role, link, heard });
            let hear = |letter, message| send(Inbound::Heard(Heard::From(letter, message)));
            let decode = |payload: &[u8]| registry::of(role.kind).decode(role, payload);
            let read = frame::read_long_payload;
            serve_role(stream, Peer::Role(role), inbound, (read, decode), up, hear);
        }
        // Admission refuses them.
        Claim::ImageUpload { .. }
        | Claim::ImageFetch { .. }
        | Claim::ImageCopy { .. }
        | Claim::Controller { .. }
        | Claim::Attached
        | Claim::Rank { .. }
        | Claim::Trunk
        | Claim::Letters { .. }
        | Claim::Ledger { .. } => {}
        Claim::RouterSave { id } => services.router_files.keep(id, stream),
        Claim::RouterSaved { id } => services.router_files.give(id, stream),
        // It has its answer.
        Claim::Lost { .. } => {}
        Claim::User => {
            // A user who leaves before the answer misses nothing.
            let _ = serve_user(stream, services);
        }
    }
}

/// Reads one message.
type Read = fn(&mut BufReader<Stream>) -> io::Result<Vec<u8>>;

/// Hands on what an agent or a role says until its connection ends, which is told, too, or `up` or
/// `hear` want no more.
fn serve_role<Message>(
    stream: Stream,
    by: Peer,
    inbound: &Sender<Inbound>,
    (read, decode): (Read, impl Fn(&[u8]) -> io::Result<Message>),
    up: impl FnOnce(Link, u64) -> bool,
    hear: impl Fn(Letter, Message) -> bool,
) {
    let Ok(link) = Link::new(&stream) else { return };
    let mut input = BufReader::with_capacity(256 * 1024, stream);
    let Ok(heard) = Header::read_first(&mut input) else { return };
    // It may have nothing to say for long: heartbeats watch agents, and processes are watched.
    if input.get_ref().set_timeout(None).is_err() {
        return;
    }
    let mut next = || -> io::Result<bool> {
        let Header { kind, heard } = Header::read(&mut input)?;
        let number = match kind {
            Kind::Nothing => return Ok(inbound.send(Inbound::Confirmed { by, heard }).is_ok()),
            Kind::Passing => 0,
            Kind::Letter(number) => number,
        };
        let payload = read(&mut input)?;
        let letter = Letter { number, heard, bytes: payload.len() };
        Ok(hear(letter, decode(&payload)?))
    };
    // Dropping the link ends the connection: it must not be kept here.
    let id = link.id();
    let was_silent = link.silence();
    if !up(link, heard) {
        return;
    }
    let silent = loop {
        match next() {
            Ok(true) => {}
            Ok(false) => break false,
            Err(e) => break is_silence(&e),
        }
    };
    let silent = silent || was_silent.load(Ordering::SeqCst);
    let _ = inbound.send(Inbound::Gone { by, link: id, silent });
}

fn serve_user(mut stream: Stream, services: &Services) -> std::io::Result<()> {
    let _asking = services.unanswered.begin();
    let mut text = String::new();
    BufReader::new(&mut stream).take(MAX_REQUEST).read_line(&mut text)?;
    let request = match Request::parse(&text) {
        Err(why) => return writeln!(stream, "{}", refusal(&why)),
        Ok(Request::Subscribe { from }) => {
            stream.set_timeout(Some(SUBSCRIBER_PATIENCE))?;
            return services.published.stream(from, &mut stream);
        }
        Ok(Request::Output) => {
            stream.set_timeout(Some(SUBSCRIBER_PATIENCE))?;
            return services.output.stream(&mut stream);
        }
        Ok(request) => request,
    };
    let (answer, answered) = bounded(1);
    let patience = request.patience();
    let _ = services.inbound.send(Inbound::User { request, answer });
    match answered.recv_timeout(patience) {
        Ok(text) => writeln!(stream, "{text}"),
        // The job is over: no answer comes.
        Err(RecvTimeoutError::Disconnected) => {
            writeln!(stream, "{}", refusal("the job has just ended"))
        }
        Err(RecvTimeoutError::Timeout) => Ok(()),
    }
}
