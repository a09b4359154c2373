//! Small files that are changed in place: what they had is noted when they are opened and in
//! images.

use super::kernel;
use crate::random;

/// Most bytes of such a file.
pub const MOST_NOTED: usize = 64 << 10;

/// Whether a file of this size, opened with these flags, is small and may be changed in place.
pub fn may_change(flags: i32, size: u64) -> bool {
    flags & libc::O_ACCMODE == libc::O_RDWR && size <= MOST_NOTED as u64
}

/// Whether nobody else changes it. The process that writes an image has all files open for a while.
pub fn is_ours_alone(fd: i32) -> bool {
    kernel::writer(fd) == random::name() || kernel::alone(fd) == Some(true)
}
