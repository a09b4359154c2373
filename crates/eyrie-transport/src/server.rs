//! Accepting connections: each gets a thread and a handshake. A peer that has not proven itself
//! gets neither memory nor time beyond a bound.

use crate::handshake::{accept, HandshakeError, STEP_TIMEOUT};
use crate::{Listener, Stream};
use eyrie_wire::auth::Secret;
use eyrie_wire::control::Claim;
use eyrie_wire::role_address::{Addr, Bind};
use std::collections::VecDeque;
use std::net::Shutdown;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Most connections that are in their handshake at a time.
const MAX_HANDSHAKES: usize = 64;

/// Connections whose peers have not proven themselves yet, oldest first.
#[derive(Default)]
struct Handshakes(Mutex<VecDeque<(u64, Stream)>>);

impl Handshakes {
    fn streams(&self) -> MutexGuard<'_, VecDeque<(u64, Stream)>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Adds a connection. If there are too many, the oldest is closed: a peer that knows the secret
    /// is quick, and must not wait for those that do not know it.
    fn add(&self, number: u64, stream: &Stream) -> std::io::Result<()> {
        let mut streams = self.streams();
        if streams.len() >= MAX_HANDSHAKES {
            if let Some((_, oldest)) = streams.pop_front() {
                // The peer may have closed it.
                let _ = oldest.shutdown(Shutdown::Both);
            }
        }
        streams.push_back((number, stream.try_clone()?));
        Ok(())
    }

    fn remove(&self, number: u64) {
        self.streams().retain(|(n, _)| *n != number);
    }
}

/// What serves the connections of a listening address. Their threads make all calls.
pub trait Service: Send + Sync + 'static {
    fn secret(&self) -> &Secret;

    /// Whether a peer that knows the secret may connect with this claim.
    ///
    /// # Errors
    /// The reason why not, which is sent to the peer.
    fn admit(&self, claim: &Claim) -> Result<(), String>;

    /// Serves an admitted connection to its end. Its timeout is still [`STEP_TIMEOUT`].
    fn serve(&self, claim: Claim, stream: Stream);

    /// A peer was refused. `claim` is what it has proven, if anything.
    fn refused(&self, claim: Option<Claim>, error: HandshakeError);
}

/// Listens and serves until the process ends. Returns the address.
///
/// # Errors
/// When the address cannot be used.
pub fn listen(at: &Bind, service: Arc<impl Service>) -> std::io::Result<Addr> {
    let listener = Listener::bind(at)?;
    let addr = listener.addr()?;
    let handshakes = Arc::new(Handshakes::default());
    std::thread::spawn(move || {
        for number in 0.. {
            let accepted = listener.accept();
            let accepted = accepted.and_then(|s| handshakes.add(number, &s).map(|()| s));
            let Ok(stream) = accepted else {
                // No descriptor is free: wait until a connection ends.
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            let service = Arc::clone(&service);
            let handshakes = Arc::clone(&handshakes);
            std::thread::spawn(move || {
                let accepted = accept_peer(stream, &*service);
                handshakes.remove(number);
                if let Some((claim, stream)) = accepted {
                    service.serve(claim, stream);
                }
            });
        }
    });
    Ok(addr)
}

/// The handshake.
fn accept_peer(mut stream: Stream, service: &impl Service) -> Option<(Claim, Stream)> {
    stream.set_timeout(Some(STEP_TIMEOUT)).ok()?;
    let mut proven = None;
    let accepted = accept(&mut stream, service.secret(), |claim| {
        proven = Some(claim.clone());
        service.admit(claim)
    });
    match accepted {
        Ok(claim) => Some((claim, stream)),
        Err(error) => {
            service.refused(proven, error);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::role;
    use eyrie_wire::auth::SECRET_LEN;
    use eyrie_wire::role_address::{Interface, Ports, Security};
    use std::io::{Read, Write};
    use std::sync::mpsc::{channel, Sender};

    struct Counting(Secret, Mutex<Sender<Claim>>);

    impl Service for Counting {
        fn secret(&self) -> &Secret {
            &self.0
        }

        fn admit(&self, _: &Claim) -> Result<(), String> {
            Ok(())
        }

        fn serve(&self, claim: Claim, _: Stream) {
            self.1.lock().unwrap().send(claim).unwrap();
        }

        fn refused(&self, _: Option<Claim>, _: HandshakeError) {}
    }

    #[test]
    fn peers_without_the_secret_do_not_keep_one_with_it_from_connecting() {
        let secret = Secret([5; SECRET_LEN]);
        let (served, claims) = channel();
        let bind = Bind::Tcp {
            interface: Interface::LOOPBACK,
            ports: Ports::ANY,
            security: Security::Encrypted,
        };
        let service = Counting(secret.clone(), Mutex::new(served));
        let addr = listen(&bind, Arc::new(service)).unwrap();
        let timeout = Duration::from_secs(30);
        let mut idle = Vec::new();
        for n in 0..4 * MAX_HANDSHAKES {
            let mut stream = Stream::connect(&addr, timeout).unwrap();
            if n % 2 == 0 {
                // The server may have closed it already.
                let _ = stream.write_all(b"GET / HTTP/1.1\r\n");
            }
            idle.push(stream);
        }
        role::connect(&addr, &secret, &Claim::User).unwrap();
        assert_eq!(claims.recv_timeout(timeout).unwrap(), Claim::User);
        // A peer whose connection was closed has received nothing.
        let mut answer = [0];
        assert!(!matches!(idle[0].read(&mut answer), Ok(1..)));
    }
}
