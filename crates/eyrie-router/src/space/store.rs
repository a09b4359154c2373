//! What holds the files of a log. Everything that touches a file goes through it, so that tests can
//! fill the disk.

use std::io;

/// Files that hold payloads and log blocks.
pub trait Store {
    /// A segment's file.
    type File: Clone;

    /// A new file of `bytes` bytes, in memory.
    ///
    /// # Errors
    /// When there is none to be had.
    fn memory_file(&mut self, bytes: u64) -> io::Result<Self::File>;

    /// A new file of `bytes` bytes that are really there, on disk.
    ///
    /// # Errors
    /// When the disk does not have them.
    fn disk_file(&mut self, bytes: u64) -> io::Result<Self::File>;

    /// Reads from a segment's file.
    ///
    /// # Errors
    /// The file's.
    fn read_file(&self, file: &Self::File, offset: u64, to: &mut [u8]) -> io::Result<()>;

    /// Writes to a segment's file.
    ///
    /// # Errors
    /// The file's.
    fn write_file(&mut self, file: &Self::File, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Writes a log block to disk; returns where it lies.
    ///
    /// # Errors
    /// When the disk does not take it; nothing counts then.
    fn write_block(&mut self, bytes: &[u8]) -> io::Result<u64>;

    /// Reads a log block back.
    ///
    /// # Errors
    /// The disk's.
    fn read_block(&self, offset: u64, len: usize) -> io::Result<Vec<u8>>;

    /// Gives a block's space back.
    fn free_block(&mut self, offset: u64, len: usize);
}
