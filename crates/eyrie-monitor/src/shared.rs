//! What the threads of a running monitor share: the sampler writes it, others answer from it and
//! show it.

use crate::health::HealthState;
use crate::names::Directory;
use crate::ring::Ring;
use crate::sampling_thread::Started;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What answers are made from.
pub struct Shared {
    pub node: String,
    pub ring: Ring,
    pub started: Started,
    pub names: Mutex<Directory>,
    pub health: Mutex<Vec<(String, HealthState)>>,
}

/// Locks even if another thread has panicked with the lock: samples are plain data.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
