//! How a process ends: whether it has, or is about to, and by what. It only looks.

use eyrie_proc::{exit_status, Status};
use std::os::fd::{AsRawFd, BorrowedFd};

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
    let stat = eyrie_proc::read_stat(eyrie_proc::directory(pid));
    stat.is_none_or(|stat| stat.flags & EXITING != 0) || is_killed(pid)
}

/// Whether a child has ended: it can be reaped, or was.
pub fn can_be_collected(pid: u32) -> bool {
    !eyrie_proc::living(pid).exists() || zombie_status(pid).is_some()
}

/// Whether SIGKILL is pending for a process: the kernel sets it for each of its threads.
fn is_killed(pid: u32) -> bool {
    let status = Status::read(eyrie_proc::directory(pid));
    status.has_signal("SigPnd", libc::SIGKILL).unwrap_or(false)
}

/// The wait status of a process that has ended and is not reaped.
fn zombie_status(pid: u32) -> Option<i32> {
    exit_status(&std::fs::read(eyrie_proc::directory(pid).join("stat")).ok()?)
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

/// Whether a process that is not reaped, or one below it, has ended or is about to: it has no
/// memory any more.
pub fn has_ended(pid: u32) -> bool {
    let mut family = eyrie_proc::descendants(pid).into_iter().chain([pid]);
    family.any(|pid| memory(pid).is_none_or(|bytes| bytes == 0))
}

/// Bytes of a process's address space at one moment. (/proc/PID/maps is that of the old program,
/// and empty, when the process executes another one meanwhile.)
fn memory(pid: u32) -> Option<u64> {
    Some(eyrie_proc::read_stat(eyrie_proc::living(pid))?.address_space)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::Pid;
    use std::io::{Read, Write};
    use std::process::Stdio;
    use std::time::{Duration, Instant};

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

    #[test]
    fn a_process_that_was_killed_has_ended() {
        let below = |script| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
            command.spawn().unwrap()
        };
        let await_end = |pid| while !has_ended(pid) {};
        let mut child = below("exec cat");
        assert!(!has_ended(child.id()));
        child.kill().unwrap();
        await_end(child.id());
        child.wait().unwrap();
        // A wrapper that has not reaped its program yet.
        let mut wrapper = below("sh -c 'kill -9 $$' & exec cat");
        await_end(wrapper.id());
        drop(wrapper.stdin.take());
        wrapper.wait().unwrap();
    }

    #[test]
    fn a_process_in_the_middle_of_an_exec_has_not_ended() {
        let script = r#"[ "$1" = 0 ] && exec cat; exec sh -c "$0" "$0" $(($1 - 1))"#;
        let mut chain = Command::new("sh")
            .args(["-c", script, script, "1000"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The line comes back from `cat` at the chain's end.
        let mut input = chain.stdin.take().unwrap();
        input.write_all(b"through").unwrap();
        let mut output = chain.stdout.take().unwrap();
        let through = std::thread::spawn(move || output.read_exact(&mut [0; 7]));
        while !through.is_finished() {
            assert!(!has_ended(chain.id()));
        }
        through.join().unwrap().unwrap();
        drop(input);
        chain.wait().unwrap();
    }
}
