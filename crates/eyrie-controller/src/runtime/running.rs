//! What others need who ask a job from the controller's process.

use super::journal::Beginning;
use std::path::Path;

/// A job that can be asked from now on.
pub struct Running<'a> {
    pub dir: &'a Path,
    pub beginning: &'a Beginning,
    /// The number of the first event that no earlier controller has told.
    pub first_event: u64,
}
