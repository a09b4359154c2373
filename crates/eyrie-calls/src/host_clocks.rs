//! The kernel's clocks, and by how much a rank's clocks differ from them. A rank that goes on on
//! another host has clocks that began when those of its first host did.

use crate::next::next;
use libc::{c_int, clockid_t, timespec};
use std::sync::atomic::{AtomicI64, Ordering};

next! {
    clock_gettime: fn(clockid_t, *mut timespec) -> c_int;
}

/// CLOCK_MONOTONIC, the raw and the coarse one, CLOCK_BOOTTIME: they begin when the host does.
const OF_HOST: [clockid_t; 4] = [1, 4, 6, 7];

/// By how much clocks of the host are ahead of those of the host on which the rank is, in
/// nanoseconds.
static AHEAD_NS: AtomicI64 = AtomicI64::new(0);
/// Time of day at which they began, as it was when the last image was asked for, in nanoseconds.
static BEGAN_NS: AtomicI64 = AtomicI64::new(0);

/// Clocks of two hosts that differ by less are the same, in nanoseconds.
const SAME_NS: i64 = 500_000_000;

/// The value of the kernel's clock.
#[inline]
pub fn kernels(clock: clockid_t) -> timespec {
    let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is ours. A clock that there is cannot fail.
    unsafe { clock_gettime.get()(clock, &mut time) };
    time
}

/// The same in nanoseconds.
pub fn kernels_ns(clock: clockid_t) -> i64 {
    let time = kernels(clock);
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}

/// By how much a clock of a rank is ahead of the kernel's, in nanoseconds.
pub fn ahead_ns(clock: clockid_t) -> i64 {
    if OF_HOST.contains(&clock) {
        AHEAD_NS.load(Ordering::Relaxed)
    } else {
        0
    }
}

/// Time of day at which the clocks of the host began, as the rank has them.
pub fn began_ns() -> i64 {
    let monotonic = kernels_ns(libc::CLOCK_MONOTONIC) + AHEAD_NS.load(Ordering::Relaxed);
    kernels_ns(libc::CLOCK_REALTIME) - monotonic
}

/// Sets when they began: in an earlier process of the rank, or when an image is asked for.
pub fn set_began(ns: i64) {
    BEGAN_NS.store(ns, Ordering::Relaxed);
}

/// This process continues an earlier one. On another host its clocks advance by as much as the time
/// of day did.
pub fn come_back() {
    let differ = began_ns() - BEGAN_NS.load(Ordering::Relaxed);
    if BEGAN_NS.load(Ordering::Relaxed) != 0 && differ.abs() > SAME_NS {
        AHEAD_NS.fetch_add(differ, Ordering::Relaxed);
    }
}

fn shifted(time: timespec, ns: i64) -> timespec {
    let all = time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec);
    let all = all.saturating_add(ns);
    timespec { tv_sec: all.div_euclid(1_000_000_000), tv_nsec: all.rem_euclid(1_000_000_000) }
}

/// A point in time of a clock of the rank as one of the kernel's.
pub fn for_the_kernel(clock: clockid_t, time: timespec) -> timespec {
    match ahead_ns(clock) {
        0 => time,
        ahead => shifted(time, -ahead),
    }
}

/// The value of a clock of the rank when the kernel's clock has this value.
#[inline]
pub fn for_the_rank(clock: clockid_t, time: timespec) -> timespec {
    match AHEAD_NS.load(Ordering::Relaxed) {
        0 => time,
        _ => shifted(time, ahead_ns(clock)),
    }
}
