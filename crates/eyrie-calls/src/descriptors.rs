//! poll(2), ppoll(2), select(2), pselect(2), epoll_wait(2) and their like: waits for descriptors.
//! Functions without a mask call those with one.

use crate::files::pipes::{polls, selects, waits_for_events};
use crate::interruption::{in_a_rank, until_done_masked, Deadline};
use crate::next::next;
use libc::{c_int, epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

next! {
    poll: fn(*mut pollfd, nfds_t, c_int) -> c_int;
    __poll_chk: fn(*mut pollfd, nfds_t, c_int, size_t) -> c_int;
    ppoll: fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int;
    __ppoll_chk: fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t, size_t) -> c_int;
    select: fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int;
    pselect: fn(
        c_int, *mut fd_set, *mut fd_set, *mut fd_set, *const timespec, *const sigset_t
    ) -> c_int;
    epoll_wait: fn(c_int, *mut epoll_event, c_int, c_int) -> c_int;
    epoll_pwait: fn(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int;
    epoll_pwait2: fn(c_int, *mut epoll_event, c_int, *const timespec, *const sigset_t) -> c_int;
}

/// When a wait of so many milliseconds is over; never for negative numbers.
fn after_ms(ms: c_int) -> Deadline {
    match ms {
        ..0 => Deadline::NEVER,
        _ => Deadline::after_ns(i64::from(ms) * 1_000_000),
    }
}

/// Waits until a deadline. `call` is given the time that is left, null for ever, and a mask.
fn wait(
    deadline: Deadline,
    mask: Option<&sigset_t>,
    mut call: impl FnMut(*const timespec, *const sigset_t) -> c_int,
) -> c_int {
    until_done_masked(|before| {
        let left = deadline.left();
        let time = left.as_ref().map_or(std::ptr::null(), |left| left as *const timespec);
        call(time, mask.unwrap_or(before))
    })
}

/// A wait of this time, for ever when there is none; `None` where the next library is to see the
/// time as it came.
///
/// # Safety
/// `time` must be null or point to a time.
unsafe fn deadline_of(time: *const timespec) -> Option<Deadline> {
    // SAFETY: by the contract of this function, `time` is null or points to a time.
    match unsafe { time.as_ref() } {
        None => Some(Deadline::NEVER),
        Some(timespec { tv_sec: 0, tv_nsec: 0 }) => None,
        Some(time) if time.tv_sec < 0 || !(0..1_000_000_000).contains(&time.tv_nsec) => None,
        Some(time) => Some(Deadline::after(time)),
    }
    .filter(|_| in_a_rank())
}

/// # Safety
/// As poll(2).
#[export_name = "poll"]
pub unsafe extern "C-unwind" fn our_poll(fds: *mut pollfd, n: nfds_t, ms: c_int) -> c_int {
    // SAFETY: the caller keeps the contract of the C function, which gets the same arguments.
    unsafe {
        let next = || {
            if ms == 0 || !in_a_rank() {
                return poll.get()(fds, n, ms);
            }
            wait(after_ms(ms), None, |time, mask| ppoll.get()(fds, n, time, mask))
        };
        polls(fds, n, &next).unwrap_or_else(next)
    }
}

/// poll(2) as programs call it that are compiled with _FORTIFY_SOURCE.
///
/// # Safety
/// As poll(2).
#[export_name = "__poll_chk"]
pub unsafe extern "C-unwind" fn our_poll_chk(
    fds: *mut pollfd,
    n: nfds_t,
    ms: c_int,
    room: size_t,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function, which gets the same arguments.
    unsafe {
        let next = || {
            if ms == 0 || !in_a_rank() {
                return __poll_chk.get()(fds, n, ms, room);
            }
            wait(after_ms(ms), None, |time, mask| __ppoll_chk.get()(fds, n, time, mask, room))
        };
        polls(fds, n, &next).unwrap_or_else(next)
    }
}

/// # Safety
/// As ppoll(2).
#[export_name = "ppoll"]
pub unsafe extern "C-unwind" fn our_ppoll(
    fds: *mut pollfd,
    n: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function, which gets the same arguments.
    unsafe {
        let next = || match deadline_of(time) {
            None => ppoll.get()(fds, n, time, mask),
            Some(end) => wait(end, mask.as_ref(), |time, mask| ppoll.get()(fds, n, time, mask)),
        };
        polls(fds, n, &next).unwrap_or_else(next)
    }
}

/// ppoll(2) as programs call it that are compiled with _FORTIFY_SOURCE.
///
/// # Safety
/// As ppoll(2).
#[export_name = "__ppoll_chk"]
pub unsafe extern "C-unwind" fn our_ppoll_chk(
    fds: *mut pollfd,
    n: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function, which gets the same arguments.
    unsafe {
        let make = __ppoll_chk.get();
        let next = || match deadline_of(time) {
            None => make(fds, n, time, mask, room),
            Some(end) => wait(end, mask.as_ref(), |time, mask| make(fds, n, time, mask, room)),
        };
        polls(fds, n, &next).unwrap_or_else(next)
    }
}

/// # Safety
/// As select(2).
#[export_name = "select"]
pub unsafe extern "C-unwind" fn our_select(
    n: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    time: *mut timeval,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function, which gets the same arguments.
    unsafe {
        let next = || selects_any(n, [read, write, except], time);
        selects(n, [read, write, except], &next).unwrap_or_else(next)
    }
}

/// # Safety
/// As select(2).
unsafe fn selects_any(
    n: c_int,
    [read, write, except]: [*mut fd_set; 3],
    time: *mut timeval,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function, which gets the same arguments.
    unsafe {
        let given = time.as_ref().map_or(Some(Deadline::NEVER), |time| {
            let ns = time.tv_sec.saturating_mul(1_000_000_000);
            let ns = ns.saturating_add(time.tv_usec.saturating_mul(1000));
            (ns > 0 && time.tv_sec >= 0 && time.tv_usec >= 0).then(|| Deadline::after_ns(ns))
        });
        let Some(end) = given.filter(|_| in_a_rank()) else {
            return select.get()(n, read, write, except, time);
        };
        // A call that fails leaves the sets as they were.
        let next = pselect.get();
        let result = wait(end, None, |left, mask| next(n, read, write, except, left, mask));
        if let (Some(time), Some(left)) = (time.as_mut(), end.left()) {
            (time.tv_sec, time.tv_usec) = (left.tv_sec, left.tv_nsec / 1000);
        }
        result
    }
}

/// # Safety
/// As pselect(2).
#[export_name = "pselect"]
pub unsafe extern "C-unwind" fn our_pselect(
    n: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function, which gets the same arguments.
    unsafe {
        let make = pselect.get();
        let next = || match deadline_of(time) {
            None => make(n, read, write, except, time, mask),
            Some(end) => {
                wait(end, mask.as_ref(), |time, mask| make(n, read, write, except, time, mask))
            }
        };
        selects(n, [read, write, except], &next).unwrap_or_else(next)
    }
}

/// # Safety
/// As epoll_wait(2).
#[export_name = "epoll_wait"]
pub unsafe extern "C-unwind" fn our_epoll_wait(
    fd: c_int,
    events: *mut epoll_event,
    n: c_int,
    ms: c_int,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function, which gets the same arguments.
    unsafe {
        let next = || {
            if ms == 0 || !in_a_rank() {
                epoll_wait.get()(fd, events, n, ms)
            } else {
                epoll(fd, events, n, ms, None)
            }
        };
        waits_for_events(fd, events, n, &next).unwrap_or_else(next)
    }
}

/// # Safety
/// As epoll_pwait(2).
#[export_name = "epoll_pwait"]
pub unsafe extern "C-unwind" fn our_epoll_pwait(
    fd: c_int,
    events: *mut epoll_event,
    n: c_int,
    ms: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function, which gets the same arguments.
    unsafe {
        let next = || {
            if ms == 0 || !in_a_rank() {
                epoll_pwait.get()(fd, events, n, ms, mask)
            } else {
                epoll(fd, events, n, ms, mask.as_ref())
            }
        };
        waits_for_events(fd, events, n, &next).unwrap_or_else(next)
    }
}

/// # Safety
/// As epoll_pwait(2).
unsafe fn epoll(
    fd: c_int,
    events: *mut epoll_event,
    n: c_int,
    ms: c_int,
    mask: Option<&sigset_t>,
) -> c_int {
    let end = after_ms(ms);
    until_done_masked(|before| {
        // SAFETY: the caller keeps the contract of the C function, which gets the same arguments.
        unsafe { epoll_pwait.get()(fd, events, n, end.left_ms(), mask.unwrap_or(before)) }
    })
}

/// # Safety
/// As epoll_pwait2(2).
#[export_name = "epoll_pwait2"]
pub unsafe extern "C-unwind" fn our_epoll_pwait2(
    fd: c_int,
    events: *mut epoll_event,
    n: c_int,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function, which gets the same arguments.
    unsafe {
        let make = epoll_pwait2.get();
        let next = || match deadline_of(time) {
            None => make(fd, events, n, time, mask),
            Some(end) => wait(end, mask.as_ref(), |time, mask| make(fd, events, n, time, mask)),
        };
        waits_for_events(fd, events, n, &next).unwrap_or_else(next)
    }
}
