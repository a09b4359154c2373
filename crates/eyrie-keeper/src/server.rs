//! The connections of ranks: a thread for each, which reads its messages. It decides nothing, and
//! trusts no length that a rank names.

use crate::core::ConnId;
use crate::mailbox::{Input, Mailbox};
use crate::process::Process;
use crossbeam_channel::bounded;
use eyrie_router::RouterEvent;
use eyrie_transport::handshake::HandshakeError;
use eyrie_transport::server::Service;
use eyrie_transport::Stream;
use eyrie_wire::auth::Secret;
use eyrie_wire::control::Claim;
use eyrie_wire::keeper::{ToKeeper, MAX_MESSAGE};
use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// What a peer is told that claims something else.
const RANKS_ONLY: &str = "ranks only";

/// Serves the keeper's address.
pub struct Server {
    secret: Secret,
    mailbox: Arc<Mailbox>,
    next: AtomicU64,
}

impl Server {
    pub fn new(secret: Secret, mailbox: Arc<Mailbox>) -> Server {
        Server { secret, mailbox, next: AtomicU64::new(0) }
    }
}

impl Service for Server {
    fn secret(&self) -> &Secret {
        &self.secret
    }

    fn admit(&self, claim: &Claim) -> Result<(), String> {
        let Claim::Ledger { instance } = *claim else { return Err(RANKS_ONLY.into()) };
        let (answer, answered) = bounded(1);
        self.mailbox.put(Input::Admit(instance, answer));
        // It has ended when it does not answer.
        answered.recv().unwrap_or_else(|_| Err("the keeper of the ledgers has ended".into()))
    }

    fn serve(&self, claim: Claim, mut stream: Stream) {
        let Claim::Ledger { instance } = claim else { return };
        let id: ConnId = self.next.fetch_add(1, Ordering::Relaxed);
        let (Ok(()), Ok(same)) = (stream.set_timeout(None), stream.try_clone()) else { return };
        let process = match Process::of(&stream) {
            Ok(Some(process)) => process,
            Ok(None) => return tracing::info!(%instance, "a process has ended as it connected"),
            Err(why) => {
                // It never gets the ledgers: a fence could not wait for its end.
                let reason = format!("the process of {instance} cannot have its ledger: {why}");
                self.mailbox.put(Input::Found(RouterEvent::Fatal { reason }));
                return;
            }
        };
        if !self.mailbox.put(Input::Connected { id, instance, stream: same, process }) {
            return;
        }
        loop {
            match read(&mut stream) {
                Ok(message) => self.mailbox.put(Input::Message(id, message)),
                Err(e) => {
                    tracing::info!(conn = id, %instance, error = %e, "a connection has ended");
                    self.mailbox.put(Input::Disconnected(id));
                    return;
                }
            };
        }
    }

    fn refused(&self, claim: Option<Claim>, error: HandshakeError) {
        let event = match claim {
            Some(Claim::Ledger { instance }) => {
                RouterEvent::Refused { instance: Some(instance), reason: error.to_string() }
            }
            Some(_) => {
                RouterEvent::Refused { instance: None, reason: "a peer that is no rank".into() }
            }
            None => RouterEvent::Refused { instance: None, reason: error.to_string() },
        };
        self.mailbox.put(Input::Found(event));
    }
}

/// Reads a message.
fn read(stream: &mut Stream) -> io::Result<ToKeeper> {
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    if len > MAX_MESSAGE {
        return Err(invalid("a message is too long"));
    }
    let mut bytes = [0; MAX_MESSAGE];
    stream.read_exact(&mut bytes[..len])?;
    postcard::from_bytes(&bytes[..len]).map_err(|_| invalid("a message cannot be read"))
}
