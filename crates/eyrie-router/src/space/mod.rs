//! Where the log lies: how much of it in memory, how much on disk, and what is to be done when both
//! come to an end.

mod files;
mod segments;
mod store;

pub use files::Files;
pub use segments::Segments;
pub use store::Store;

use std::io;

/// The bounds of a router's log, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    pub memory: u64,
    pub disk: u64,
}

impl Bounds {
    /// What frames may take of the memory; the rest is for payloads in segments.
    pub fn block_memory(&self) -> u64 {
        self.memory / 4
    }

    /// What may be held of what ranks have observed besides messages: as much again.
    pub fn observed_memory(&self) -> u64 {
        self.memory
    }

    fn segment_memory(&self) -> u64 {
        self.memory / 4 * 3
    }
}

/// How near the end of the disk's share is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fill {
    Roomy,
    /// Images should be taken, so that logs can be truncated.
    Scarce,
    /// No more may be taken in.
    Full,
}

/// The space of a router's log.
pub struct Space<S: Store> {
    pub bounds: Bounds,
    pub store: S,
    pub segments: Segments<S>,
    /// Bytes of log blocks on disk.
    block_disk: u64,
}

impl<S: Store> Space<S> {
    /// An empty space; `ranks`: of the job.
    pub fn new(bounds: Bounds, ranks: u32, store: S) -> Space<S> {
        let segments = Segments::new(bounds.segment_memory(), ranks);
        Space { bounds, store, segments, block_disk: 0 }
    }

    /// Bytes on disk.
    pub fn disk(&self) -> u64 {
        self.block_disk + self.segments.disk
    }

    /// How full the disk's share is.
    pub fn fill(&self) -> Fill {
        let used = self.disk();
        if used >= self.bounds.disk {
            Fill::Full
        } else if used > self.bounds.disk / 4 * 3 {
            Fill::Scarce
        } else {
            Fill::Roomy
        }
    }

    /// Makes a segment for at least `bytes` bytes; returns its number.
    ///
    /// # Errors
    /// When there is room neither in memory nor in the disk's share.
    pub fn open_segment(&mut self, bytes: u64) -> io::Result<u32> {
        let room = self.bounds.disk.saturating_sub(self.disk());
        self.segments.open(bytes, room, &mut self.store)
    }

    /// Writes a piece of a payload to its segment.
    ///
    /// # Errors
    /// When it does not lie within its segment, or the file does not take it.
    pub fn write_piece(&mut self, segment: u32, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let segment = self.segments.within(segment, offset, bytes.len() as u64);
        let segment = segment.ok_or(io::ErrorKind::InvalidInput)?;
        self.store.write_file(&segment.file, offset, bytes)
    }

    /// Reads a piece of a payload from its segment.
    ///
    /// # Errors
    /// When there is no such segment, or the file cannot be read.
    pub fn read_piece(&self, segment: u32, offset: u64, to: &mut [u8]) -> io::Result<()> {
        let segment = self.segments.get(segment).ok_or(io::ErrorKind::NotFound)?;
        self.store.read_file(&segment.file, offset, to)
    }

    /// Writes a log block to disk.
    ///
    /// # Errors
    /// When the disk does not take it, or its share is used up.
    pub fn write_block(&mut self, bytes: &[u8]) -> io::Result<u64> {
        let len = bytes.len() as u64;
        if self.disk() + len > self.bounds.disk {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                "its share of the disk is full",
            ));
        }
        let offset = self.store.write_block(bytes)?;
        self.block_disk += len;
        Ok(offset)
    }

    /// Gives a block's space back.
    pub fn free_block(&mut self, offset: u64, len: usize) {
        self.store.free_block(offset, len);
        self.block_disk -= len as u64;
    }
}
