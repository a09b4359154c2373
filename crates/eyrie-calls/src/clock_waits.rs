//! Waits of the C library until a point in time of a rank's clock. The kernel gets the same point
//! of its own clock.

use crate::host_clocks::{ahead_ns, for_the_kernel};
use crate::next::next;
use libc::{c_int, c_void, clockid_t, timespec};
use std::sync::atomic::{AtomicPtr, Ordering};

next! {
    sem_clockwait: fn(*mut c_void, clockid_t, *const timespec) -> c_int;
    pthread_mutex_clocklock: fn(*mut c_void, clockid_t, *const timespec) -> c_int;
    pthread_rwlock_clockrdlock: fn(*mut c_void, clockid_t, *const timespec) -> c_int;
    pthread_rwlock_clockwrlock: fn(*mut c_void, clockid_t, *const timespec) -> c_int;
    pthread_cond_clockwait:
        fn(*mut c_void, *mut c_void, clockid_t, *const timespec) -> c_int;
}

/// A point in time, as the kernel's clock has it.
///
/// # Safety
/// `time` must be null or point to a time.
unsafe fn point(clock: clockid_t, time: *const timespec, room: &mut timespec) -> *const timespec {
    // SAFETY: by the contract of this function, `time` is null or points to a time.
    match unsafe { time.as_ref() } {
        Some(given) if ahead_ns(clock) != 0 => {
            *room = for_the_kernel(clock, *given);
            room
        }
        _ => time,
    }
}

const NO_TIME: timespec = timespec { tv_sec: 0, tv_nsec: 0 };

/// Functions that wait for a point in time of a clock: ours, the one behind it, its name.
macro_rules! waiting {
    ($($our:ident, $next:ident, $symbol:literal;)*) => {
        $(
            /// # Safety
            /// As the function of the C library.
            #[export_name = $symbol]
            pub unsafe extern "C-unwind" fn $our(
                what: *mut c_void,
                clock: clockid_t,
                time: *const timespec,
            ) -> c_int {
                let mut room = NO_TIME;
                // SAFETY: the caller keeps the contract of the C function, which gets the same
                // arguments.
                unsafe { $next.get()(what, clock, point(clock, time, &mut room)) }
            }
        )*
    };
}
waiting! {
    our_sem_clockwait, sem_clockwait, "sem_clockwait";
    our_mutex_clocklock, pthread_mutex_clocklock, "pthread_mutex_clocklock";
    our_rwlock_clockrdlock, pthread_rwlock_clockrdlock, "pthread_rwlock_clockrdlock";
    our_rwlock_clockwrlock, pthread_rwlock_clockwrlock, "pthread_rwlock_clockwrlock";
}

type TimedWait = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, *const timespec) -> c_int;
static TIMED_WAIT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Without its version the C library gives an older function of this name, for conditions of
/// another shape.
extern "C" fn find_timed_wait() {
    let name = c"pthread_cond_timedwait";
    let version = c"GLIBC_2.3.2";
    // SAFETY: both are C strings, which live through the call.
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
    if found.is_null() {
        // The program was linked with this function, so a library has it: this cannot happen.
        // SAFETY: abort(3) has no arguments and does not return.
        unsafe { libc::abort() };
    }
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
    let mut room = NO_TIME;
    // SAFETY: the caller keeps the contract of the C function, which gets the same arguments.
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
    let mut room = NO_TIME;
    // SAFETY: the caller keeps the contract of the C function, which gets the same arguments.
    unsafe {
        let of_host = time.as_ref().is_some_and(|time| time.tv_sec < DECADES);
        let clock = if of_host { libc::CLOCK_MONOTONIC } else { libc::CLOCK_REALTIME };
        timed_wait()(condition, mutex, point(clock, time, &mut room))
    }
}
