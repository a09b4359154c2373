//! The children of this process, those that it has adopted included: finds them, kills them all,
//! and waits until they are gone.

use rustix::process::{kill_process, kill_process_group, wait, Pid, Signal, WaitOptions};
use std::time::{Duration, Instant};

/// Whether all children are gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reaped {
    All,
    /// These did not die in time (they hang in the kernel).
    Left(usize),
}

/// The children of this process, zombies included, whichever thread has them.
pub fn children() -> Vec<Pid> {
    let children = eyrie_proc::children_of(std::process::id()).into_iter();
    children.filter_map(|pid| Pid::from_raw(pid as i32)).collect()
}

/// Kills a process group with SIGKILL. Its leader must not be reaped yet: then no other group has
/// its number.
pub fn kill_group(leader: u32) {
    if let Some(pid) = Pid::from_raw(leader as i32) {
        // It may just have ended.
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

/// Kills all children but those that are `spared` with SIGKILL (stopped ones die too) and reaps
/// them, again and again, because a dying child hands its own children to a subreaper. Only
/// children are hit: the number of a child stays taken until this function reaps it.
pub fn kill_children_but(spared: &[Pid], within: Duration) -> Reaped {
    let others = || children().into_iter().filter(|child| !spared.contains(child));
    let until = Instant::now() + within;
    loop {
        for child in others() {
            // It may just have ended.
            let _ = kill_process(child, Signal::KILL);
        }
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return Reaped::All,
            }
        }
        match others().count() {
            0 => return Reaped::All,
            left if Instant::now() > until => return Reaped::Left(left),
            _ => {}
        }
        // Only a signal reports the end of a child, and signals belong to the caller's loop.
        std::thread::sleep(Duration::from_millis(1));
    }
}
