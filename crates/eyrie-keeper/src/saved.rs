//! The file that the ledgers of a job are saved to. No keeper goes on with a partial one.

use crate::core::Head;
use eyrie_router::hashed::{self, Content};
use eyrie_wire::formats::SAVED_LEDGERS;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Writes what `save` writes to a file, which is whole and on stable storage then. Returns its
/// length in bytes.
///
/// # Errors
/// Those of the file, and of `save`.
pub fn write(path: &Path, save: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<u64> {
    hashed::write_file(&SAVED_LEDGERS, path, save)
}

/// A file of saved ledgers that is being read.
pub struct Saved {
    path: PathBuf,
    from: Content<File>,
    pub head: Head,
}

impl Saved {
    /// Opens a file and reads its beginning.
    ///
    /// # Errors
    /// When it is not such a file, or cannot be read.
    pub fn open(path: &Path) -> io::Result<Saved> {
        let open = || {
            let mut from = Content::open(&SAVED_LEDGERS, path)?;
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
            from.finish()?;
            Ok(made)
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
    hashed::explained("the log", &path.display().to_string(), e)
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
            assert!(said.contains("router-0 is damaged"), "{said}");
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
