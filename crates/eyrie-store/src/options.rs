//! What a store is created with.

/// Longest name of a job in bytes.
pub const MAX_JOB: usize = 128;

/// What a store is created with; it remembers this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The job whose images these are, one line: no other job may go on with them.
    pub job: String,
    /// Images kept of each rank, at least 1. With 2, a damaged image leaves one to fall back to.
    pub keep: usize,
    /// Whether an image reaches stable storage before it counts. Without, images survive the death
    /// of every process, but not that of the machine; right for a store in memory (tmpfs).
    pub sync: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { job: String::new(), keep: 2, sync: true }
    }
}
