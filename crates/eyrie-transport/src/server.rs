//! Accepting connections: who comes, and proves itself. A connection gets a thread; a peer that has
//! not proven itself gets neither memory nor time beyond a bound.

use crate::handshake::{accept, HandshakeError};
use crate::{Addr, Bind, Listener, Stream};
use eyrie_wire::auth::Secret;
use eyrie_wire::control::Claim;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// How long each step of a handshake may take; streams are handed on with this timeout.
pub const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// Most connections that are in their handshake at a time.
const MAX_STRANGERS: usize = 64;

/// What is behind a listening address. All calls come from the threads of connections.
pub trait Service: Send + Sync + 'static {
    fn secret(&self) -> &Secret;

    /// Whether somebody who has proven to know the secret may come in.
    ///
    /// # Errors
    /// Why not; the peer hears it.
    fn admit(&self, claim: &Claim) -> Result<(), String>;

    /// Serves a connection that was let in, to its end.
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
    let strangers = Arc::new(AtomicUsize::new(0));
    std::thread::spawn(move || loop {
        let Ok(stream) = listener.accept() else {
            // Out of descriptors: those that are open come to an end.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        if strangers.fetch_add(1, Ordering::Relaxed) >= MAX_STRANGERS {
            strangers.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (service, strangers) = (Arc::clone(&service), Arc::clone(&strangers));
        std::thread::spawn(move || {
            let met = meet(stream, &*service);
            strangers.fetch_sub(1, Ordering::Relaxed);
            if let Some((claim, stream)) = met {
                service.serve(claim, stream);
            }
        });
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
