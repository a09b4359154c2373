//! The result of a capture.

use crate::refusal::Refusal;

/// How a capture ended, and in which process.
#[derive(Clone, Copy, Debug)]
pub enum Outcome {
    /// In the original process.
    Captured {
        /// The image-writing process, a child of this one's parent; 0 for [`Mode::Sync`].
        child_pid: i32,
        /// How long the process was stopped, nanoseconds.
        pause_ns: u64,
        /// Bytes of shared memory that were copied within that time.
        shared_bytes: u64,
        /// Length of the stream; known for [`Mode::Sync`] only, else 0.
        image_bytes: u64,
    },
    /// In a restored process, in which the same call returns once more.
    Restored,
    /// There is no image (or an incomplete one, which does not count), and the process continues.
    Refused(Refusal),
}
