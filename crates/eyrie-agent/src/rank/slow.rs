//! Slows a rank that writes faster than its memory can be copied: it stands still for a share of
//! each twentieth of a second, as hypervisors do with virtual machines. It must never stay stopped.

use rustix::process::{pidfd_open, pidfd_send_signal, Pid, PidfdFlags, Signal};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// In each period the rank stands still once and computes once. It is short for a person or a peer,
/// and long against the kernel's time slices.
const PERIOD: Duration = Duration::from_millis(50);

/// A process that is slowed until this is dropped.
pub struct Slowed {
    /// In percent; 0: not slowed any more.
    share: Arc<AtomicU8>,
    thread: JoinHandle<()>,
}

impl Slowed {
    /// Slows this process by this share, in percent.
    ///
    /// # Errors
    /// When it is gone or cannot be watched.
    pub fn begin(pid: u32, share: u8) -> anyhow::Result<Slowed> {
        let pid = Pid::from_raw(pid as i32).ok_or_else(|| anyhow::anyhow!("it has no process"))?;
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        let share = Arc::new(AtomicU8::new(share));
        let wanted = Arc::clone(&share);
        let thread = thread::Builder::new().spawn(move || slow(&process, &wanted))?;
        Ok(Slowed { share, thread })
    }

    /// Changes the share, in percent.
    pub fn set(&self, share: u8) {
        self.share.store(share, Ordering::Relaxed);
    }
}

impl Drop for Slowed {
    fn drop(&mut self) {
        self.share.store(0, Ordering::Relaxed);
        // The thread continues the process at once.
        self.thread.thread().unpark();
    }
}

/// Stops and continues the process in turns. It runs when this returns, if it still lives.
fn slow(process: &OwnedFd, share: &AtomicU8) {
    loop {
        let stands = match share.load(Ordering::Relaxed) {
            0 => return,
            share => PERIOD * u32::from(share.min(100)) / 100,
        };
        if pidfd_send_signal(process, Signal::STOP).is_err() {
            return;
        }
        thread::park_timeout(stands);
        if pidfd_send_signal(process, Signal::CONT).is_err() {
            return;
        }
        thread::park_timeout(PERIOD - stands);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn spinning() -> Child {
        Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap()
    }

    /// Processor time of a process, and whether it is stopped.
    fn state(child: &Child) -> (Duration, bool) {
        let stat = eyrie_proc::read_stat(eyrie_proc::directory(child.id())).unwrap();
        (stat.processor_time(), stat.state == b'T')
    }

    #[test]
    fn a_slowed_process_stops_now_and_then_and_runs_in_the_end() {
        let mut child = spinning();
        let slowed = Slowed::begin(child.id(), 80).unwrap();
        let patience = std::time::Instant::now() + Duration::from_secs(30);
        let mut stopped = 0;
        let mut ran = 0;
        while (stopped < 20 || ran < 2) && std::time::Instant::now() < patience {
            if state(&child).1 {
                stopped += 1;
            } else {
                ran += 1;
            }
            thread::sleep(Duration::from_millis(1));
        }
        assert!(stopped >= 20 && ran >= 2, "stopped {stopped} times, ran {ran} times");
        drop(slowed);
        let (before, _) = state(&child);
        while state(&child).0 < before + Duration::from_millis(50) {
            assert!(std::time::Instant::now() < patience, "it stays stopped");
            thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_thread_ends_when_the_process_does() {
        let mut child = spinning();
        let slowed = Slowed::begin(child.id(), 50).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let thread = &slowed.thread;
        let patience = std::time::Instant::now() + Duration::from_secs(30);
        while !thread.is_finished() {
            assert!(std::time::Instant::now() < patience, "the thread signals a dead process");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
