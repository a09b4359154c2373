//! How many samples old the values may be that readers read in turn.

/// Names, parents and the like, of every reader.
pub const REFRESH: u16 = 16;
/// Resident memory, of the readers of /proc.
pub const RSS: u16 = 8;
/// Properties that rarely change in the life of a process, of the readers of /proc.
pub const LASTING: u16 = 64;
