//! The file that a router is saved to: what the protocol writes, and its BLAKE3 hash behind it. A
//! file that is not whole never takes the place of one that is, and is never gone on with.

use crate::protocol::Protocol;
use crate::space::Store;
use blake3::{Hasher, OUT_LEN};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

/// Bytes that are written or read at a time.
const PIECE: usize = 1 << 20;

/// Hashes what passes.
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

/// Writes all that a router holds to a file; returns its length in bytes.
///
/// # Errors
/// Those of the file, and of [`Protocol::save`].
pub fn write<S: Store>(protocol: &Protocol<S>, path: &Path) -> io::Result<u64> {
    let partial = path.with_extension("partial");
    let file = File::create(&partial)?;
    let mut to = Hashed::new(BufWriter::with_capacity(PIECE, &file));
    protocol.save(&mut to)?;
    let (hash, bytes) = (to.hasher.finalize(), to.bytes);
    to.inner.write_all(hash.as_bytes())?;
    to.inner.flush()?;
    drop(to);
    file.sync_all()?;
    std::fs::rename(&partial, path)?;
    Ok(bytes + OUT_LEN as u64)
}

/// A router with all that a file holds.
///
/// # Errors
/// Those of the file, and of [`Protocol::restored`]; `InvalidData` when it is not as it was written.
pub fn read<S: Store>(protocol: Protocol<S>, path: &Path) -> io::Result<Protocol<S>> {
    let restore = || {
        let file = File::open(path)?;
        let all = file.metadata()?.len();
        let content = all.checked_sub(OUT_LEN as u64).ok_or(io::ErrorKind::UnexpectedEof)?;
        let reader = BufReader::with_capacity(PIECE, file);
        let mut from = Hashed::new(reader.take(content));
        let protocol = protocol.restored(&mut from)?;
        let mut hash = [0; OUT_LEN];
        let (whole, found) = (from.bytes == content, from.hasher.finalize());
        from.inner.into_inner().read_exact(&mut hash)?;
        match whole && found == hash {
            true => Ok(protocol),
            false => Err(io::Error::new(io::ErrorKind::InvalidData, "its hash is another one")),
        }
    };
    restore().map_err(|e: io::Error| {
        let damaged = matches!(e.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof);
        let what = if damaged { "is damaged" } else { "cannot be read" };
        io::Error::new(e.kind(), format!("what was saved in {} {what}: {e}", path.display()))
    })
}
