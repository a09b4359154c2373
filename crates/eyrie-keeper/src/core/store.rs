//! Where spilled messages are: a file for each receiver. The real ones are in `spill_files.rs`.

use eyrie_wire::Rank;
use std::io;

/// A file for each rank, which is made when it is first written. Errors name it.
pub trait Store {
    /// Writes bytes at a place, behind all that was written before or over it.
    ///
    /// # Errors
    /// The file's, in words for users.
    fn write(&mut self, rank: Rank, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Reads bytes.
    ///
    /// # Errors
    /// The file's; `UnexpectedEof` when it is too short.
    fn read(&self, rank: Rank, at: u64, to: &mut [u8]) -> io::Result<()>;

    /// The bytes from `begin` to `end` are needed no more.
    fn free(&mut self, rank: Rank, begin: u64, end: u64);

    /// The bytes from `end` on are needed no more.
    fn truncate(&mut self, rank: Rank, end: u64);
}
