//! The files of spilled messages: one for each rank that has some, in the directory of the log.
//! They have no name and end with the processes that use them. What is freed is returned to the
//! file system.

use crate::core::Store;
use eyrie_router::space::unnamed_file;
use eyrie_wire::Rank;
use rustix::fs::{fallocate, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// The files of a job's ranks.
pub struct SpillFiles {
    dir: PathBuf,
    all: Vec<Option<File>>,
}

impl SpillFiles {
    /// Files in a directory, which are made when they are needed.
    pub fn new(dir: PathBuf, ranks: u32) -> SpillFiles {
        SpillFiles { dir, all: (0..ranks).map(|_| None).collect() }
    }

    /// A rank's file, to be read only, if it has one.
    ///
    /// # Errors
    /// When there is no descriptor.
    pub fn readable(&self, rank: Rank) -> io::Result<Option<OwnedFd>> {
        let Some(file) = &self.all[rank.index()] else { return Ok(None) };
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(readable) => Ok(Some(readable)),
            // Not every file system opens a file anew that has no name.
            Err(_) => Ok(Some(file.try_clone()?.into())),
        }
    }

    /// Says which files cannot be used.
    fn said(&self, e: &io::Error) -> io::Error {
        let remedy = match e.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::FBIG) => "; raise `ulimit -f`",
            _ => "",
        };
        io::Error::new(e.kind(), format!("{}: {e}{remedy}", self.dir.display()))
    }

    fn file(&mut self, rank: Rank) -> io::Result<&File> {
        let file = &mut self.all[rank.index()];
        if file.is_none() {
            // The job's directory may have been removed.
            std::fs::create_dir_all(&self.dir)?;
            *file = Some(unnamed_file(&self.dir)?);
        }
        file.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Store for SpillFiles {
    fn write(&mut self, rank: Rank, at: u64, bytes: &[u8]) -> io::Result<()> {
        let written = self.file(rank).and_then(|file| file.write_all_at(bytes, at));
        written.map_err(|e| self.said(&e))
    }

    fn read(&self, rank: Rank, at: u64, to: &mut [u8]) -> io::Result<()> {
        let file = self.all[rank.index()].as_ref().ok_or(io::ErrorKind::UnexpectedEof)?;
        file.read_exact_at(to, at).map_err(|e| self.said(&e))
    }

    fn free(&mut self, rank: Rank, begin: u64, end: u64) {
        let Some(file) = &self.all[rank.index()] else { return };
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // A file system without holes keeps the space until nothing of the file is needed.
        let _ = fallocate(file, punch, begin, end - begin);
    }

    fn truncate(&mut self, rank: Rank, end: u64) {
        if let Some(file) = &self.all[rank.index()] {
            // What stays there is written over.
            let _ = file.set_len(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn bytes_are_read_as_they_were_written_and_freed_space_is_returned() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("removed");
        let mut files = SpillFiles::new(inner.clone(), 2);
        assert!(files.readable(Rank(1)).unwrap().is_none());
        assert!(files.read(Rank(1), 0, &mut [0]).is_err());
        files.write(Rank(1), 0, &[7; 1 << 20]).unwrap();
        files.write(Rank(1), 1 << 20, b"more").unwrap();
        assert_eq!(std::fs::read_dir(&inner).unwrap().count(), 0, "it has no name");
        let readable = File::from(files.readable(Rank(1)).unwrap().unwrap());
        let blocks = readable.metadata().unwrap().blocks();
        files.free(Rank(1), 0, 1 << 20);
        assert!(readable.metadata().unwrap().blocks() < blocks);
        let mut bytes = [0; 4];
        readable.read_exact_at(&mut bytes, 1 << 20).unwrap();
        assert_eq!(&bytes, b"more");
        assert!(readable.write_at(b"x", 0).is_err());
        files.truncate(Rank(1), 0);
        assert_eq!(readable.metadata().unwrap().len(), 0);
    }

    #[test]
    fn what_cannot_be_written_is_said_with_its_place() {
        let mut files = SpillFiles::new("/proc/none".into(), 1);
        let said = files.write(Rank(0), 0, b"x").unwrap_err().to_string();
        assert!(said.starts_with("/proc/none: "), "{said}");
    }
}
