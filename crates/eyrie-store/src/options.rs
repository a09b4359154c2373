//! What a store is created with.

/// What a store is created with; it remembers this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Images kept of each rank, at least 1. With 2, a damaged image leaves one to fall back to.
    pub keep: usize,
    /// Whether an image reaches stable storage before it counts. Without, images survive the death
    /// of every process, but not that of the machine; right for a store in memory (tmpfs).
    pub sync: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { keep: 2, sync: true }
    }
}
