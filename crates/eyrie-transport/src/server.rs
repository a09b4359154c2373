//! Accepting connections: who comes, and proves itself. A connection gets a thread; a peer that has
//! not proven itself gets neither memory nor time beyond a bound.

use crate::handshake::{accept, HandshakeError, STEP_TIMEOUT};
use crate::{Addr, Bind, Listener, Stream};
use eyrie_wire::auth::Secret;
use eyrie_wire::control::Claim;
use std::collections::VecDeque;
use std::net::Shutdown;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Most connections that are in their handshake at a time.
const MAX_STRANGERS: usize = 64;

/// Those that have not proven themselves, oldest first.
#[derive(Default)]
struct Strangers(Mutex<VecDeque<(u64, Stream)>>);

impl Strangers {
    fn streams(&self) -> MutexGuard<'_, VecDeque<(u64, Stream)>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// One more has come. Of too many the one that has taken longest is sent away: whoever knows
    /// the secret needs no time, and must not wait for those who do not.
    fn came(&self, number: u64, stream: &Stream) -> std::io::Result<()> {
        let mut streams = self.streams();
        if streams.len() >= MAX_STRANGERS {
            if let Some((_, oldest)) = streams.pop_front() {
                // It may have left.
                let _ = oldest.shutdown(Shutdown::Both);
            }
        }
        streams.push_back((number, stream.try_clone()?));
        Ok(())
    }

    fn left(&self, number: u64) {
        self.streams().retain(|(n, _)| *n != number);
    }
}

/// What is behind a listening address. All calls come from the threads of connections.
pub trait Service: Send + Sync + 'static {
    fn secret(&self) -> &Secret;

    /// Whether somebody who has proven to know the secret may come in.
    ///
    /// # Errors
    /// Why not; the peer hears it.
    fn admit(&self, claim: &Claim) -> Result<(), String>;

    /// Serves a connection that was let in, to its end. Its timeout is still [`STEP_TIMEOUT`].
    fn serve(&self, claim: Claim, stream: Stream);

    /// Somebody was refused; `claim` is what was proven.
    fn refused(&self, claim: Option<Claim>, error: HandshakeError);
}

/// Listens, and serves until the process ends; returns where.
///
/// # Errors
/// When the address cannot be had.
pub fn listen(at: &Bind, service: Arc<impl Service>) -> std::io::Result<Addr> {
    let listener = Listener::bind(at)?;
    let addr = listener.addr()?;
    let strangers = Arc::new(Strangers::default());
    std::thread::spawn(move || {
        for number in 0.. {
            let accepted = listener.accept();
            let accepted = accepted.and_then(|s| strangers.came(number, &s).map(|()| s));
            let Ok(stream) = accepted else {
                // Out of descriptors: those that are open come to an end.
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            let (service, strangers) = (Arc::clone(&service), Arc::clone(&strangers));
            std::thread::spawn(move || {
                let met = meet(stream, &*service);
                strangers.left(number);
                if let Some((claim, stream)) = met {
                    service.serve(claim, stream);
                }
            });
        }
    });
    Ok(addr)
}

/// The handshake.
fn meet(mut stream: Stream, service: &impl Service) -> Option<(Claim, Stream)> {
    stream.set_timeout(Some(STEP_TIMEOUT)).ok()?;
    let mut proven = None;
    let met = accept(&mut stream, service.secret(), |claim| {
        proven = Some(claim.clone());
        service.admit(claim)
    });
    match met {
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
    use crate::{role, Interface, Ports, Security};
    use eyrie_wire::auth::SECRET_LEN;
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
    fn those_who_know_the_secret_come_in_past_any_number_of_those_who_do_not() {
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
        for n in 0..4 * MAX_STRANGERS {
            let mut stream = Stream::connect(&addr, timeout).unwrap();
            if n % 2 == 0 {
                // It may have been sent away already.
                let _ = stream.write_all(b"GET / HTTP/1.1\r\n");
            }
            idle.push(stream);
        }
        role::connect(&addr, &secret, &Claim::User).unwrap();
        assert_eq!(claims.recv_timeout(timeout).unwrap(), Claim::User);
        // Those who were sent away were told nothing.
        let mut heard = [0];
        assert!(!matches!(idle[0].read(&mut heard), Ok(1..)));
    }
}
