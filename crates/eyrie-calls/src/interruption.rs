//! The interface between the provider and this library for waits: that a wait is under way, that an
//! image has interrupted it, by how much the clock has jumped. The provider calls the functions
//! of the table in its signal handler, so they must not allocate or lock.

use crate::host_clocks;
use std::cell::Cell;
use std::sync::atomic::{AtomicI32, AtomicI64, Ordering};

/// The signal that asks a rank for an image; 0: the process is no rank.
static CAPTURE_SIGNAL: AtomicI32 = AtomicI32::new(0);
/// Nanoseconds that passed between images and the processes restored from them, as the monotonic
/// clock says.
static CLOCK_JUMPED_NS: AtomicI64 = AtomicI64::new(0);

/// How deep below ours the frame of the C library may be that makes the system call. A signal
/// handler lies deeper.
const DEPTH: usize = 1024;

/// The wait of a thread.
struct Wait {
    /// Somewhere in the frame of the function that waits; 0: none does.
    frame: Cell<usize>,
    /// Images that have interrupted it.
    images: Cell<u64>,
}

thread_local! {
    static WAIT: Wait = const { Wait { frame: Cell::new(0), images: Cell::new(0) } };
}

/// This process is a rank, and images are asked for by this signal.
pub fn begin(capture_signal: libc::c_int) {
    CAPTURE_SIGNAL.store(capture_signal, Ordering::Relaxed);
}

/// The provider tells that an image has interrupted a system call, and nothing else has;
/// `stack_pointer` is that of the call. Returns 1 when one of our functions waits there: it will go
/// on by itself. Async-signal-safe.
pub extern "C" fn eyrie_calls_interrupted(stack_pointer: usize) -> libc::c_int {
    WAIT.with(|wait| {
        let frame = wait.frame.get();
        let ours = frame != 0 && frame.wrapping_sub(stack_pointer) < DEPTH;
        if ours {
            wait.images.set(wait.images.get() + 1);
        }
        ours.into()
    })
}

/// The provider tells, in a restored process, how far the monotonic clock is ahead of where it was
/// when the image was taken, in nanoseconds. Async-signal-safe.
pub extern "C" fn eyrie_calls_clock_jumped(ns: i64) {
    CLOCK_JUMPED_NS.fetch_add(ns, Ordering::Relaxed);
    host_clocks::come_back();
}

/// Whether waits are continued at all: only in a rank.
pub fn in_a_rank() -> bool {
    capture_signal() != 0
}

pub fn capture_signal() -> libc::c_int {
    CAPTURE_SIGNAL.load(Ordering::Relaxed)
}

/// Makes `call`; returns whether an image has interrupted it.
pub fn watched<R>(call: impl FnOnce() -> R) -> (R, bool) {
    WAIT.with(|wait| {
        let here = 0u8;
        let before = wait.images.get();
        // A handler of the program's own may wait in the middle of a wait.
        let outer = wait.frame.replace(&raw const here as usize);
        let result = call();
        wait.frame.set(outer);
        (result, wait.images.get() != before)
    })
}

/// Nanoseconds of a clock that stands still between an image and the process restored from it.
fn now_ns() -> i64 {
    host_clocks::kernels_ns(libc::CLOCK_MONOTONIC)
        .saturating_sub(CLOCK_JUMPED_NS.load(Ordering::Relaxed))
}

/// When a wait is over.
#[derive(Clone, Copy)]
pub struct Deadline {
    /// `None`: never.
    at_ns: Option<i64>,
}

impl Deadline {
    pub const NEVER: Deadline = Deadline { at_ns: None };

    pub fn after_ns(ns: i64) -> Deadline {
        Deadline { at_ns: Some(now_ns().saturating_add(ns.max(0))) }
    }

    pub fn after(time: &libc::timespec) -> Deadline {
        Deadline::after_ns(time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec))
    }

    /// Nanoseconds that are left; `None`: for ever.
    pub fn left_ns(&self) -> Option<i64> {
        self.at_ns.map(|at| at.saturating_sub(now_ns()).max(0))
    }

    /// As a time for a system call.
    pub fn left(&self) -> Option<libc::timespec> {
        self.left_ns()
            .map(|ns| libc::timespec { tv_sec: ns / 1_000_000_000, tv_nsec: ns % 1_000_000_000 })
    }

    /// As milliseconds for a system call, rounded up: a wait is never shorter than it was asked to
    /// be. -1: for ever.
    pub fn left_ms(&self) -> libc::c_int {
        self.left_ns().map_or(-1, |ns| {
            ((ns + 999_999) / 1_000_000).min(i64::from(libc::c_int::MAX)) as libc::c_int
        })
    }
}

/// Makes a call, and makes it again while nothing but images interrupts it; `interrupted` tells by
/// its result. errno does not say that one has: CPython's poll(2) takes EINTR there for the result,
/// whatever the function returns, and waits again.
pub fn until_done<R>(mut call: impl FnMut() -> R, interrupted: impl Fn(&R) -> bool) -> R {
    let before = errno();
    loop {
        let (result, by_image) = watched(&mut call);
        if !by_image || !interrupted(&result) {
            return result;
        }
        set_errno(before);
    }
}

/// Waits with all signals blocked except in the system call: `call` passes the mask on. So no
/// signal can come between a call that an image has interrupted and the next one, which would then
/// wait for a signal that has already come.
pub fn until_done_masked(mut call: impl FnMut(&libc::sigset_t) -> libc::c_int) -> libc::c_int {
    // SAFETY: both sets are ours; the second call gives the thread its mask again.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGSYS] {
            libc::sigdelset(&mut all, fault);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before);
        let result = until_done(|| call(&before), eintr);
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        result
    }
}

/// Whether a signal has ended a call that tells so by -1 and errno.
pub fn eintr(result: &libc::c_int) -> bool {
    *result == -1 && errno() == libc::EINTR
}

pub fn errno() -> libc::c_int {
    // SAFETY: `errno` is this thread's own.
    unsafe { *libc::__errno_location() }
}

pub fn set_errno(value: libc::c_int) {
    // SAFETY: `errno` is this thread's own.
    unsafe { *libc::__errno_location() = value }
}
