//! Pipes to what a rank has started ([`super::children`]): what comes through them is told again to
//! a rank that is executed again, and what went is not written again where nothing runs that reads
//! it.

use super::buffers::Buffers;
use super::calling::{or_errno, outcome, written_down};
use super::kernel;
use super::records::{is_new_change, Call};
use super::standing_in;
use libc::{c_int, pollfd};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Numbers of the functions, in what is written down.
const READ: u8 = 96;
const WRITE: u8 = 97;
const POLL: u8 = 98;
/// Most pipes that are known.
const MOST: usize = 64;

struct Pipes {
    /// Those that were open when something was started, by their numbers.
    all: [(u64, u64); MOST],
    next: usize,
}

struct Shared(UnsafeCell<Pipes>);

// SAFETY: used in calls that are being written down, of which there is one at a time.
unsafe impl Sync for Shared {}

static PIPES: Shared = Shared(UnsafeCell::new(Pipes { all: [(0, 0); MOST], next: 0 }));
/// How much was started by this rank.
static STARTED: AtomicUsize = AtomicUsize::new(0);
/// Something runs that the program has seen run before: it reads and writes once more.
static RUNS_AGAIN: AtomicBool = AtomicBool::new(false);

fn pipes() -> &'static mut Pipes {
    // SAFETY: all of this module that uses it runs in calls that are written down.
    unsafe { &mut *PIPES.0.get() }
}

/// Whether anything was started.
pub fn any_started() -> bool {
    STARTED.load(Ordering::Relaxed) > 0
}

/// Something runs again, or nothing does any more.
pub fn runs_again(again: bool) {
    RUNS_AGAIN.store(again, Ordering::Relaxed);
}

/// Pipes that are open may lead to what was just started.
pub fn note() {
    STARTED.fetch_add(1, Ordering::Relaxed);
    for fd in 3..=*kernel::descriptors().end() {
        let Some(number) = kernel::pipe_at(fd).filter(|number| !is_known(*number)) else {
            continue;
        };
        let known = pipes();
        known.all[known.next % MOST] = number;
        known.next += 1;
    }
}

fn is_known(number: (u64, u64)) -> bool {
    pipes().all.contains(&number)
}

/// Whether a descriptor is a pipe that may lead to a child.
fn is_pipe(fd: c_int) -> bool {
    kernel::pipe_at(fd).is_some_and(is_known)
}

/// Reads from a pipe, or `None`.
pub fn reads_pipe(fd: c_int, to: Buffers, make: &dyn Fn() -> isize) -> Option<isize> {
    if !any_started() {
        return None;
    }
    let call = Call::on_open(READ);
    let (mut counts, mut told) = (false, None);
    written_down(&mut || {
        counts = is_pipe(fd);
        if !counts {
            return 0;
        }
        // SAFETY: the buffers are to be read into.
        told = call.content_again(&mut |at, bytes| unsafe { to.put(at, bytes) });
        match told {
            // One that runs again, or the rank itself, writes it once more.
            Some(n) => kernel::discard(fd, n, RUNS_AGAIN.load(Ordering::Relaxed)),
            None if is_new_change() => standing_in::before_new(),
            None => {}
        }
        0
    });
    if !counts {
        return None;
    }
    let value = told.unwrap_or_else(|| outcome(make() as i64));
    if told.is_none() {
        written_down(&mut || {
            if call.content_again(&mut |_, _| ()).is_none() && is_new_change() {
                // SAFETY: so many bytes have been read.
                call.write_content(value, &mut |at, most| unsafe { to.bytes(at, most) });
            }
            0
        });
    }
    Some(or_errno(value))
}

/// Writes to a pipe, or `None`.
pub fn writes_pipe(fd: c_int, make: &dyn Fn() -> isize) -> Option<isize> {
    if !any_started() {
        return None;
    }
    let call = Call::on_open(WRITE);
    let (mut counts, mut told) = (false, None);
    written_down(&mut || {
        counts = is_pipe(fd);
        if counts {
            told = call.result_again();
            if RUNS_AGAIN.load(Ordering::Relaxed) {
                // It is to get it once more.
                counts = told.is_none();
                told = None;
            }
            if told.is_none() && is_new_change() {
                standing_in::before_new();
            }
        }
        0
    });
    if !counts {
        return None;
    }
    let value = told.unwrap_or_else(|| outcome(make() as i64));
    if told.is_none() {
        written_down(&mut || {
            if call.result_again().is_none() && is_new_change() {
                call.write_result(value);
            }
            0
        });
    }
    Some(or_errno(value))
}

/// Waits for descriptors, of which some are pipes to children; or `None`.
///
/// # Safety
/// As poll(2).
pub unsafe fn polls(fds: *mut pollfd, n: libc::nfds_t, make: &dyn Fn() -> c_int) -> Option<c_int> {
    if !any_started() || fds.is_null() || n == 0 || n > 1024 {
        return None;
    }
    // SAFETY: handed on to the caller.
    let all = unsafe { std::slice::from_raw_parts_mut(fds, n as usize) };
    let call = Call::on_open(POLL);
    let (mut counts, mut told) = (false, None);
    written_down(&mut || {
        counts = all.iter().any(|one| is_pipe(one.fd));
        if !counts {
            return 0;
        }
        let mut at = 0;
        told = call.content_again(&mut |_, bytes| {
            for pair in bytes.chunks_exact(2) {
                if let Some(one) = all.get_mut(at) {
                    one.revents = i16::from_le_bytes([pair[0], pair[1]]);
                }
                at += 1;
            }
        });
        if let Some(len) = told {
            told = Some(if len < 0 { len } else { ready(all) });
        } else if is_new_change() {
            standing_in::before_new();
        }
        0
    });
    if !counts {
        return None;
    }
    let value = told.unwrap_or_else(|| outcome(make()));
    if told.is_none() {
        written_down(&mut || {
            if call.content_again(&mut |_, _| ()).is_none() && is_new_change() {
                let mut bytes = [0u8; 2 * 1024];
                for (pair, one) in bytes.chunks_exact_mut(2).zip(all.iter()) {
                    pair.copy_from_slice(&one.revents.to_le_bytes());
                }
                let len = if value < 0 { value } else { 2 * all.len() as i64 };
                call.write_content(len, &mut |at, most| &bytes[at..at + most]);
            }
            0
        });
    }
    Some(or_errno(value) as c_int)
}

fn ready(all: &[pollfd]) -> i64 {
    all.iter().filter(|one| one.revents != 0).count() as i64
}
