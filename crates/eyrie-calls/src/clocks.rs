//! clock_gettime(2), gettimeofday(2), time(2), clock(3), timespec_get(3). A rank that is executed
//! again reads from its clocks what it read before, and goes on from there: in a process that has
//! come back no clock goes back, nor does a monotonic one jump on a host that has run for longer or
//! shorter. Other threads read the kernel's clocks, set by as much as those of the host were.

use crate::next::next;
use crate::observed::{is_on, Observing};
use crate::stream::SECONDS;
use libc::{c_int, c_void, clockid_t, time_t, timespec, timeval};
use std::sync::atomic::{AtomicI64, Ordering};

next! {
    clock_gettime: fn(clockid_t, *mut timespec) -> c_int;
    gettimeofday: fn(*mut timeval, *mut c_void) -> c_int;
}

/// CLOCK_REALTIME, its coarse one, CLOCK_TAI and [`SECONDS`]: the time of day. It never goes back by
/// less than this, in microseconds; where it goes back by more somebody has set it.
const OF_DAY: [usize; 4] = [0, 5, 11, SECONDS];
const SET_BACK: i64 = 10_000_000;
/// CLOCK_MONOTONIC, the raw and the coarse one, CLOCK_BOOTTIME: they begin when the host does.
const OF_HOST: [clockid_t; 4] = [1, 4, 6, 7];

/// By how much clocks of the host are ahead of those of the host on which the rank is, in
/// nanoseconds.
static AHEAD_NS: AtomicI64 = AtomicI64::new(0);
/// Time of day at which they began, as it was when the last image was asked for, in nanoseconds.
static BEGAN_NS: AtomicI64 = AtomicI64::new(0);

/// Clocks of two hosts that differ by less are the same, in nanoseconds.
const SAME_NS: i64 = 500_000_000;

fn is_observed(clock: clockid_t) -> bool {
    (0..8).contains(&clock) || clock == libc::CLOCK_TAI
}

/// What the kernel's clock says.
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
    match OF_HOST.contains(&clock) {
        true => AHEAD_NS.load(Ordering::Relaxed),
        false => 0,
    }
}

/// Time of day at which the clocks of the host began, as the rank has them.
pub fn began_ns() -> i64 {
    let monotonic = kernels_ns(libc::CLOCK_MONOTONIC) + AHEAD_NS.load(Ordering::Relaxed);
    kernels_ns(libc::CLOCK_REALTIME) - monotonic
}

/// They began then, in an earlier process of the rank; or an image is asked for.
pub fn set_began(ns: i64) {
    BEGAN_NS.store(ns, Ordering::Relaxed);
}

