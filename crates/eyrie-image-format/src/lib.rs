//! The format of a process image: records ([`stream`]) and their payloads. The capture writes it,
//! the store cuts it into chunks, the restorer reads it. It must never allocate or make a system
//! call, and uses only `core`: the capture runs in a signal handler, and the restorer has no C
//! library. All numbers are little-endian, as x86_64 holds them in memory.
#![no_std]

mod context;
mod exit_codes;
mod file;
mod hash;
mod header;
mod mapping;
pub mod named;
mod plain;
pub mod stream;

pub use context::*;
pub use exit_codes::*;
pub use file::*;
pub use hash::MetaHash;
pub use header::*;
pub use mapping::*;
pub use plain::{bytes_of, bytes_of_all, take, Plain};
pub use stream::{PAGES_GUARD, PAGES_OF_OBJECT, PAGES_SAME};

/// Longest path in a record, bytes, without the NUL.
pub const PATH_LEN_MAX: usize = 4095;
/// The range of addresses in which the restorer lives and works. No captured mapping may touch it.
/// The restored process unmaps all of it as its first step, so nothing of a restore is ever
/// captured again. It is between the range where Linux puts position-independent programs (up to
/// 0x57…) and that of `mmap` regions (from 0x7e… up).
pub const WINDOW_START: u64 = 0x6500_0000_0000;
/// End of the restorer's range, see [`WINDOW_START`].
pub const WINDOW_END: u64 = 0x6600_0000_0000;
/// End of user addresses with four-level page tables.
pub const USER_END: u64 = 0x7fff_ffff_f000;
/// Most descriptors given to the restorer: slots and held files together.
pub const SLOTS_MAX: usize = 1024;
/// The number of slots: a descriptor of the process can be one of 0 to 15. The restorer's further
/// descriptors are held files, which the image may need and whose names may lead elsewhere now. It
/// identifies those by their [`Identity`].
pub const HELD_FROM: usize = 16;
