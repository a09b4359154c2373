//! getpid(2), kill(2), sigqueue(3). A rank keeps the number of its first process: it may have told
//! others, or named a file by it. Signals for that number are for this process; what else names
//! a process is [`crate::own_number`]'s.

use crate::host_clocks;
use crate::next::next;
use crate::observed::{is_on, ObservedStream};
use libc::{c_int, pid_t, sigval};
use std::sync::atomic::{AtomicI32, AtomicI64, Ordering};

next! {
    sigqueue: fn(pid_t, c_int, sigval) -> c_int;
}

/// The number of the rank's first process; 0: not known, or this is none of its processes.
static FIRST: AtomicI32 = AtomicI32::new(0);
/// When it began, in seconds of CLOCK_REALTIME.
static BEGAN_S: AtomicI64 = AtomicI64::new(i64::MAX);
/// Seconds by which the clocks of hosts and file servers may differ, or a rank begin after another.
const MARGIN_S: i64 = 2;

fn kernels() -> pid_t {
    // SAFETY: asks only.
    unsafe { libc::syscall(libc::SYS_getpid) as pid_t }
}

/// What is observed begins: first of all the number, and when the clocks of the host began.
pub(crate) fn begin(stream: &mut ObservedStream) {
    let mut first = |value: i64| {
        let again = stream.result_again();
        again.unwrap_or_else(|| {
            stream.write_result(value);
            value
        })
    };
    FIRST.store(first(kernels().into()) as pid_t, Ordering::Relaxed);
    host_clocks::set_began(first(host_clocks::began_ns()));
    let now_s = host_clocks::kernels_ns(libc::CLOCK_REALTIME) / 1_000_000_000;
    BEGAN_S.store(first(now_s), Ordering::Relaxed);
    host_clocks::come_back();
}

/// Whether a file that was changed at this second (its ctime) may have been changed by the job.
pub(crate) fn changed_in_job(changed_s: i64) -> bool {
    changed_s >= BEGAN_S.load(Ordering::Relaxed).saturating_sub(MARGIN_S)
}

#[export_name = "getpid"]
pub extern "C-unwind" fn our_getpid() -> pid_t {
    match FIRST.load(Ordering::Relaxed) {
        first if first != 0 && is_on() => first,
        _ => kernels(),
    }
}

/// Whether getpid(2) says this number here, and the kernel perhaps another.
pub(crate) fn is_own(pid: pid_t) -> bool {
    let first = FIRST.load(Ordering::Relaxed);
    first != 0 && pid == first && is_on()
}

/// The process that a number is for.
pub(crate) fn meant(pid: pid_t) -> pid_t {
    match is_own(pid) {
        true => kernels(),
        false => pid,
    }
}

/// # Safety
/// As sigqueue(3).
#[export_name = "sigqueue"]
pub unsafe extern "C-unwind" fn our_sigqueue(pid: pid_t, signal: c_int, value: sigval) -> c_int {
    // SAFETY: handed on to the caller.
    unsafe { sigqueue.get()(meant(pid), signal, value) }
}