/// This process goes on where an earlier one was. On another host its clocks go on by as much as the
/// time of day has.
pub fn come_back() {
    let differ = began_ns() - BEGAN_NS.load(Ordering::Relaxed);
    if is_on() && differ.abs() > SAME_NS {
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

/// Observes a clock that the kernel says to be at `now`, in its unit (`coarser`: of which it is to be
/// a multiple).
#[inline]
fn observe(mut observing: Observing, clock: usize, now: impl FnOnce(u32) -> i64) -> i64 {
    let stream = observing.stream();
    if let Some(value) = stream.clock_again(clock) {
        return value;
    }
    let mut value = now(stream.coarser()) + stream.ahead[clock];
    let last = stream.last(clock);
    if value < last {
        value = not_back(&mut stream.ahead[clock], clock, value, last);
    }
    stream.write_clock(clock, value);
    value
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

/// What a clock says in the rank.
#[inline]
fn read(clock: clockid_t) -> timespec {
    let Some(observing) = Observing::begin() else {
        return match ahead_ns(clock) {
            0 => kernels(clock),
            ahead => shifted(kernels(clock), ahead),
        };
    };
    let value = observe(observing, clock as usize, |coarser| {
        let time = for_the_rank(clock, kernels(clock));
        (time.tv_sec * 1_000_000 + time.tv_nsec / 1000) >> coarser << coarser
    });
    timespec { tv_sec: value.div_euclid(1_000_000), tv_nsec: value.rem_euclid(1_000_000) * 1000 }
}

#[inline]
fn for_the_rank(clock: clockid_t, time: timespec) -> timespec {
    match AHEAD_NS.load(Ordering::Relaxed) {
        0 => time,
        _ => shifted(time, ahead_ns(clock)),
    }
}

/// # Safety
/// As clock_gettime(2).
#[export_name = "clock_gettime"]
pub unsafe extern "C-unwind" fn our_clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    // SAFETY: handed on to the caller.
    unsafe {
        if !is_on() || time.is_null() || !is_observed(clock) {
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
    // SAFETY: handed on to the caller.
    unsafe {
        if !is_on() || time.is_null() || !zone.is_null() {
            return gettimeofday.get()(time, zone);
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
    let seconds = |_| kernels(libc::CLOCK_REALTIME_COARSE).tv_sec;
    let value = match Observing::begin() {
        Some(observing) => observe(observing, SECONDS, seconds),
        None => seconds(0),
    };
    if !to.is_null() {
        // SAFETY: handed on to the caller.
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
    // SAFETY: handed on to the caller.
    unsafe { *time = read(libc::CLOCK_REALTIME) };
    base
}

// Waits for a point in time that a clock of the rank has said.

/// A point in time, as the kernel's clock has it.
///
/// # Safety
/// `time` must be null or point to a time.
unsafe fn point(clock: clockid_t, time: *const timespec, room: &mut timespec) -> *const timespec {
    // SAFETY: handed on to the caller.
    match unsafe { time.as_ref() } {
        Some(given) if ahead_ns(clock) != 0 => {
            *room = for_the_kernel(clock, *given);
            room
        }
        _ => time,
    }
}

/// Functions that wait for a point in time of a clock: ours, the one behind it, its name.
macro_rules! waiting {
    ($($our:ident, $next:ident, $symbol:literal;)*) => {
        next! { $($next: fn(*mut c_void, clockid_t, *const timespec) -> c_int;)* }
        $(
            /// # Safety
            /// As the function of the C library.
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our(
                what: *mut c_void,
                clock: clockid_t,
                time: *const timespec,
            ) -> c_int {
                let mut room = timespec { tv_sec: 0, tv_nsec: 0 };
                // SAFETY: handed on to the caller.
                unsafe { $next.get()(what, clock, point(clock, time, &mut room)) }
            }
        )*
    };
}

mod clock_waits {
    use super::*;
    waiting! {
        our_sem_clockwait, sem_clockwait, "sem_clockwait";
        our_mutex_clocklock, pthread_mutex_clocklock, "pthread_mutex_clocklock";
        our_rwlock_clockrdlock, pthread_rwlock_clockrdlock, "pthread_rwlock_clockrdlock";
        our_rwlock_clockwrlock, pthread_rwlock_clockwrlock, "pthread_rwlock_clockwrlock";
    }
}
pub use clock_waits::*;

mod conditions {
    use super::*;
    use std::sync::atomic::AtomicPtr;
    next! {
        pthread_cond_clockwait:
            fn(*mut c_void, *mut c_void, clockid_t, *const timespec) -> c_int;
    }

    type TimedWait =
        unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, *const timespec) -> c_int;
    static TIMED_WAIT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

    /// Without its version the C library gives an older function of this name, for conditions of
    /// another shape.
    extern "C" fn find_timed_wait() {
        let (name, version) = (c"pthread_cond_timedwait", c"GLIBC_2.3.2");
        // SAFETY: both are C strings.
        let found = unsafe { libc::dlvsym(libc::RTLD_NEXT, name.as_ptr(), version.as_ptr()) };
        TIMED_WAIT.store(found, Ordering::Relaxed);
    }

    #[used]
    #[link_section = ".init_array"]
    static FIND_TIMED_WAIT: extern "C" fn() = find_timed_wait;

    fn timed_wait() -> TimedWait {
        if TIMED_WAIT.load(Ordering::Relaxed).is_null() {
            find_timed_wait();
        }
        let found = TIMED_WAIT.load(Ordering::Relaxed);
        assert!(!found.is_null(), "the C library has no pthread_cond_timedwait");
        // SAFETY: the function of this name has this type.
        unsafe { std::mem::transmute::<*mut c_void, TimedWait>(found) }
    }

    /// Points in time of CLOCK_MONOTONIC are below this, of CLOCK_REALTIME above, in seconds.
    const DECADES: i64 = 1_000_000_000;

    /// # Safety
    /// As pthread_cond_clockwait(3).
    #[export_name = "pthread_cond_clockwait"]
    pub unsafe extern "C-unwind" fn our_cond_clockwait(
        condition: *mut c_void,
        mutex: *mut c_void,
        clock: clockid_t,
        time: *const timespec,
    ) -> c_int {
        let mut room = timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: handed on to the caller.
        unsafe {
            let time = point(clock, time, &mut room);
            pthread_cond_clockwait.get()(condition, mutex, clock, time)
        }
    }

    /// # Safety
    /// As pthread_cond_timedwait(3). Only the condition knows its clock, and the C library it.
    #[export_name = "pthread_cond_timedwait"]
    pub unsafe extern "C-unwind" fn our_cond_timedwait(
        condition: *mut c_void,
        mutex: *mut c_void,
        time: *const timespec,
    ) -> c_int {
        let mut room = timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: handed on to the caller.
        unsafe {
            let of_host = time.as_ref().is_some_and(|time| time.tv_sec < DECADES);
            let clock = if of_host { libc::CLOCK_MONOTONIC } else { libc::CLOCK_REALTIME };
            let time = point(clock, time, &mut room);
            timed_wait()(condition, mutex, time)
        }
    }
}
pub use conditions::*;
