//! Ending every child of this process, those it has adopted included, and making sure that they are gone.

use rustix::process::{kill_process, wait, Pid, Signal, WaitOptions};
use std::time::{Duration, Instant};

/// Whether all children are gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reaped {
    All,
    /// These did not die in time (they hang in the kernel).
    Left(usize),
}

/// The children of this process, zombies included, by every thread that may have got them.
pub fn children() -> Vec<Pid> {
    children_of("self").into_iter().filter_map(|pid| Pid::from_raw(pid as i32)).collect()
}

/// All processes below `pid`.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut found = children_of(&pid.to_string());
    let mut at = 0;
    while at < found.len() {
        found.extend(children_of(&found[at].to_string()));
        at += 1;
    }
    found
}

fn children_of(pid: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let list = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(list.split_whitespace().filter_map(|p| p.parse::<u32>().ok()));
    }
    found
}

/// The signal that has killed a process which its parent has not collected yet; `None` when it ended by itself or
/// nothing is known of it any more.
pub fn killed_by(pid: u32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    // proc(5): field 52, a wait status; the fields here begin with the third.
    let status: i32 = fields.split_whitespace().nth(49)?.parse().ok()?;
    let signal = status & 0x7f;
    (signal != 0).then_some(signal)
}

/// Kills all children with SIGKILL (stopped ones die too) and reaps them, again and again, because a dying
/// child hands its own children to a subreaper. Children cannot be confused with strangers: their numbers
/// stay taken until they are reaped here.
pub fn kill_all_children(within: Duration) -> Reaped {
    let until = Instant::now() + within;
    loop {
        for child in children() {
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
        if Instant::now() > until {
            return Reaped::Left(children().len());
        }
        // Nothing tells when a child has ended but a signal, which belongs to the caller's loop.
        std::thread::sleep(Duration::from_millis(1));
    }
}
