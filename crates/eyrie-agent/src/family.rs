//! The processes below this one, and how they end: finds them, kills them all, those that it has
//! adopted included, and waits until they are gone.

use rustix::process::{kill_process, wait, Pid, Signal, WaitOptions};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;
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
    let children = children_of(std::process::id()).into_iter();
    children.filter_map(|pid| Pid::from_raw(pid as i32)).collect()
}

/// All processes below `pid`.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut found = children_of(pid);
    let mut at = 0;
    while at < found.len() {
        found.extend(children_of(found[at]));
        at += 1;
    }
    found
}

/// The children of process `pid`, of all of its threads; none when there is no such process.
pub fn children_of(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let list = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(list.split_whitespace().filter_map(|p| p.parse::<u32>().ok()));
    }
    found
}

/// The directory in /proc that describes a process: that of its first thread, or of another one
/// where the first has ended and others go on. That of an ended thread has hardly anything.
pub fn directory_of(pid: u32) -> PathBuf {
    let lives = |path: &PathBuf| {
        let stat = std::fs::read_to_string(path.join("stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").and_then(|(_, fields)| fields.chars().next());
        state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
    };
    let first = PathBuf::from(format!("/proc/{pid}"));
    if lives(&first) {
        return first;
    }
    let tasks = std::fs::read_dir(first.join("task")).into_iter().flatten().flatten();
    tasks.map(|task| task.path()).find(lives).unwrap_or(first)
}

/// How a process has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Death {
    /// By this signal.
    Killed(i32),
    /// By itself.
    Exited,
    /// It runs, or its end is not known.
    Unknown,
}

/// How the process `pid` has ended; its parent may have reaped it. `pidfd` was opened while it
/// lived.
pub fn death_of(pid: u32, pidfd: BorrowedFd<'_>) -> Death {
    // The kernel reports it by /proc until the process is reaped, and by the descriptor afterwards.
    let status = (collected_status(pidfd))
        .or_else(|| zombie_status(pid))
        .or_else(|| collected_status(pidfd));
    match status {
        Some(status) if status & 0x7f != 0 => Death::Killed(status & 0x7f),
        Some(_) => Death::Exited,
        None => Death::Unknown,
    }
}

/// Whether a process has ended or is about to: its descriptors may be closed by now, or SIGKILL may
/// be pending until it gets a processor, while a child that was killed with it is already gone.
pub fn is_ending(pid: u32) -> bool {
    /// Set before a process closes what it has open (PF_EXITING of the kernel).
    const EXITING: u64 = 0x4;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map(|(_, fields)| fields.split_whitespace());
    // proc(5): the fields here begin with the third; the ninth is the flags.
    let flags = fields.and_then(|mut fields| fields.nth(6)?.parse::<u64>().ok());
    flags.is_none_or(|flags| flags & EXITING != 0) || is_killed(pid)
}

/// Whether a child has ended: it can be reaped, or was.
pub fn can_be_collected(pid: u32) -> bool {
    !directory_of(pid).exists() || zombie_status(pid).is_some()
}

/// Whether SIGKILL is pending for a process: the kernel sets it for each of its threads.
fn is_killed(pid: u32) -> bool {
    const SIGKILL: u64 = 1 << (libc::SIGKILL - 1);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
    let pending = pending.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    pending.is_some_and(|mask| mask & SIGKILL != 0)
}

/// The wait status of a process that has ended and is not reaped.
fn zombie_status(pid: u32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    // proc(5): the fields here begin with the third, the state; field 52 is a wait status.
    let mut fields = fields.split_whitespace();
    let ended = matches!(fields.next()?, "Z" | "X");
    ended.then(|| fields.nth(48)?.parse().ok())?
}

/// The wait status of a reaped process (since Linux 6.15; `None` before, and when it is not
/// reaped).
fn collected_status(pidfd: BorrowedFd<'_>) -> Option<i32> {
    /// `struct pidfd_info` of linux/pidfd.h in its first version.
    #[repr(C)]
    #[derive(Default)]
    struct PidfdInfo {
        mask: u64,
        cgroup: u64,
        ids: [u32; 11],
        exit_code: i32,
    }
    const PIDFD_INFO_EXIT: u64 = 1 << 3;
    // _IOWR(0xFF, 11, struct pidfd_info)
    const PIDFD_GET_INFO: libc::c_ulong =
        0xC000_FF0B | (size_of::<PidfdInfo>() as libc::c_ulong) << 16;
    let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..PidfdInfo::default() };
    // SAFETY: the kernel writes as many bytes as the request names, which is the size of `info`.
    let done = unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO, &mut info) };
    (done == 0 && info.mask & PIDFD_INFO_EXIT != 0).then_some(info.exit_code)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_ends_is_known_before_it_is_reaped() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        assert!(!is_ending(child.id()) && !is_ending(std::process::id()));
        child.kill().unwrap();
        let begin = Instant::now();
        while !is_ending(child.id()) {
            assert!(begin.elapsed() < Duration::from_secs(60), "it does not end");
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(is_ending(child.id()));
    }
    use rustix::process::{pidfd_open, PidfdFlags};
    use std::os::fd::AsFd;
    use std::process::Command;

    #[test]
    fn a_death_is_known_before_and_after_the_parent_reaps_it() {
        for (script, expected) in
            [("exec sleep 100", Death::Killed(9)), ("read line; exit 9", Death::Exited)]
        {
            let mut child = Command::new("sh")
                .args(["-c", script])
                .stdin(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
            assert_eq!(death_of(child.id(), pidfd.as_fd()), Death::Unknown);
            match expected {
                Death::Killed(_) => child.kill().unwrap(),
                _ => drop(child.stdin.take()),
            }
            let mut ended = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut ended, None).unwrap();
            assert_eq!(death_of(child.id(), pidfd.as_fd()), expected, "not reaped");
            child.wait().unwrap();
            let after = death_of(child.id(), pidfd.as_fd());
            // Before Linux 6.15 nothing is known then.
            assert!(after == expected || after == Death::Unknown, "reaped: {after:?}");
        }
    }
}
