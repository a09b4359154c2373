//! The recent samples, in memory that is allocated once. The sampler adds each sample after it is
//! taken; all other threads copy. No thread may hold the lock for longer than one copy, and nothing
//! here makes the sampler sample.

use crate::sample::{Head, Process};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A copy of a sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    pub head: Head,
    pub processes: Vec<Process>,
}

struct Kept {
    head: Head,
    start: usize,
    len: usize,
}

struct Inner {
    heads: VecDeque<Kept>,
    /// A ring; the processes of a sample follow each other in it, across its end if necessary.
    processes: Box<[Process]>,
    next: usize,
    used: usize,
    /// No thread is to wait any more.
    over: bool,
}

pub struct Ring {
    inner: Mutex<Inner>,
    added: Condvar,
}

impl Ring {
    /// A ring with room for `bytes` of processes, and at least for one sample of `capacity`.
    pub fn new(bytes: usize, capacity: usize) -> Ring {
        let places = (bytes / size_of::<Process>()).max(capacity);
        // A sample has at least one process: this one.
        let samples = (bytes / size_of::<Kept>()).clamp(2, 4096);
        Ring {
            inner: Mutex::new(Inner {
                heads: VecDeque::with_capacity(samples),
                processes: vec![Process::NONE; places].into_boxed_slice(),
                next: 0,
                used: 0,
                over: false,
            }),
            added: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a sample and removes the oldest ones for it. Allocates nothing.
    pub fn push(&self, head: &Head, processes: &[Process]) {
        self.lock().push(head, processes);
        self.added.notify_all();
    }

    /// Ends all waiting, now and later.
    pub fn end_waits(&self) {
        self.lock().over = true;
        self.added.notify_all();
    }

    /// The newest sample.
    pub fn latest(&self) -> Option<Frame> {
        let inner = self.lock();
        inner.heads.back().map(|kept| inner.copy(kept))
    }

    /// The first sample in the ring with a number above `after` (`None`: the oldest).
    pub fn following(&self, after: Option<u64>) -> Option<Frame> {
        let inner = self.lock();
        let at = inner
            .heads
            .partition_point(|kept| after.is_some_and(|after| kept.head.number <= after));
        inner.heads.get(at).map(|kept| inner.copy(kept))
    }

    /// Waits for a sample with a number above `after`, for at most `patience`.
    pub fn wait(&self, after: Option<u64>, patience: Duration) -> Option<Frame> {
        let until = Instant::now() + patience;
        let mut inner = self.lock();
        loop {
            let newest = inner.heads.back();
            if let Some(kept) =
                newest.filter(|kept| after.is_none_or(|after| kept.head.number > after))
            {
                return Some(inner.copy(kept));
            }
            if inner.over {
                return None;
            }
            let left = until.checked_duration_since(Instant::now())?;
            inner = self.added.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Inner {
    fn push(&mut self, head: &Head, processes: &[Process]) {
        let size = self.processes.len();
        let len = processes.len().min(size);
        while self.used + len > size || self.heads.len() == self.heads.capacity() {
            match self.heads.pop_front() {
                Some(old) => self.used -= old.len,
                None => break,
            }
        }
        let to_end = len.min(size - self.next);
        self.processes[self.next..self.next + to_end].copy_from_slice(&processes[..to_end]);
        self.processes[..len - to_end].copy_from_slice(&processes[to_end..len]);
        self.heads.push_back(Kept { head: *head, start: self.next, len });
        self.next = (self.next + len) % size;
        self.used += len;
    }

    fn copy(&self, kept: &Kept) -> Frame {
        let to_end = kept.len.min(self.processes.len() - kept.start);
        let mut processes = Vec::with_capacity(kept.len);
        processes.extend_from_slice(&self.processes[kept.start..kept.start + to_end]);
        processes.extend_from_slice(&self.processes[..kept.len - to_end]);
        Frame { head: kept.head, processes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Cost, Detail, NodeSample};

    fn head(number: u64) -> Head {
        Head {
            number,
            intended_ns: number * 10,
            skew_ns: 1,
            step: 1,
            interval_ns: 10,
            reader: crate::reader::Kind::Proc,
            detail: Detail::Full,
            cost: Cost::default(),
            beyond: 0,
            failed: 0,
            node: NodeSample::default(),
        }
    }

    fn processes(number: u64, count: usize) -> Vec<Process> {
        (0..count).map(|i| Process { pid: i as u32, cpu_ns: number, ..Process::NONE }).collect()
    }

    #[test]
    fn the_oldest_are_removed_and_no_sample_is_torn() {
        let ring = Ring::new(100 * size_of::<Process>(), 10);
        for number in 0..500 {
            let all = processes(number, 1 + (number as usize * 7) % 40);
            ring.push(&head(number), &all);
            let mut after = None;
            let mut kept = 0;
            while let Some(frame) = ring.following(after) {
                let n = frame.head.number;
                assert_eq!(frame.processes, processes(n, 1 + (n as usize * 7) % 40));
                (after, kept) = (Some(n), kept + 1);
            }
            assert_eq!(after, Some(number));
            assert!(kept >= 1 && ring.latest().unwrap().head.number == number);
        }
    }

    #[test]
    fn a_wait_ends_with_the_sample_or_by_its_bound() {
        let ring = Ring::new(0, 4);
        assert_eq!(ring.wait(None, Duration::from_millis(1)), None);
        std::thread::scope(|s| {
            s.spawn(|| ring.push(&head(3), &processes(3, 2)));
            assert_eq!(ring.wait(None, Duration::from_secs(30)).unwrap().head.number, 3);
        });
        assert_eq!(ring.wait(Some(3), Duration::from_millis(1)), None);
    }
}
