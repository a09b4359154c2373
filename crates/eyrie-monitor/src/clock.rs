//! Clocks, absolute sleeps, and how the sampling thread stays on time. Must never sleep for a
//! length of time: only until a moment.

use serde::Serialize;
use std::time::Duration;

/// A clock of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Clock {
    /// Atomic time: no leap seconds. Used only where the kernel knows the offset.
    Tai,
    Realtime,
    Monotonic,
}

impl Clock {
    fn id(self) -> libc::clockid_t {
        match self {
            Clock::Tai => libc::CLOCK_TAI,
            Clock::Realtime => libc::CLOCK_REALTIME,
            Clock::Monotonic => libc::CLOCK_MONOTONIC,
        }
    }

    /// The clock that nodes share: TAI if the kernel knows its offset, as it does with ptp4l or
    /// chrony, else REALTIME.
    pub fn wall() -> Clock {
        let offset = Clock::Tai.now_ns().abs_diff(Clock::Realtime.now_ns());
        if offset > 500_000_000 {
            Clock::Tai
        } else {
            Clock::Realtime
        }
    }

    /// Nanoseconds since the clock's beginning.
    pub fn now_ns(self) -> u64 {
        read(self.id())
    }

    /// Sleeps until the clock shows `ns`. A signal does not end the sleep early, and it follows a
    /// step of the clock.
    pub fn sleep_until(self, ns: u64) {
        let at = libc::timespec { tv_sec: (ns / NS) as i64, tv_nsec: (ns % NS) as i64 };
        // SAFETY: `at` is a valid time and lives through the call; null: no remaining time is
        // wanted.
        while unsafe {
            libc::clock_nanosleep(self.id(), libc::TIMER_ABSTIME, &at, std::ptr::null_mut())
        } == libc::EINTR
        {}
    }
}

const NS: u64 = 1_000_000_000;

fn read(id: libc::clockid_t) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes only to `t`, which lives through the call.
    unsafe { libc::clock_gettime(id, &mut t) };
    t.tv_sec as u64 * NS + t.tv_nsec as u64
}

/// CPU time of this thread in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of this process in nanoseconds.
pub fn process_cpu_ns() -> u64 {
    read(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time of another process in nanoseconds, if it lives.
pub fn cpu_of(pid: u32) -> Option<u64> {
    // As clock_getcpuclockid(3) makes it.
    let id = (!(pid as libc::clockid_t) << 3) | 2;
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes only to `t`, which lives through the call; an unknown process is an error.
    let ok = unsafe { libc::clock_gettime(id, &mut t) } == 0;
    ok.then(|| t.tv_sec as u64 * NS + t.tv_nsec as u64)
}

/// The first multiple of `interval` after `now`, both in nanoseconds.
pub fn next_boundary(now_ns: u64, interval_ns: u64) -> u64 {
    (now_ns / interval_ns + 1) * interval_ns
}

/// What a sampling thread has achieved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Steadiness {
    /// No memory of the process can be paged out.
    pub locked: bool,
    /// The thread has precedence over ordinary ones.
    pub real_time: bool,
}

/// Keeps all memory of this process, now and later, from being paged out. Returns whether that was
/// permitted.
pub fn lock_memory() -> bool {
    // SAFETY: the call takes numbers only.
    unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) == 0 }
}

/// Prepares the calling thread to be on time: exact timers and, where that is wanted and permitted,
/// precedence over ordinary threads. Returns whether it has precedence.
pub fn steady(real_time: bool) -> bool {
    // SAFETY: the call takes numbers only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: `priority` lives through the call; 0 is the calling thread.
    real_time
        && unsafe {
            libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &priority)
        } == 0
}

/// Binds the calling thread to a processor.
///
/// # Errors
/// When there is no such processor.
pub fn pin(cpu: usize) -> std::io::Result<()> {
    // SAFETY: a set of zeros is valid.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: `cpu` was checked to be within `set`, which lives through the call.
    let ok = unsafe {
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) == 0
    };
    ok.then_some(()).ok_or_else(std::io::Error::last_os_error)
}

/// A duration in nanoseconds; centuries fit.
pub fn ns(d: Duration) -> u64 {
    d.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boundaries_lie_ahead_and_are_multiples() {
        assert_eq!(next_boundary(0, 500), 500);
        assert_eq!(next_boundary(499, 500), 500);
        assert_eq!(next_boundary(500, 500), 1000);
    }

    #[test]
    fn a_sleep_ends_at_its_moment_or_later() {
        let until = Clock::Monotonic.now_ns() + 3_000_000;
        Clock::Monotonic.sleep_until(until);
        assert!(Clock::Monotonic.now_ns() >= until);
        // A moment that has passed does not wait.
        Clock::Realtime.sleep_until(1);
    }

    #[test]
    fn the_clock_of_a_process_is_its_cpu_time() {
        let before = cpu_of(std::process::id()).unwrap();
        while process_cpu_ns() < before + 1_000_000 {}
        assert!(cpu_of(std::process::id()).unwrap() >= before + 1_000_000);
        assert_eq!(cpu_of(100_000_000), None);
    }
}
