//! Standard input for rank 0, kept from the last image on, so that a later incarnation of the rank
//! reads it again. It is kept in a file: it has no bound.

use super::inbound::{Heard, Inbound};
use crossbeam_channel::Sender;
use eyrie_wire::{NodeId, RankInstance};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// How much is read before a rank wants it, in bytes.
const AHEAD: u64 = 1 << 20;
/// Most bytes handed to an agent at once.
pub const PIECE: usize = 64 * 1024;

/// The input of a job.
pub struct Stdin {
    file: File,
    /// Nothing before this is needed any more.
    needed: u64,
    /// Bytes in the file, and whether that is all.
    read: u64,
    eof: bool,
    /// What the rank wants to have next: the reading thread stays a little ahead of it.
    wanted: Arc<(Mutex<u64>, Condvar)>,
    /// The rank that waits for a piece, on which node, and from which offset on.
    waits: Option<Wanted>,
}

/// A node, a rank on it, and the offset from which on it reads.
pub type Wanted = (NodeId, RankInstance, u64);

impl Stdin {
    /// None of it has come yet.
    ///
    /// # Errors
    /// When the file cannot be made in `dir`.
    pub fn new(dir: &Path) -> io::Result<Stdin> {
        let path = dir.join("stdin");
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        // Its name is not needed, and its space goes with the process.
        std::fs::remove_file(&path)?;
        Ok(Stdin { file, needed: 0, read: 0, eof: false, wanted: Arc::default(), waits: None })
    }

    /// Starts to read our own standard input, as far ahead as [`AHEAD`], unless all has come.
    pub fn start(&self, inbound: Sender<Inbound>) {
        let wanted = Arc::clone(&self.wanted);
        let mut read = self.read;
        let mut eof = self.eof;
        std::thread::spawn(move || {
            let mut bytes = vec![0; PIECE];
            while !eof {
                let mut w = lock(&wanted);
                while read >= *w + AHEAD {
                    w = wanted.1.wait(w).unwrap_or_else(|e| e.into_inner());
                }
                drop(w);
                let got = match io::stdin().lock().read(&mut bytes) {
                    Ok(n) => n,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                    // No input, or a terminal that belongs to another process group.
                    Err(_) => 0,
                };
                read += got as u64;
                eof = got == 0;
                let heard = Heard::Stdin { bytes: bytes[..got].to_vec(), eof };
                if inbound.send(Inbound::Heard(heard)).is_err() {
                    return;
                }
            }
        });
    }

    /// More of it has come.
    ///
    /// # Errors
    /// When it cannot be kept: the input ends here for the program.
    pub fn take(&mut self, bytes: &[u8], eof: bool) -> io::Result<()> {
        if self.eof {
            return Ok(());
        }
        self.eof = eof;
        let kept = self.file.write_all_at(bytes, self.read);
        match kept {
            Ok(()) => self.read += bytes.len() as u64,
            Err(_) => self.eof = true,
        }
        kept
    }

    /// The piece at `offset`, and whether the input ends with it. `None`: it has not been read yet.
    pub fn piece(&self, offset: u64) -> Option<(Vec<u8>, bool)> {
        let mut wanted = lock(&self.wanted);
        *wanted = (*wanted).max(offset);
        self.wanted.1.notify_one();
        drop(wanted);
        let len = self.read.saturating_sub(offset).min(PIECE as u64) as usize;
        if len == 0 {
            return self.eof.then(|| (Vec::new(), true));
        }
        let mut bytes = vec![0; len];
        match self.file.read_exact_at(&mut bytes, offset) {
            Ok(()) => Some((bytes, self.eof && offset + len as u64 == self.read)),
            Err(_) => None,
        }
    }

    /// Bytes of it, when it has ended.
    pub fn end(&self) -> Option<u64> {
        self.eof.then_some(self.read)
    }

    /// A rank on this node waits for what comes from `offset` on.
    pub fn want(&mut self, node: NodeId, instance: RankInstance, offset: u64) {
        self.waits = Some((node, instance, offset));
    }

    /// Takes the piece that a rank waits for, when it has come.
    pub fn wanted_piece(&mut self) -> Option<(Wanted, (Vec<u8>, bool))> {
        let wanted @ (_, _, offset) = self.waits?;
        let piece = self.piece(offset)?;
        self.waits = None;
        Some((wanted, piece))
    }

    /// What a rank waits for.
    pub fn wanted(&self) -> Option<Wanted> {
        self.waits
    }

    /// Goes on where a rank waits for this.
    pub fn go_on_wanting(&mut self, wanted: Option<Wanted>) {
        self.waits = wanted;
    }

    /// No incarnation of the rank will read before `offset` any more.
    pub fn truncate(&mut self, offset: u64) {
        self.needed = self.needed.max(offset);
        use rustix::fs::{fallocate, FallocateFlags};
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // A file system that cannot do it keeps the space, no more.
        let _ = fallocate(&self.file, flags, 0, offset.max(1));
    }

    /// What is needed of the input to go on later.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn saved(&self) -> io::Result<SavedInput> {
        let from = self.needed.min(self.read);
        let mut bytes = vec![0; (self.read - from) as usize];
        self.file.read_exact_at(&mut bytes, from)?;
        Ok(SavedInput { from, bytes, eof: self.eof })
    }

    /// Goes on with an input that was saved.
    ///
    /// # Errors
    /// When it cannot be kept.
    pub fn go_on(&mut self, saved: &SavedInput) -> io::Result<()> {
        let SavedInput { from, bytes, eof } = saved;
        self.file.write_all_at(bytes, *from)?;
        (self.needed, self.read, self.eof) = (*from, from + bytes.len() as u64, *eof);
        Ok(())
    }
}

/// Input of a job that was saved: what of it was read and may be needed again.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct SavedInput {
    from: u64,
    bytes: Vec<u8>,
    eof: bool,
}

fn lock(wanted: &(Mutex<u64>, Condvar)) -> MutexGuard<'_, u64> {
    wanted.0.lock().unwrap_or_else(|e| e.into_inner())
}
