//! pause(2), sigsuspend(2), sigwaitinfo(2), sigtimedwait(2): waits for signals. Only the provider
//! gets the signal that asks for an image. A program that waits for all signals must never get it.

use crate::interruption::{eintr, in_a_rank, until_done, until_done_masked, Deadline};
use crate::next::next;
use libc::{c_int, siginfo_t, sigset_t, timespec};

next! {
    pause: fn() -> c_int;
    sigsuspend: fn(*const sigset_t) -> c_int;
    sigwait: fn(*const sigset_t, *mut c_int) -> c_int;
    sigwaitinfo: fn(*const sigset_t, *mut siginfo_t) -> c_int;
    sigtimedwait: fn(*const sigset_t, *mut siginfo_t, *const timespec) -> c_int;
}

#[export_name = "pause"]
pub extern "C-unwind" fn our_pause() -> c_int {
    // SAFETY: no arguments, or a mask that lives through the call.
    unsafe {
        if !in_a_rank() {
            return pause.get()();
        }
        until_done_masked(|mask| sigsuspend.get()(mask))
    }
}

/// # Safety
/// As sigsuspend(2).
#[export_name = "sigsuspend"]
pub unsafe extern "C-unwind" fn our_sigsuspend(mask: *const sigset_t) -> c_int {
    // SAFETY: the caller keeps the contract of the C function, which gets the same arguments.
    unsafe {
        if !in_a_rank() {
            return sigsuspend.get()(mask);
        }
        until_done_masked(|_| sigsuspend.get()(mask))
    }
}

/// The set without the signal that asks for an image.
///
/// # Safety
/// `set` must point to a set.
unsafe fn without_ours(set: *const sigset_t) -> sigset_t {
    // SAFETY: handed on to the caller; the copy is ours.
    unsafe {
        let mut set = *set;
        libc::sigdelset(&mut set, crate::interruption::capture_signal());
        set
    }
}

/// # Safety
/// As sigwait(3).
#[export_name = "sigwait"]
pub unsafe extern "C-unwind" fn our_sigwait(set: *const sigset_t, signal: *mut c_int) -> c_int {
    // SAFETY: the caller keeps the contract of the C function, which gets the same arguments.
    unsafe {
        if !in_a_rank() || set.is_null() {
            return sigwait.get()(set, signal);
        }
        // The wait goes on by itself when it was interrupted.
        sigwait.get()(&without_ours(set), signal)
    }
}

/// # Safety
/// As sigwaitinfo(2).
#[export_name = "sigwaitinfo"]
pub unsafe extern "C-unwind" fn our_sigwaitinfo(
    set: *const sigset_t,
    info: *mut siginfo_t,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function, which gets the same arguments.
    unsafe {
        if !in_a_rank() || set.is_null() {
            return sigwaitinfo.get()(set, info);
        }
        let set = without_ours(set);
        until_done(|| sigwaitinfo.get()(&set, info), eintr)
    }
}

/// # Safety
/// As sigtimedwait(2).
#[export_name = "sigtimedwait"]
pub unsafe extern "C-unwind" fn our_sigtimedwait(
    set: *const sigset_t,
    info: *mut siginfo_t,
    time: *const timespec,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function, which gets the same arguments.
    unsafe {
        if !in_a_rank() || set.is_null() || time.is_null() {
            return sigtimedwait.get()(set, info, time);
        }
        let set = without_ours(set);
        let deadline = Deadline::after(&*time);
        let mut left = *time;
        until_done(
            || {
                let result = sigtimedwait.get()(&set, info, &left);
                left = deadline.left().unwrap_or(left);
                result
            },
            eintr,
        )
    }
}
