//! clock_gettime(2), gettimeofday(2), time(2), clock(3), timespec_get(3). A rank that is executed
//! again reads from its clocks what it read before, and goes on from there. In a restored process
//! no clock may go back, and no monotonic clock may jump because another host booted at another
//! time. Other threads read the kernel's clocks, shifted by the same amount.

use crate::early_clocks;
use crate::files::standing_in;
use crate::host_clocks::{for_the_rank, kernels};
use crate::next::next;
use crate::observed::{is_on, stream, Observing};
use crate::stream::SECONDS;
use libc::{c_int, c_void, clockid_t, time_t, timespec, timeval};

next! {
    clock_gettime: fn(clockid_t, *mut timespec) -> c_int;
    gettimeofday: fn(*mut timeval, *mut c_void) -> c_int;
}

/// CLOCK_REALTIME, its coarse one, CLOCK_TAI and [`SECONDS`]: the time of day. It never goes back
/// by less than this, in microseconds. When it goes back by more, the clock was set.
const OF_DAY: [usize; 4] = [0, 5, 11, SECONDS];
const SET_BACK: i64 = 10_000_000;

fn is_observed(clock: clockid_t) -> bool {
    (0..8).contains(&clock) || clock == libc::CLOCK_TAI
}

/// Whether what clocks say is recorded or kept in this process.
#[inline]
fn counts() -> bool {
    is_on() || early_clocks::keeps()
}

/// Observes a clock: what it says in microseconds, or in whole seconds ([`SECONDS`]).
extern "C" fn observe(clock: usize) -> i64 {
    // SAFETY: this runs only in `Observing::run`, which keeps all others from the stream.
    let stream = unsafe { stream() };
    if let Some(value) = stream.clock_again(clock) {
        return value;
    }
    standing_in::before_new_of(stream);
    let mut value = now(clock) + stream.ahead[clock];
    let last = stream.last(clock);
    if value < last {
        value = not_back(&mut stream.ahead[clock], clock, value, last);
    } else if clock != SECONDS {
        let coarser = stream.coarser();
        value = last.max(value >> coarser << coarser);
    }
    stream.write_clock(clock, value);
    value
}

/// The value of a clock that is not observed, in its unit.
#[inline]
fn now(clock: usize) -> i64 {
    if clock == SECONDS {
        return seconds();
    }
    let time = for_the_rank(clock as clockid_t, kernels(clock as clockid_t));
    time.tv_sec * 1_000_000 + time.tv_nsec / 1000
}

/// What time(2) says.
fn seconds() -> i64 {
    kernels(libc::CLOCK_REALTIME_COARSE).tv_sec
}

#[cold]
fn not_back(ahead: &mut i64, clock: usize, value: i64, last: i64) -> i64 {
    if !OF_DAY.contains(&clock) {
        *ahead += last - value;
        return last;
    }
    if last - value < SET_BACK {
        last
    } else {
        value
    }
}

/// The value of a clock in the rank.
#[inline]
fn read(clock: clockid_t) -> timespec {
    let Some(mut observing) = Observing::begin() else {
        let early = early_clocks::read(clock);
        return early.unwrap_or_else(|| for_the_rank(clock, kernels(clock)));
    };
    let value = observing.run(observe, clock as usize);
    timespec { tv_sec: value.div_euclid(1_000_000), tv_nsec: value.rem_euclid(1_000_000) * 1000 }
}

/// # Safety
/// As clock_gettime(2).
#[export_name = "clock_gettime"]
pub unsafe extern "C-unwind" fn our_clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    // SAFETY: the caller keeps the contract of the C function, which gets the same arguments.
    unsafe {
        if !counts() || time.is_null() || !is_observed(clock) {
            return clock_gettime.get()(clock, time);
        }
        *time = read(clock);
        0
    }
}

/// # Safety
/// As gettimeofday(2).
#[export_name = "gettimeofday"]
pub unsafe extern "C-unwind" fn our_gettimeofday(time: *mut timeval, zone: *mut c_void) -> c_int {
    // SAFETY: the caller keeps the contract of the C function, which gets the same arguments.
    unsafe {
        if !counts() || time.is_null() {
            return gettimeofday.get()(time, zone);
        }
        if !zone.is_null() {
            // As the C library does: the kernel's time zone is not used.
            zone.cast::<[c_int; 2]>().write_unaligned([0; 2]);
        }
        let timespec { tv_sec, tv_nsec } = read(libc::CLOCK_REALTIME);
        *time = timeval { tv_sec, tv_usec: tv_nsec / 1000 };
        0
    }
}

/// # Safety
/// As time(2).
#[export_name = "time"]
pub unsafe extern "C-unwind" fn our_time(to: *mut time_t) -> time_t {
    let value = match Observing::begin() {
        Some(mut observing) => observing.run(observe, SECONDS),
        None => early_clocks::read(libc::CLOCK_REALTIME_COARSE).map_or_else(seconds, |t| t.tv_sec),
    };
    if !to.is_null() {
        // SAFETY: the caller keeps the contract of the C function, which gets the same arguments.
        unsafe { *to = value };
    }
    value
}

/// Processor time, in microseconds.
#[export_name = "clock"]
pub extern "C-unwind" fn our_clock() -> libc::clock_t {
    let timespec { tv_sec, tv_nsec } = read(libc::CLOCK_PROCESS_CPUTIME_ID);
    tv_sec * 1_000_000 + tv_nsec / 1000
}

/// # Safety
/// As timespec_get(3).
#[export_name = "timespec_get"]
pub unsafe extern "C-unwind" fn our_timespec_get(time: *mut timespec, base: c_int) -> c_int {
    const UTC: c_int = 1;
    if base != UTC {
        return 0;
    }
    // SAFETY: the caller keeps the contract of the C function, which gets the same arguments.
    unsafe { *time = read(libc::CLOCK_REALTIME) };
    base
}

/// MPI_Wtime, in seconds. Intel MPI reads the processor's time stamp counter for it, which cannot
/// be recorded. Other libraries read this clock.
#[export_name = "MPI_Wtime"]
pub extern "C-unwind" fn our_wtime() -> f64 {
    let timespec { tv_sec, tv_nsec } = read(libc::CLOCK_MONOTONIC);
    tv_sec as f64 + tv_nsec as f64 / 1e9
}

/// The same, by the name that profiling libraries and Fortran's bindings call.
#[export_name = "PMPI_Wtime"]
pub extern "C-unwind" fn our_profiled_wtime() -> f64 {
    our_wtime()
}
