//! The trait of the files of a log. All access to them goes through it, so that tests can fill the
//! disk.

use std::io;

/// Files that hold payloads and log blocks.
pub trait Store {
    /// A segment's file.
    type File: Clone;

    /// A new file of `bytes` bytes, in memory.
    ///
    /// # Errors
    /// When it cannot be made.
    fn memory_file(&mut self, bytes: u64) -> io::Result<Self::File>;

    /// A new file on disk with `bytes` allocated bytes.
    ///
    /// # Errors
    /// When the disk has not enough room.
    fn disk_file(&mut self, bytes: u64) -> io::Result<Self::File>;

    /// Reads from a segment's file.
    ///
    /// # Errors
    /// Those of the file.
    fn read_file(&self, file: &Self::File, offset: u64, to: &mut [u8]) -> io::Result<()>;

    /// Writes to a segment's file.
    ///
    /// # Errors
    /// Those of the file.
    fn write_file(&mut self, file: &Self::File, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Writes a log block to disk; returns its offset.
    ///
    /// # Errors
    /// When the disk cannot be written; then no part of the block is kept.
    fn write_block(&mut self, bytes: &[u8]) -> io::Result<u64>;

    /// Reads a log block back.
    ///
    /// # Errors
    /// Those of the disk.
    fn read_block(&self, offset: u64, len: usize) -> io::Result<Vec<u8>>;

    /// Frees a block's space.
    fn free_block(&mut self, offset: u64, len: usize);
}
