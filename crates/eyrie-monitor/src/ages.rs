//! How old what readers read in turn may be, in samples.

/// Names, parents and the like, of every reader.
pub const REFRESH: u16 = 16;
/// Resident memory, of the readers of /proc.
pub const RSS: u16 = 8;
/// What lasts as long as a process, of the readers of /proc.
pub const LASTING: u16 = 64;
