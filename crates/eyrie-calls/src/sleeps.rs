//! sleep(3), usleep(3), nanosleep(2), clock_nanosleep(2).

use crate::host_clocks::for_the_kernel;
use crate::interruption::{in_a_rank, until_done, until_done_masked, watched, Deadline};
use crate::next::next;
use libc::{c_int, c_uint, clockid_t, nfds_t, pollfd, sigset_t, timespec, useconds_t};

next! {
    sleep: fn(c_uint) -> c_uint;
    usleep: fn(useconds_t) -> c_int;
    nanosleep: fn(*const timespec, *mut timespec) -> c_int;
    clock_nanosleep: fn(clockid_t, c_int, *const timespec, *mut timespec) -> c_int;
    ppoll: fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int;
}

/// Sleeps; gives what is left when a signal has ended it. ppoll(2) without descriptors is a sleep
/// that takes a mask.
fn sleep_for(time: &timespec) -> Result<(), timespec> {
    let deadline = Deadline::after(time);
    // errno is unchanged after a complete sleep.
    let result = until_done_masked(|mask| {
        let left = deadline.left().unwrap_or(*time);
        // SAFETY: no descriptors; time and mask live through the call.
        unsafe { ppoll.get()(std::ptr::null_mut(), 0, &left, mask) }
    });
    if result < 0 {
        return Err(deadline.left().unwrap_or(*time));
    }
    Ok(())
}

#[export_name = "sleep"]
pub extern "C-unwind" fn our_sleep(seconds: c_uint) -> c_uint {
    if !in_a_rank() {
        // SAFETY: sleep(3) takes any number, and touches no memory of the program.
        return unsafe { sleep.get()(seconds) };
    }
    match sleep_for(&timespec { tv_sec: seconds.into(), tv_nsec: 0 }) {
        Ok(()) => 0,
        Err(left) => left.tv_sec as c_uint,
    }
}

#[export_name = "usleep"]
pub extern "C-unwind" fn our_usleep(micros: useconds_t) -> c_int {
    if !in_a_rank() {
        // SAFETY: usleep(3) takes any number, and touches no memory of the program.
        return unsafe { usleep.get()(micros) };
    }
    let seconds = micros / 1_000_000;
    let rest = micros % 1_000_000;
    let time = timespec { tv_sec: seconds.into(), tv_nsec: i64::from(rest) * 1000 };
    sleep_for(&time).map_or(-1, |()| 0)
}

/// # Safety
/// As nanosleep(2).
#[export_name = "nanosleep"]
pub unsafe extern "C-unwind" fn our_nanosleep(time: *const timespec, rest: *mut timespec) -> c_int {
    // SAFETY: the caller keeps the contract of the C function, which gets the same arguments.
    unsafe {
        if !in_a_rank() || time.is_null() || !is_time(&*time) {
            return nanosleep.get()(time, rest);
        }
        match sleep_for(&*time) {
            Ok(()) => 0,
            Err(left) => {
                if !rest.is_null() {
                    *rest = left;
                }
                -1
            }
        }
    }
}

/// # Safety
/// As clock_nanosleep(2).
#[export_name = "clock_nanosleep"]
pub unsafe extern "C-unwind" fn our_clock_nanosleep(
    clock: clockid_t,
    flags: c_int,
    time: *const timespec,
    rest: *mut timespec,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function, which gets the same arguments.
    unsafe {
        let next = clock_nanosleep.get();
        if !in_a_rank() || time.is_null() || !is_time(&*time) {
            return next(clock, flags, time, rest);
        }
        // It gives the error instead of setting errno.
        if flags & libc::TIMER_ABSTIME != 0 {
            let call = || next(clock, flags, &for_the_kernel(clock, *time), rest);
            return until_done(call, |r| *r == libc::EINTR);
        }
        let left = if matches!(clock, libc::CLOCK_REALTIME | libc::CLOCK_MONOTONIC) {
            match sleep_for(&*time) {
                Ok(()) => return 0,
                Err(left) => left,
            }
        } else {
            match sleep_by(clock, flags, time) {
                Ok(result) => return result,
                Err(left) => left,
            }
        };
        if !rest.is_null() {
            *rest = left;
        }
        libc::EINTR
    }
}

/// Sleeps by a clock of which only the kernel knows how much is left: that of a processor, say.
///
/// # Safety
/// `time` must point to a time.
unsafe fn sleep_by(
    clock: clockid_t,
    flags: c_int,
    time: *const timespec,
) -> Result<c_int, timespec> {
    // SAFETY: by the contract of this function, `time` points to a time.
    let mut left = unsafe { *time };
    loop {
        let mut rest = timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: both structures are ours and live through the call.
        let call = || unsafe { clock_nanosleep.get()(clock, flags, &left, &mut rest) };
        let (result, by_image) = watched(call);
        match result {
            libc::EINTR if by_image => left = rest,
            libc::EINTR => return Err(rest),
            result => return Ok(result),
        }
    }
}

/// Whether the kernel will take it.
fn is_time(time: &timespec) -> bool {
    time.tv_sec >= 0 && (0..1_000_000_000).contains(&time.tv_nsec)
}
