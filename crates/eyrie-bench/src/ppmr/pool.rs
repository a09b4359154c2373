//! A pool of buffers of one size, which writers fill and others empty. It must never give one
//! buffer to two users at the same time.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Fixed buffers, known by their numbers.
pub struct Pool {
    chunks: Vec<Mutex<Box<[u8]>>>,
    state: Mutex<PoolState>,
    changed: Condvar,
}

struct PoolState {
    free: Vec<u32>,
    /// The fewest that were ever free.
    least: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic ends the process anyway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// `bytes` in buffers of `chunk` bytes, at least one. All of the memory is touched.
    pub fn new(bytes: usize, chunk: usize) -> Pool {
        let count = (bytes / chunk).max(1);
        let chunks = (0..count).map(|_| Mutex::new(vec![1; chunk].into_boxed_slice())).collect();
        let free = (0..count as u32).rev().collect();
        let state = PoolState { free, least: count };
        Pool { chunks, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Takes a free buffer; waits until there is one.
    pub fn take(&self) -> u32 {
        let mut state = lock(&self.state);
        loop {
            if let Some(chunk) = state.pop() {
                return chunk;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes a free buffer, if there is one now.
    pub fn take_now(&self) -> Option<u32> {
        lock(&self.state).pop()
    }

    /// Gives a buffer back.
    pub fn give(&self, chunk: u32) {
        lock(&self.state).free.push(chunk);
        self.changed.notify_all();
    }

    /// The content of a buffer that was taken.
    pub fn content(&self, chunk: u32) -> MutexGuard<'_, Box<[u8]>> {
        lock(&self.chunks[chunk as usize])
    }

    pub fn chunks(&self) -> u32 {
        self.chunks.len() as u32
    }

    /// The most buffers that were in use at once.
    pub fn most_used(&self) -> usize {
        self.chunks.len() - lock(&self.state).least
    }
}

impl PoolState {
    fn pop(&mut self) -> Option<u32> {
        let chunk = self.free.pop();
        self.least = self.least.min(self.free.len());
        chunk
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::Arc;

    #[test]
    fn no_buffer_is_given_twice_and_every_user_gets_one() {
        let pool = Arc::new(Pool::new(4 << 10, 1 << 10));
        assert_eq!(pool.chunks(), 4);
        let taken: HashSet<u32> = (0..4).map(|_| pool.take()).collect();
        assert_eq!((taken.len(), pool.take_now(), pool.most_used()), (4, None, 4));
        let waiter = std::thread::spawn({
            let pool = Arc::clone(&pool);
            move || pool.take()
        });
        pool.give(2);
        assert_eq!(waiter.join().unwrap(), 2);
    }
}
