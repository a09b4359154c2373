//! Pipes to the children of a rank ([`super::children`]). A rank that is executed again gets from
//! the record what came through them. What it wrote is not written again where no child runs that
//! reads it.

use super::buffers::Buffers;
use super::calling::{or_errno, outcome, recorded};
use super::kernel;
use super::records::{is_new_change, Call};
use super::standing_in;
use libc::{c_int, epoll_event, fd_set, pollfd};
use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Numbers of the functions, in what is recorded.
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

// SAFETY: used in calls that are being recorded, of which there is one at a time.
unsafe impl Sync for Shared {}

static PIPES: Shared = Shared(UnsafeCell::new(Pipes { all: [(0, 0); MOST], next: 0 }));
/// How much was started by this rank.
static STARTED: AtomicUsize = AtomicUsize::new(0);
/// Something runs that the program has seen run before: it reads and writes once more.
static RUNS_AGAIN: AtomicBool = AtomicBool::new(false);

fn pipes() -> &'static mut Pipes {
    // SAFETY: all of this module that uses it runs in calls that are recorded.
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

/// So many bytes of a pipe were read before, past the program's memory.
pub fn passed(fd: c_int, n: i64) {
    kernel::discard(fd, n, RUNS_AGAIN.load(Ordering::Relaxed));
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
    let mut counts = false;
    let mut replayed = None;
    recorded(&mut || {
        counts = is_pipe(fd);
        if !counts {
            return 0;
        }
        // SAFETY: the buffers are to be read into.
        replayed = call.content_again(&mut |at, bytes| unsafe { to.put(at, bytes) });
        match replayed {
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
    let value = replayed.unwrap_or_else(|| outcome(make() as i64));
    if replayed.is_none() {
        recorded(&mut || {
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
    let mut counts = false;
    let mut replayed = None;
    recorded(&mut || {
        counts = is_pipe(fd);
        if counts {
            replayed = call.result_again();
            if RUNS_AGAIN.load(Ordering::Relaxed) {
                // It is to get it once more.
                counts = replayed.is_none();
                replayed = None;
            }
            if replayed.is_none() && is_new_change() {
                standing_in::before_new();
            }
        }
        0
    });
    if !counts {
        return None;
    }
    let value = replayed.unwrap_or_else(|| outcome(make() as i64));
    if replayed.is_none() {
        recorded(&mut || {
            if call.result_again().is_none() && is_new_change() {
                call.write_result(value);
            }
            0
        });
    }
    Some(or_errno(value))
}

/// Most bytes of what a wait has found.
const MOST_FOUND: usize = 3 * 1024;

/// Waits for descriptors by `make`, if some are pipes to children: `counts` says so. `replay` gets
/// what was found before; `found` puts what there is and says how many bytes that is.
fn waits(
    counts: &dyn Fn() -> bool,
    replay: &mut dyn FnMut(&[u8]),
    make: &dyn Fn() -> c_int,
    found: &dyn Fn(&mut [u8; MOST_FOUND]) -> usize,
) -> Option<c_int> {
    if !any_started() {
        return None;
    }
    let call = Call::on_open(POLL);
    let mut concerns = false;
    let mut replayed = None;
    recorded(&mut || {
        concerns = counts();
        if !concerns {
            return 0;
        }
        if let Some((value, bytes)) = call.answer_again() {
            replay(bytes);
            replayed = Some(value);
        } else if is_new_change() {
            standing_in::before_new();
        }
        0
    });
    if !concerns {
        return None;
    }
    let value = replayed.unwrap_or_else(|| outcome(make()));
    if replayed.is_none() {
        recorded(&mut || {
            if call.answer_again().is_none() && is_new_change() {
                let mut bytes = [0; MOST_FOUND];
                let len = if value < 0 { 0 } else { found(&mut bytes) };
                call.write_answer(value, &bytes[..len]);
            }
            0
        });
    }
    Some(or_errno(value) as c_int)
}

/// Waits for descriptors, of which some are pipes to children; or `None`.
///
/// # Safety
/// As poll(2).
pub unsafe fn polls(fds: *mut pollfd, n: libc::nfds_t, make: &dyn Fn() -> c_int) -> Option<c_int> {
    if fds.is_null() || n == 0 || n > 1024 {
        return None;
    }
    let at = |i: usize| fds.wrapping_add(i);
    // SAFETY: the caller passes `n` structures, and `i` is below `n`.
    let all = || (0..n as usize).map(|i| unsafe { &mut *at(i) });
    let mut replay = |bytes: &[u8]| {
        for (one, pair) in all().zip(bytes.chunks_exact(2)) {
            one.revents = i16::from_le_bytes([pair[0], pair[1]]);
        }
    };
    waits(&|| all().any(|one| is_pipe(one.fd)), &mut replay, make, &|bytes| {
        for (pair, one) in bytes.chunks_exact_mut(2).zip(all()) {
            pair.copy_from_slice(&one.revents.to_le_bytes());
        }
        2 * n as usize
    })
}

/// The same by select(2). What is found is recorded in the order of the descriptors, which may have
/// other numbers in another process.
///
/// # Safety
/// As select(2).
pub unsafe fn selects(n: c_int, sets: [*mut fd_set; 3], make: &dyn Fn() -> c_int) -> Option<c_int> {
    if !any_started() || !(1..=1024).contains(&n) {
        return None;
    }
    // SAFETY: the caller passes sets or null, and `fd` is below 1024.
    let has = |set: *mut fd_set, fd| unsafe { !set.is_null() && libc::FD_ISSET(fd, set) };
    // SAFETY: the caller passes sets or null, and all zero is a valid set.
    let mut asked = sets.map(|set| unsafe { set.as_ref().copied().unwrap_or(std::mem::zeroed()) });
    let [a, b, c] = &mut asked;
    let asked = [&raw mut *a, &raw mut *b, &raw mut *c];
    let all = || {
        let of_set =
            move |i: usize| (0..n).filter(move |fd| has(asked[i], *fd)).map(move |fd| (i, fd));
        (0..3).flat_map(of_set)
    };
    let mut replay = |bytes: &[u8]| {
        for ((i, fd), _) in all().zip(bytes).filter(|(_, is_ready)| **is_ready == 0) {
            // SAFETY: the descriptor was asked for in this set, so the set is not null.
            unsafe { libc::FD_CLR(fd, sets[i]) };
        }
    };
    waits(&|| all().any(|(_, fd)| is_pipe(fd)), &mut replay, make, &|bytes| {
        let each = all().zip(bytes.iter_mut()).map(|((i, fd), to)| *to = has(sets[i], fd).into());
        each.count()
    })
}

/// The same by epoll_wait(2). What the program has put beside a descriptor is its own.
///
/// # Safety
/// As epoll_wait(2).
pub unsafe fn waits_for_events(
    fd: c_int,
    events: *mut epoll_event,
    n: c_int,
    make: &dyn Fn() -> c_int,
) -> Option<c_int> {
    const SIZE: usize = size_of::<epoll_event>();
    let most = usize::try_from(n).ok().filter(|n| *n > 0 && !events.is_null())?;
    let made = Cell::new(0);
    let mut replay = |bytes: &[u8]| {
        let len = bytes.len().min(most * SIZE);
        // SAFETY: the caller passes room for `most` events, and `len` is at most that.
        unsafe { events.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), len) };
    };
    let make_few = || {
        made.set(make());
        made.get()
    };
    waits(&|| kernel::watches(fd, &is_pipe), &mut replay, &make_few, &|bytes| {
        let len = (made.get().max(0) as usize * SIZE).min(bytes.len() / SIZE * SIZE);
        // SAFETY: the kernel has written so many events there.
        bytes[..len].copy_from_slice(unsafe { std::slice::from_raw_parts(events.cast(), len) });
        len
    })
}
