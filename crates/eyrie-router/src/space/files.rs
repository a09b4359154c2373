//! The real files: segments in memory (memfd) or without a name on disk, and log blocks in one file
//! without a name. Nothing is left behind when the router dies. Freed blocks are returned to the
//! file system.

use super::store::Store;
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files in a directory.
pub struct Files {
    dir: PathBuf,
    blocks: File,
    end: u64,
    used: u64,
}

impl Files {
    /// # Errors
    /// When `dir` cannot be written.
    pub fn create(dir: &Path) -> io::Result<Files> {
        Ok(Files { dir: dir.into(), blocks: unnamed_file(dir)?, end: 0, used: 0 })
    }
}

/// Makes a file without a name in a directory.
///
/// # Errors
/// When none can be made there.
pub fn unnamed_file(dir: &Path) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR) {
        Ok(fd) => Ok(fd.into()),
        // For file systems without O_TMPFILE: the name exists only for a moment.
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
            let name: [u8; 8] = eyrie_wire::auth::random();
            let path = dir.join(format!("spill-{:016x}", u64::from_le_bytes(name)));
            let file = File::options().read(true).write(true).create_new(true).open(&path)?;
            std::fs::remove_file(&path)?;
            Ok(file)
        }
        Err(e) => Err(e.into()),
    }
}

impl Store for Files {
    type File = Arc<OwnedFd>;

    fn memory_file(&mut self, _bytes: u64) -> io::Result<Arc<OwnedFd>> {
        // It grows as it is written.
        Ok(Arc::new(rustix::fs::memfd_create("eyrie-segment", MemfdFlags::CLOEXEC)?))
    }

    fn disk_file(&mut self, bytes: u64) -> io::Result<Arc<OwnedFd>> {
        let file = unnamed_file(&self.dir)?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
        Ok(Arc::new(file.into()))
    }

    fn read_file(&self, file: &Arc<OwnedFd>, offset: u64, to: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < to.len() {
            match rustix::io::pread(file, &mut to[done..], offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn write_file(&mut self, file: &Arc<OwnedFd>, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pwrite(file, &bytes[done..], offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn write_block(&mut self, bytes: &[u8]) -> io::Result<u64> {
        let offset = self.end;
        if let Err(e) = self.blocks.write_all_at(bytes, offset) {
            let _ = self.blocks.set_len(offset);
            return Err(e);
        }
        self.end += bytes.len() as u64;
        self.used += bytes.len() as u64;
        Ok(offset)
    }

    fn read_block(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.blocks.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    fn free_block(&mut self, offset: u64, len: usize) {
        self.used -= len as u64;
        if self.used == 0 {
            self.end = 0;
            let _ = self.blocks.set_len(0);
            return;
        }
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // A file system without holes keeps the space until all blocks are free, which does no
        // harm.
        let _ = rustix::fs::fallocate(&self.blocks, punch, offset, len as u64);
    }
}
