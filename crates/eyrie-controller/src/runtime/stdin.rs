//! Standard input for rank 0, kept from the last image on, so that a later incarnation of the rank reads it again. It is
//! kept in a file: nobody knows how much there will be.

use super::inbound::Inbound;
use crossbeam_channel::Sender;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// How much is read before anybody wants it, in bytes.
const AHEAD: u64 = 1 << 20;
/// Most bytes handed to an agent at once.
pub const PIECE: usize = 64 * 1024;

#[derive(Debug, Default)]
struct Progress {
    /// Bytes read so far, and whether that is all.
    read: u64,
    eof: bool,
    /// What the rank wants to have next.
    wanted: u64,
}

/// The input of a job.
pub struct Stdin {
    file: File,
    progress: Arc<(Mutex<Progress>, Condvar)>,
}

fn lock(progress: &(Mutex<Progress>, Condvar)) -> MutexGuard<'_, Progress> {
    progress.0.lock().unwrap_or_else(|e| e.into_inner())
}

impl Stdin {
    /// Starts to read our own standard input, as far ahead as [`AHEAD`].
    ///
    /// # Errors
    /// When the file cannot be made in `dir`.
    pub fn start(dir: &Path, inbound: Sender<Inbound>) -> io::Result<Stdin> {
        let path = dir.join("stdin");
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        // Its name is not needed, and its space goes with the process.
        std::fs::remove_file(&path)?;
        let progress = Arc::new((Mutex::new(Progress::default()), Condvar::new()));
        let (mut keep, shared) = (file.try_clone()?, Arc::clone(&progress));
        std::thread::spawn(move || {
            let mut bytes = vec![0; PIECE];
            loop {
                let mut p = lock(&shared);
                while p.read >= p.wanted + AHEAD {
                    p = shared.1.wait(p).unwrap_or_else(|e| e.into_inner());
                }
                drop(p);
                let got = match io::stdin().lock().read(&mut bytes) {
                    Ok(n) => n,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                    // No input, or a terminal that belongs to somebody else.
                    Err(_) => 0,
                };
                let kept = keep.write_all(&bytes[..got]);
                if let Err(e) = &kept {
                    let text =
                        format!("standard input ends here for the program: cannot keep it: {e}");
                    let _ = inbound.send(Inbound::Note(text));
                }
                let mut p = lock(&shared);
                match kept {
                    Ok(()) if got > 0 => p.read += got as u64,
                    _ => p.eof = true,
                }
                let eof = p.eof;
                drop(p);
                if inbound.send(Inbound::Stdin).is_err() || eof {
                    return;
                }
            }
        });
        Ok(Stdin { file, progress })
    }

    /// The piece at `offset`, and whether the input ends with it. `None`: it has not been read yet.
    pub fn piece(&self, offset: u64) -> Option<(Vec<u8>, bool)> {
        let mut p = lock(&self.progress);
        p.wanted = p.wanted.max(offset);
        self.progress.1.notify_one();
        let (read, eof) = (p.read, p.eof);
        drop(p);
        let len = read.saturating_sub(offset).min(PIECE as u64) as usize;
        if len == 0 {
            return eof.then(|| (Vec::new(), true));
        }
        let mut bytes = vec![0; len];
        match self.file.read_exact_at(&mut bytes, offset) {
            Ok(()) => Some((bytes, eof && offset + len as u64 == read)),
            Err(_) => None,
        }
    }

    /// No incarnation of the rank will read before `offset` any more.
    pub fn truncate(&self, offset: u64) {
        use rustix::fs::{fallocate, FallocateFlags};
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // A file system that cannot do it keeps the space, no more.
        let _ = fallocate(&self.file, flags, 0, offset.max(1));
    }
}
