//! A copy of the controller's journal on this host, with what else another controller needs to go
//! on with the job. A copy that is not whole yet never replaces one that is.

use eyrie_wire::auth::Secret;
use eyrie_wire::NodeId;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The copy that is kept on this host, if there is one.
#[derive(Default)]
pub struct JournalCopy(Option<Journal>);

impl JournalCopy {
    /// Whether there is one.
    pub fn is_kept(&self) -> bool {
        self.0.is_some()
    }

    /// Keeps a piece of the controller's journal, in the job's directory. Returns the copy's new
    /// end. A copy that cannot be written is one no longer.
    pub fn keep(
        &mut self,
        (dir, node, secret): (Option<&Path>, NodeId, &Secret),
        at: u64,
        bytes: &[u8],
        begins: bool,
        whole: bool,
    ) -> Result<u64, String> {
        let mut journal = match (self.0.take(), dir) {
            (_, Some(dir)) if begins => Journal::begin(dir, node, secret, at),
            (Some(journal), _) if !begins => Ok(journal),
            _ => Err(ErrorKind::NotFound.into()),
        }
        .map_err(|e| e.to_string())?;
        let end = journal.add(at, bytes, whole).map_err(|e| e.to_string())?;
        self.0 = Some(journal);
        Ok(end)
    }
}

/// The copy.
struct Journal {
    file: File,
    /// The position of the journal up to which the copy goes.
    end: u64,
    partial: PathBuf,
    whole: PathBuf,
}

impl Journal {
    /// Begins a copy in the job's directory, `at` a position of the journal.
    ///
    /// # Errors
    /// When it cannot be written.
    fn begin(dir: &Path, node: NodeId, secret: &Secret, at: u64) -> io::Result<Journal> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        match options.clone().create_new(true).open(dir.join("secret")) {
            Ok(mut file) => file.write_all(&secret.kept())?,
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
        let whole = dir.join(format!("journal-{node}"));
        let partial = whole.with_extension("partial");
        Ok(Journal { file: options.open(&partial)?, end: at, partial, whole })
    }

    /// Adds a piece that begins at `at`. `whole`: the copy is whole with it. Returns the new end.
    ///
    /// # Errors
    /// When it cannot be written, or begins elsewhere than at the end.
    fn add(&mut self, at: u64, bytes: &[u8], whole: bool) -> io::Result<u64> {
        if at != self.end {
            let text = format!("a piece at {at} of a journal that ends at {}", self.end);
            return Err(io::Error::new(ErrorKind::InvalidData, text));
        }
        self.file.write_all(bytes)?;
        self.end += bytes.len() as u64;
        if whole {
            std::fs::rename(&self.partial, &self.whole)?;
        }
        Ok(self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_is_not_whole_does_not_replace_one_that_is() {
        let dir = tempfile::tempdir().unwrap();
        let begin = |at| Journal::begin(dir.path(), NodeId(3), &Secret([7; 32]), at).unwrap();
        let path = dir.path().join("journal-3");
        let mut first = begin(0);
        assert_eq!(first.add(0, b"ab", false).unwrap(), 2);
        assert!(!path.exists());
        assert_eq!(first.add(2, b"c", true).unwrap(), 3);
        first.add(3, b"d", false).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"abcd");
        let mut second = begin(4);
        second.add(4, b"x", false).unwrap();
        assert!(second.add(4, b"x", false).is_err(), "not its end");
        assert_eq!(std::fs::read(&path).unwrap(), b"abcd");
        assert_eq!(crate::read_secret(dir.path()).unwrap(), Secret([7; 32]));
    }
}
