//! What both BPF readers share: conversion of the kernel's record of a process.

use crate::bpf::Record;
use crate::sample::Process;

const PF_KTHREAD: u32 = 0x0020_0000;
const EXIT_DEAD: u32 = 0x10;
const EXIT_ZOMBIE: u32 = 0x20;
/// An uninterruptible sleep that does not count as load: shown as idle.
const IDLE: u32 = 0x402;

pub fn process(r: &Record, page: u64) -> Process {
    let (user_ns, system_ns) = split(r.runtime, r.utime, r.stime);
    Process {
        pid: r.pid,
        parent: r.parent,
        command: r.comm,
        start_ns: r.start_boottime,
        threads: r.threads,
        state: state(r.state, r.exit_state),
        kernel_thread: r.flags & PF_KTHREAD != 0,
        age: 0,
        due: true,
        cpu_ns: r.runtime,
        user_ns,
        system_ns,
        rss_bytes: r.rss_pages.max(0) as u64 * page,
        cgroup: r.cgroup,
    }
}

/// Splits the exact run time in the proportion that timer ticks have shown, as the kernel does for
/// /proc.
fn split(runtime: u64, user: u64, system: u64) -> (u64, u64) {
    let both = user + system;
    if both == 0 {
        return (runtime, 0);
    }
    let system = (u128::from(runtime) * u128::from(system) / u128::from(both)) as u64;
    (runtime - system, system)
}

fn state(state: u32, exit_state: u32) -> u8 {
    if exit_state & EXIT_ZOMBIE != 0 {
        return b'Z';
    }
    if exit_state & EXIT_DEAD != 0 {
        return b'X';
    }
    if state & IDLE == IDLE {
        return b'I';
    }
    match state & 0x4f {
        0 => b'R',
        s if s & 1 != 0 => b'S',
        s if s & 2 != 0 => b'D',
        s if s & 4 != 0 => b'T',
        s if s & 8 != 0 => b't',
        s if s & 0x40 != 0 => b'P',
        _ => b'?',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_split_in_proportion_and_nothing_is_lost() {
        assert_eq!(split(100, 3, 1), (75, 25));
        assert_eq!(split(7, 0, 0), (7, 0));
        let (user, system) = split(u64::MAX / 2, 1 << 50, 1 << 51);
        assert_eq!(user + system, u64::MAX / 2);
    }

    #[test]
    fn states_have_the_letters_of_proc() {
        let seen = [(0, 0), (1, 0), (2, 0), (0x402, 0), (4, 0), (8, 0), (0, 0x20), (0, 0x10)]
            .map(|(s, e)| state(s, e));
        assert_eq!(seen, *b"RSDITtZX");
    }
}
