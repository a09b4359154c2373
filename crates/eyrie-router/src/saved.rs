//! What a router is saved to, a file or a connection to the controller. No router goes on with a
//! partial copy.

use crate::hashed::{self, Content};
use crate::protocol::{Protocol, SavedAt};
use crate::space::Store;
use eyrie_transport::{frame, role, Stream};
use eyrie_wire::auth::Secret;
use eyrie_wire::control::Claim;
use eyrie_wire::formats::SAVED_ROUTER;
use eyrie_wire::role_address::Addr;
use eyrie_wire::RouterId;
use std::io::{self, Read};
use std::net::Shutdown;
use std::path::Path;
use std::time::Duration;

/// How long the controller may neither accept nor send anything.
const STALL: Duration = Duration::from_secs(60);

/// Writes all that a router holds; `identity`: the router's number and the job's secret. Returns
/// its length in bytes.
///
/// # Errors
/// Those of the file or the connection, and of [`Protocol::save`].
pub fn write<S: Store>(
    protocol: &Protocol<S>,
    at: &SavedAt,
    identity: (RouterId, &Secret),
) -> io::Result<u64> {
    match at {
        SavedAt::File(path) => {
            hashed::write_file(&SAVED_ROUTER, path, |mut to| protocol.save(&mut to))
        }
        SavedAt::Controller(addr) => hand_over(protocol, addr, identity),
    }
}

/// Sends all to the controller, and waits until it is on stable storage there.
fn hand_over<S: Store>(
    protocol: &Protocol<S>,
    addr: &Addr,
    (id, secret): (RouterId, &Secret),
) -> io::Result<u64> {
    let mut stream = connect(addr, secret, &Claim::RouterSave { id })?;
    let bytes = hashed::write(&SAVED_ROUTER, &mut stream, |mut to| protocol.save(&mut to))?;
    stream.shutdown(Shutdown::Write)?;
    let kept: Result<u64, String> = frame::read(&mut stream)?;
    match kept.map_err(io::Error::other)? {
        kept if kept == bytes => Ok(bytes),
        kept => Err(io::Error::other(format!("{kept} of {bytes} bytes have arrived"))),
    }
}

fn connect(addr: &Addr, secret: &Secret, claim: &Claim) -> io::Result<Stream> {
    let stream = role::connect(addr, secret, claim).map_err(io::Error::other)?;
    stream.set_timeout(Some(STALL))?;
    Ok(stream)
}

/// A router with all that was saved there; `identity`: its number and the job's secret.
///
/// # Errors
/// Those of the file or the connection, and of [`Protocol::restored`]; `InvalidData` when the
/// content is not as it was written.
pub fn read<S: Store>(
    protocol: Protocol<S>,
    at: &SavedAt,
    identity: (RouterId, &Secret),
) -> io::Result<Protocol<S>> {
    let (restored, shown) = match at {
        SavedAt::File(path) => (read_file(protocol, path), path.display().to_string()),
        SavedAt::Controller(addr) => {
            (fetch(protocol, addr, identity), format!("router {}", identity.0))
        }
    };
    restored.map_err(|e| explained(&shown, &e))
}

fn explained(place: &str, e: &io::Error) -> io::Error {
    hashed::explained("the router", place, e)
}

/// Whether a file is as it was written.
///
/// # Errors
/// When it is not, or cannot be read.
pub fn verify(path: &Path) -> io::Result<()> {
    let verified = Content::open(&SAVED_ROUTER, path).and_then(Content::verify);
    verified.map_err(|e| explained(&path.display().to_string(), &e))
}

fn read_file<S: Store>(protocol: Protocol<S>, path: &Path) -> io::Result<Protocol<S>> {
    restore(protocol, Content::open(&SAVED_ROUTER, path)?)
}

fn fetch<S: Store>(
    protocol: Protocol<S>,
    addr: &Addr,
    (id, secret): (RouterId, &Secret),
) -> io::Result<Protocol<S>> {
    let mut stream = connect(addr, secret, &Claim::RouterSaved { id })?;
    let bytes: Result<u64, String> = frame::read(&mut stream)?;
    let bytes = bytes.map_err(io::Error::other)?;
    restore(protocol, Content::new(&SAVED_ROUTER, bytes, stream)?)
}

/// The router that was saved so, if it is as it was written.
fn restore<S: Store>(
    protocol: Protocol<S>,
    mut from: Content<impl Read>,
) -> io::Result<Protocol<S>> {
    let restored = protocol.restored(&mut from)?;
    from.finish()?;
    Ok(restored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::formats;

    #[test]
    fn a_file_of_another_format_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("router-0");
        for other in formats::ALL.into_iter().filter(|other| **other != SAVED_ROUTER) {
            std::fs::write(&path, [&other.magic[..], &[0; 100]].concat()).unwrap();
            let refused = verify(&path).unwrap_err().to_string();
            assert!(refused.contains(&format!("it is {}", other.name)), "{refused}");
        }
        std::fs::write(&path, [7; 100]).unwrap();
        assert!(verify(&path).unwrap_err().to_string().contains("it is not a saved router"));
    }
}
