//! The file that the ledgers of a job are saved to: what the core writes, followed by its BLAKE3
//! hash. A partial file never replaces a whole one, and no keeper goes on with one.

use crate::core::Head;
use blake3::{Hasher, OUT_LEN};
use eyrie_wire::formats::{MAGIC_LEN, SAVED_LEDGERS};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Take, Write};
use std::path::{Path, PathBuf};

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

/// Writes what `save` writes to a file, which is whole and on stable storage then. Returns its
/// length in bytes.
///
/// # Errors
/// Those of the file, and of `save`.
pub fn write(path: &Path, save: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<u64> {
    let partial = path.with_extension("partial");
    let file = File::create(&partial)?;
    let mut to = Hashed::new(BufWriter::with_capacity(PIECE, &file));
    to.write_all(&SAVED_LEDGERS.magic)?;
    save(&mut to)?;
    let bytes = to.bytes + OUT_LEN as u64;
    let hash = to.hasher.finalize();
    to.inner.write_all(hash.as_bytes())?;
    to.inner.flush()?;
    drop(to);
    file.sync_all()?;
    std::fs::rename(&partial, path)?;
    Ok(bytes)
}

/// A file of saved ledgers that is being read.
pub struct Saved {
    path: PathBuf,
    from: Hashed<Take<BufReader<File>>>,
    pub head: Head,
}

impl Saved {
    /// Opens a file and reads its beginning.
    ///
    /// # Errors
    /// When it is not such a file, or cannot be read.
    pub fn open(path: &Path) -> io::Result<Saved> {
        let open = || {
            let file = File::open(path)?;
            let bytes = file.metadata()?.len();
            let content = bytes.checked_sub(OUT_LEN as u64).ok_or(ErrorKind::UnexpectedEof)?;
            let reader = BufReader::with_capacity(PIECE, file);
            let mut from = Hashed::new(reader.take(content));
            let mut magic = [0; MAGIC_LEN];
            from.read_exact(&mut magic)?;
            if SAVED_LEDGERS.strip(&magic).is_none() {
                let what = SAVED_LEDGERS.mistaken(&magic);
                let what = what.unwrap_or_else(|| format!("it is not {}", SAVED_LEDGERS.name));
                return Err(io::Error::new(ErrorKind::InvalidData, what));
            }
            let head = Head::read(&mut from)?;
            Ok(Saved { path: path.into(), from, head })
        };
        open().map_err(|e| explained(path, &e))
    }

    /// What `read` makes of the rest, if the file is as it was written.
    ///
    /// # Errors
    /// When it is not, or cannot be read; and those of `read`.
    pub fn read<T>(self, read: impl FnOnce(&mut dyn Read) -> io::Result<T>) -> io::Result<T> {
        let Saved { path, mut from, .. } = self;
        let checked = || {
            let made = read(&mut from)?;
            let whole = from.inner.limit() == 0;
            let found = from.hasher.finalize();
            let mut hash = [0; OUT_LEN];
            from.inner.get_mut().read_exact(&mut hash)?;
            if whole && found == hash {
                Ok(made)
            } else {
                Err(io::Error::new(ErrorKind::InvalidData, "its hash does not match"))
            }
        };
        checked().map_err(|e| explained(&path, &e))
    }
}

/// Whether a file is as it was written.
///
/// # Errors
/// When it is not, or cannot be read.
pub fn verify(path: &Path) -> io::Result<()> {
    Saved::open(path)?.read(|from| io::copy(from, &mut io::sink()).map(drop))
}

fn explained(path: &Path, e: &io::Error) -> io::Error {
    let damaged = matches!(e.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof);
    let what = if damaged { "are damaged" } else { "cannot be read" };
    io::Error::new(e.kind(), format!("the saved ledgers in {} {what}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::formats;

    fn save(to: &mut dyn Write) -> io::Result<()> {
        for n in [2u64, 4, 1 << 26, 9] {
            to.write_all(&n.to_le_bytes())?;
        }
        Ok(())
    }

    #[test]
    fn what_was_saved_is_read_and_a_changed_byte_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("router-0");
        let bytes = write(&path, save).unwrap();
        assert_eq!(bytes, std::fs::metadata(&path).unwrap().len());
        verify(&path).unwrap();
        let saved = Saved::open(&path).unwrap();
        assert_eq!(saved.head, Head { ranks: 4, region_bytes: 1 << 26 });
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 4;
            std::fs::write(&path, &changed).unwrap();
            let said = verify(&path).unwrap_err().to_string();
            assert!(said.contains("are damaged"), "{said}");
            std::fs::write(&path, &whole[..at]).unwrap();
            assert!(verify(&path).is_err(), "{at} bytes of it");
        }
    }

    #[test]
    fn a_file_of_another_format_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("router-0");
        for other in formats::ALL.into_iter().filter(|other| **other != SAVED_LEDGERS) {
            std::fs::write(&path, [&other.magic[..], &[0; 100]].concat()).unwrap();
            let refused = verify(&path).unwrap_err().to_string();
            assert!(refused.contains(&format!("it is {}", other.name)), "{refused}");
        }
    }
}
