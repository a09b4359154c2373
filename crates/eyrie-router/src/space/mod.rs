//! Where the log is: how much of it in memory, how much on disk, and how full that is.

mod files;
mod segments;
mod store;

pub use files::{unnamed_file, Files};
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
    /// The share of frames in the memory; the rest is for payloads in segments.
    pub fn block_memory(&self) -> u64 {
        self.memory / 4
    }

    /// Most bytes of observations: as many again.
    pub fn observed_memory(&self) -> u64 {
        self.memory
    }

    fn segment_memory(&self) -> u64 {
        self.memory / 4 * 3
    }
}

/// How full the disk's share is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fill {
    Roomy,
    /// The controller should take images, so that logs can be truncated.
    Scarce,
    /// Nothing more may be added.
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
    /// An empty space; `ranks`: the number of ranks of the job.
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

    /// Bytes of the largest segment that can be made, when nothing else takes room.
    pub fn largest_segment(&self) -> u64 {
        self.segments.memory_limit().max(self.bounds.disk)
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
    /// When the piece does not lie within its segment, or the file cannot be written.
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
    /// When the disk cannot be written, or its share is used up.
    pub fn write_block(&mut self, bytes: &[u8]) -> io::Result<u64> {
        let len = bytes.len() as u64;
        if self.disk() + len > self.bounds.disk {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                "the router's share of the disk is full",
            ));
        }
        let offset = self.store.write_block(bytes)?;
        self.block_disk += len;
        Ok(offset)
    }

    /// Frees a block's space.
    pub fn free_block(&mut self, offset: u64, len: usize) {
        self.store.free_block(offset, len);
        self.block_disk -= len as u64;
    }
}
