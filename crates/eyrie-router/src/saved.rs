//! What a router is saved to, a file or a connection to the controller: what the protocol writes,
//! followed by its BLAKE3 hash. A partial copy never replaces a whole one, and no router goes on
//! with it.

use crate::protocol::{Protocol, SavedAt};
use crate::space::Store;
use blake3::{Hasher, OUT_LEN};
use eyrie_transport::{frame, role, Stream};
use eyrie_wire::auth::Secret;
use eyrie_wire::control::Claim;
use eyrie_wire::formats::{MAGIC_LEN, SAVED_ROUTER};
use eyrie_wire::role_address::Addr;
use eyrie_wire::RouterId;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::net::Shutdown;
use std::path::Path;
use std::time::Duration;

/// How long the controller may neither accept nor send anything.
const STALL: Duration = Duration::from_secs(60);

/// Bytes that are written or read at a time.
const PIECE: usize = 1 << 20;

/// Hashes what is written or read.
struct Hashed<T> {
    inner: T,
    hasher: Hasher,
    bytes: u64,
}

impl<T> Hashed<T> {
    fn new(inner: T) -> Hashed<T> {
        Hashed { inner, hasher: Hasher::new(), bytes: 0 }
    }

    fn passed(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
    }
}

impl<T: Write> Write for Hashed<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.passed(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Hashed<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(bytes)?;
        self.passed(&bytes[..n]);
        Ok(n)
    }
}

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
        SavedAt::File(path) => write_file(protocol, path),
        SavedAt::Controller(addr) => hand_over(protocol, addr, identity),
    }
}

fn write_file<S: Store>(protocol: &Protocol<S>, path: &Path) -> io::Result<u64> {
    let partial = path.with_extension("partial");
    let file = File::create(&partial)?;
    let bytes = put(protocol, &file)?;
    file.sync_all()?;
    std::fs::rename(&partial, path)?;
    Ok(bytes)
}

/// Sends all to the controller, and waits until it is on stable storage there.
fn hand_over<S: Store>(
    protocol: &Protocol<S>,
    addr: &Addr,
    (id, secret): (RouterId, &Secret),
) -> io::Result<u64> {
    let mut stream = connect(addr, secret, &Claim::RouterSave { id })?;
    let bytes = put(protocol, &mut stream)?;
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

/// Writes what is saved, and its hash behind it; returns the length of both.
fn put<S: Store>(protocol: &Protocol<S>, to: impl Write) -> io::Result<u64> {
    let mut to = Hashed::new(BufWriter::with_capacity(PIECE, to));
    to.write_all(&SAVED_ROUTER.magic)?;
    protocol.save(&mut to)?;
    let bytes = to.bytes;
    let hash = to.hasher.finalize();
    to.inner.write_all(hash.as_bytes())?;
    to.inner.flush()?;
    Ok(bytes + OUT_LEN as u64)
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
    let damaged = matches!(e.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof);
    let what = if damaged { "is damaged" } else { "cannot be read" };
    io::Error::new(e.kind(), format!("the saved router in {place} {what}: {e}"))
}

/// Whether a file is as it was written.
///
/// # Errors
/// When it is not, or cannot be read.
pub fn verify(path: &Path) -> io::Result<()> {
    let read = || {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        checked(bytes, file, |from| io::copy(from, &mut io::sink()).map(drop))
    };
    read().map_err(|e: io::Error| explained(&path.display().to_string(), &e))
}

fn read_file<S: Store>(protocol: Protocol<S>, path: &Path) -> io::Result<Protocol<S>> {
    let file = File::open(path)?;
    let bytes = file.metadata()?.len();
    restore(protocol, bytes, file)
}

fn fetch<S: Store>(
    protocol: Protocol<S>,
    addr: &Addr,
    (id, secret): (RouterId, &Secret),
) -> io::Result<Protocol<S>> {
    let mut stream = connect(addr, secret, &Claim::RouterSaved { id })?;
    let bytes: Result<u64, String> = frame::read(&mut stream)?;
    restore(protocol, bytes.map_err(io::Error::other)?, stream)
}

/// The router that was saved in `bytes` bytes, if they are as they were written.
fn restore<S: Store>(
    protocol: Protocol<S>,
    bytes: u64,
    from: impl Read,
) -> io::Result<Protocol<S>> {
    checked(bytes, from, |from| protocol.restored(from))
}

/// The result of `read` from `bytes` bytes, if they are as they were written.
fn checked<R: Read, T>(
    bytes: u64,
    from: R,
    read: impl FnOnce(&mut &mut dyn Read) -> io::Result<T>,
) -> io::Result<T> {
    let content = bytes.checked_sub(OUT_LEN as u64).ok_or(io::ErrorKind::UnexpectedEof)?;
    let reader = BufReader::with_capacity(PIECE, from);
    let mut from = Hashed::new(reader.take(content));
    let mut magic = [0; MAGIC_LEN];
    from.read_exact(&mut magic)?;
    if SAVED_ROUTER.strip(&magic).is_none() {
        let what = SAVED_ROUTER.mistaken(&magic);
        let what = what.unwrap_or_else(|| format!("it is not {}", SAVED_ROUTER.name));
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    let made = read(&mut (&mut from as &mut dyn Read))?;
    let mut hash = [0; OUT_LEN];
    let whole = from.bytes == content;
    let found = from.hasher.finalize();
    from.inner.into_inner().read_exact(&mut hash)?;
    if whole && found == hash {
        Ok(made)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "its hash does not match"))
    }
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
