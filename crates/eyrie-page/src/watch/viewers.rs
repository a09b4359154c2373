//! How many look at the page, so that jobs are asked only as long as that is so.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Counts those who look.
#[derive(Clone, Debug, Default)]
pub struct Viewers(Arc<(Mutex<usize>, Condvar)>);

/// One who looks, until this is dropped.
#[derive(Debug)]
pub struct Viewing(Viewers);

impl Viewers {
    /// There is one more.
    pub fn enter(&self) -> Viewing {
        *self.lock() += 1;
        self.0 .1.notify_all();
        Viewing(self.clone())
    }

    /// Waits until there is one, but not longer than this. Returns whether there is.
    pub fn wait(&self, within: Duration) -> bool {
        let waited = self.0 .1.wait_timeout_while(self.lock(), within, |number| *number == 0);
        *waited.unwrap_or_else(PoisonError::into_inner).0 > 0
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.0 .0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Viewing {
    fn drop(&mut self) {
        *self.0.lock() -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_who_comes_is_waited_for() {
        let viewers = Viewers::default();
        assert!(!viewers.wait(Duration::ZERO));
        let other = viewers.clone();
        let waits = std::thread::spawn(move || other.wait(Duration::from_secs(60)));
        let viewing = viewers.enter();
        assert!(waits.join().unwrap());
        drop(viewing);
        assert!(!viewers.wait(Duration::ZERO));
    }
}
