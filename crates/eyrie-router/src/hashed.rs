//! What is saved to a file or a stream: a magic number, the content, and the BLAKE3 hash of both.
//! Routers and the keeper of ledgers save so. A partial file never replaces a whole one, and it
//! must never be taken for a whole one when it is read.

use blake3::{Hasher, OUT_LEN};
use eyrie_wire::formats::{Format, MAGIC_LEN};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Take, Write};
use std::path::Path;

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

/// Writes what `save` writes, behind its magic number and before its hash. Returns the length of
/// all of it in bytes.
///
/// # Errors
/// Those of `to` and of `save`.
pub fn write(
    format: &Format,
    to: impl Write,
    save: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<u64> {
    let mut to = Hashed::new(BufWriter::with_capacity(PIECE, to));
    to.write_all(&format.magic)?;
    save(&mut to)?;
    let bytes = to.bytes + OUT_LEN as u64;
    let hash = to.hasher.finalize();
    to.inner.write_all(hash.as_bytes())?;
    to.inner.flush()?;
    Ok(bytes)
}

/// The same to a file, which is whole and on stable storage then.
///
/// # Errors
/// Those of the file and of `save`.
pub fn write_file(
    format: &Format,
    path: &Path,
    save: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<u64> {
    let partial = path.with_extension("partial");
    let file = File::create(&partial)?;
    let bytes = write(format, &file, save)?;
    file.sync_all()?;
    std::fs::rename(&partial, path)?;
    Ok(bytes)
}

/// Content that is being read. It counts when [`Content::finish`] has found it whole.
pub struct Content<R>(Hashed<Take<BufReader<R>>>);

impl Content<File> {
    /// That of a file.
    ///
    /// # Errors
    /// As [`Content::new`].
    pub fn open(format: &Format, path: &Path) -> io::Result<Content<File>> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        Content::new(format, bytes, file)
    }
}

impl<R: Read> Content<R> {
    /// That of `bytes` bytes of `from`, with magic number and hash.
    ///
    /// # Errors
    /// Those of `from`; `InvalidData` when it is of another format, which is named.
    pub fn new(format: &Format, bytes: u64, from: R) -> io::Result<Content<R>> {
        let content = bytes.checked_sub(OUT_LEN as u64).ok_or(ErrorKind::UnexpectedEof)?;
        let reader = BufReader::with_capacity(PIECE, from);
        let mut from = Hashed::new(reader.take(content));
        let mut magic = [0; MAGIC_LEN];
        from.read_exact(&mut magic)?;
        if format.strip(&magic).is_none() {
            let what = format.mistaken(&magic);
            let what = what.unwrap_or_else(|| format!("it is not {}", format.name));
            return Err(io::Error::new(ErrorKind::InvalidData, what));
        }
        Ok(Content(from))
    }

    /// All of it was read, and is as it was written.
    ///
    /// # Errors
    /// Those of the reader; `InvalidData` when it is not so.
    pub fn finish(self) -> io::Result<()> {
        let Content(mut from) = self;
        let whole = from.inner.limit() == 0;
        let found = from.hasher.finalize();
        let mut hash = [0; OUT_LEN];
        from.inner.get_mut().read_exact(&mut hash)?;
        if whole && found == hash {
            Ok(())
        } else {
            Err(io::Error::new(ErrorKind::InvalidData, "its hash does not match"))
        }
    }

    /// Reads the rest, whatever it is, and finds whether all is as it was written.
    ///
    /// # Errors
    /// As [`Content::finish`].
    pub fn verify(mut self) -> io::Result<()> {
        io::copy(&mut self, &mut io::sink())?;
        self.finish()
    }
}

impl<R: Read> Read for Content<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read(bytes)
    }
}

/// Says of an error whether what was saved is damaged, or cannot be read. `what` it is, and where.
pub fn explained(what: &str, place: &str, e: &io::Error) -> io::Error {
    let state = if is_damaged(e) { "is damaged" } else { "cannot be read" };
    let cause = match e.kind() {
        ErrorKind::UnexpectedEof => "it ends too early".to_string(),
        _ => e.to_string(),
    };
    io::Error::new(e.kind(), format!("{what} that was saved in {place} {state}: {cause}"))
}

/// Whether an error is of what was read, and not of the reading.
fn is_damaged(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof)
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::formats::{self, SAVED_ROUTER};

    fn save(to: &mut dyn Write) -> io::Result<()> {
        to.write_all(b"some content")
    }

    #[test]
    fn a_changed_byte_and_a_missing_end_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("saved");
        let bytes = write_file(&SAVED_ROUTER, &path, save).unwrap();
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(
            (bytes, std::fs::read_dir(dir.path()).unwrap().count()),
            (whole.len() as u64, 1)
        );
        let verify = |bytes: &[u8]| {
            Content::new(&SAVED_ROUTER, bytes.len() as u64, bytes).and_then(Content::verify)
        };
        verify(&whole).unwrap();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 4;
            assert!(is_damaged(&verify(&changed).unwrap_err()), "byte {at}");
            assert!(is_damaged(&verify(&whole[..at]).unwrap_err()), "{at} bytes of it");
        }
        let mut begun = Content::open(&SAVED_ROUTER, &path).unwrap();
        begun.read_exact(&mut [0; 3]).unwrap();
        assert!(is_damaged(&begun.finish().unwrap_err()), "the rest was not read");
    }

    #[test]
    fn a_file_that_is_not_written_to_its_end_replaces_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("saved");
        write_file(&SAVED_ROUTER, &path, save).unwrap();
        let fails = |to: &mut dyn Write| {
            to.write_all(b"half")?;
            Err(io::Error::other("no more"))
        };
        assert!(write_file(&SAVED_ROUTER, &path, fails).is_err());
        Content::open(&SAVED_ROUTER, &path).unwrap().verify().unwrap();
    }

    #[test]
    fn another_format_is_refused_by_name() {
        for other in formats::ALL.into_iter().filter(|other| **other != SAVED_ROUTER) {
            let bytes = [&other.magic[..], &[0; 100]].concat();
            let refused = Content::new(&SAVED_ROUTER, 108, &bytes[..]).err().unwrap().to_string();
            assert!(refused.contains(&format!("it is {}", other.name)), "{refused}");
        }
    }
}
