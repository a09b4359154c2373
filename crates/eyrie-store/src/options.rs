//! The options that a store is created with.

/// Longest name of a job in bytes.
pub const MAX_JOB: usize = 128;

/// The options that a store is created with. The store keeps them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The name of the job, one line. Only this job can use the images.
    pub job: String,
    /// Images kept of each rank, at least 1. With 2, there is one left when an image is damaged.
    pub keep: usize,
    /// Whether an image is on stable storage before it counts. Without this, images survive the
    /// death of every process, but not of the machine. That is right for a store in memory (tmpfs).
    pub sync: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { job: String::new(), keep: 2, sync: true }
    }
}
