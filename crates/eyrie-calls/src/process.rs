//! getpid(2), kill(2), sigqueue(3). A rank keeps the number of its first process: it may have told
//! others, or named a file by it. Signals for that number are for this process; what else names
//! a process is [`crate::own_number`]'s.

use crate::environment::agent;
use crate::files::kernel;
use crate::host_clocks;
use crate::job_start;
use crate::next::next;
use crate::observed::{is_on, ObservedStream};
use libc::{c_int, pid_t, sigval};
use std::sync::atomic::{AtomicI32, Ordering};

next! {
    sigqueue: fn(pid_t, c_int, sigval) -> c_int;
}

/// The number of the rank's first process; 0: not known, or this is none of its processes.
static FIRST: AtomicI32 = AtomicI32::new(0);
/// In which the kernel says when a process began, in nanoseconds (USER_HZ, proc_pid_stat(5)).
const TICK_NS: i64 = 10_000_000;

fn kernels() -> pid_t {
    // SAFETY: getpid(2) takes no argument and always succeeds.
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
    job_start::set(first(job_began_ns()));
    host_clocks::come_back();
}

/// When the agent of this host began, in nanoseconds of CLOCK_REALTIME: no rank began before that,
/// and ranks of one host have one answer. Where that is not known, two seconds ago.
fn job_began_ns() -> i64 {
    let now_ns = host_clocks::kernels_ns(libc::CLOCK_REALTIME);
    let since_boot_ns = host_clocks::kernels_ns(libc::CLOCK_BOOTTIME);
    let began_ns = agent().and_then(started_ns).filter(|ns| *ns <= since_boot_ns);
    now_ns - began_ns.map_or(2_000_000_000, |ns| since_boot_ns - ns)
}

/// When a process was started, in nanoseconds of CLOCK_BOOTTIME.
fn started_ns(process: pid_t) -> Option<i64> {
    let mut text = [0u8; 1024];
    let n = kernel::stat_of_process(process, &mut text);
    // The name of its program is in parentheses, and may have some, too; then the third field.
    let behind = text[..n].rsplit(|byte| *byte == b')').next()?;
    let ticks = behind.split(|byte| *byte == b' ').nth(20)?;
    let ticks: i64 = std::str::from_utf8(ticks).ok()?.parse().ok()?;
    ticks.checked_mul(TICK_NS)
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
    if is_own(pid) {
        kernels()
    } else {
        pid
    }
}

/// # Safety
/// As sigqueue(3).
#[export_name = "sigqueue"]
pub unsafe extern "C-unwind" fn our_sigqueue(pid: pid_t, signal: c_int, value: sigval) -> c_int {
    // SAFETY: sigqueue(3) takes numbers only; the value is passed on unread.
    unsafe { sigqueue.get()(meant(pid), signal, value) }
}
