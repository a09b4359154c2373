//! What every request needs.

use super::guard::Guard;
use crate::jobs::Jobs;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Most requests to jobs at a time: each has a thread that waits for its answer.
pub const ASKING: usize = 64;

/// What every request needs.
pub struct Shared {
    pub jobs: Jobs,
    pub guard: Guard,
    /// Places for requests that a job has not answered yet.
    pub asking: Arc<Semaphore>,
}

impl Shared {
    pub fn new(jobs: Jobs, guard: Guard) -> Shared {
        Shared { jobs, guard, asking: Arc::new(Semaphore::new(ASKING)) }
    }
}
