//! The file that takes log blocks beyond the memory bound. It has no name, so nothing is left behind
//! when the router dies; freed stretches are given back to the file system at once.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// An unnamed file with blocks.
pub struct Spill {
    file: File,
    end: u64,
    used: u64,
}

/// An unnamed file in `dir`.
///
/// # Errors
/// When `dir` cannot be written.
pub fn unnamed_file(dir: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR) {
        Ok(fd) => Ok(fd.into()),
        // File systems without O_TMPFILE: a name that lives for a moment.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR) => {
            let name: [u8; 8] = eyrie_wire::auth::random();
            let path = dir.join(format!("spill-{:016x}", u64::from_le_bytes(name)));
            let file = File::options().read(true).write(true).create_new(true).open(&path)?;
            std::fs::remove_file(&path)?;
            Ok(file)
        }
        Err(e) => Err(e.into()),
    }
}

impl Spill {
    /// An empty one in `dir`.
    ///
    /// # Errors
    /// When `dir` cannot be written.
    pub fn create(dir: &Path) -> io::Result<Spill> {
        Ok(Spill { file: unnamed_file(dir)?, end: 0, used: 0 })
    }

    /// Bytes held at present.
    pub fn bytes(&self) -> u64 {
        self.used
    }

    /// Writes a block, returns where it lies.
    ///
    /// # Errors
    /// When the disk does not take it; nothing counts then.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<u64> {
        let offset = self.end;
        if let Err(e) = self.file.write_all_at(bytes, offset) {
            let _ = self.file.set_len(offset);
            return Err(e);
        }
        self.end += bytes.len() as u64;
        self.used += bytes.len() as u64;
        Ok(offset)
    }

    /// Reads a block back.
    ///
    /// # Errors
    /// The file's.
    pub fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// Gives a block's space back.
    pub fn free(&mut self, offset: u64, len: usize) {
        use rustix::fs::FallocateFlags;
        self.used -= len as u64;
        if self.used == 0 {
            self.end = 0;
            let _ = self.file.set_len(0);
            return;
        }
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // A file system that cannot punch keeps the space until all blocks are free: no harm else.
        let _ = rustix::fs::fallocate(&self.file, punch, offset, len as u64);
    }
}
