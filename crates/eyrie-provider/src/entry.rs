//! The one rank of this process. One call at a time enters it, on the provider's own stack. An
//! image enters like a call. No second reference to the rank may exist.

use crate::chosen_path::ChosenPath;
use crate::core::rank::RankCore;
use crate::ending::fatal;
use crate::observing::Inside;
use crate::stack;
use std::sync::atomic::{compiler_fence, AtomicPtr, AtomicU32, Ordering};
use std::time::Duration;

/// The rank that this process is.
pub type ThisRank = RankCore<ChosenPath>;

static RANK: AtomicPtr<ThisRank> = AtomicPtr::new(std::ptr::null_mut());
/// What has entered the rank: nothing, a provider call or an image.
static INSIDE: AtomicU32 = AtomicU32::new(NO_CALL);
const NO_CALL: u32 = 0;
const CALL: u32 = 1;
const IMAGE: u32 = 2;
/// How long a call on files waits for another thread's MPI call: longer than any wait in such a
/// call.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(600);

/// Whether a call or an image has entered.
pub fn inside() -> bool {
    INSIDE.load(Ordering::Relaxed) != NO_CALL
}

/// Whether this process is a rank.
pub fn is_rank() -> bool {
    !RANK.load(Ordering::Relaxed).is_null()
}

/// This process is a rank from now on, for ever.
pub fn begin(rank: ThisRank) {
    RANK.store(Box::into_raw(Box::new(rank)), Ordering::Release);
}

/// Runs `f` with the rank, if this process is one already, on the provider's stack. No image is
/// taken meanwhile.
pub fn enter<R>(f: impl FnOnce(&mut ThisRank) -> R) -> Option<R> {
    let claim = || INSIDE.compare_exchange(NO_CALL, CALL, Ordering::Acquire, Ordering::Relaxed);
    while let Err(who) = claim() {
        if who == CALL {
            fatal(
                "two threads were in MPI at the same time (or a signal handler called MPI while it \
                 was in MPI): Eyrie's provider takes one call at a time; use MPI_THREAD_SERIALIZED \
                 or less",
            );
        }
        // Another thread handles the signal that asks for an image, and is soon done.
        std::thread::yield_now();
    }
    inside_of(Inside::new, f)
}

/// Runs `f` with the rank, as [`enter`], when no other thread is in a call: the program calls MPI
/// in one thread at a time, but it may be another one than this.
pub fn enter_after_others<R>(f: impl FnOnce(&mut ThisRank) -> R) -> Option<R> {
    let begun = std::time::Instant::now();
    let claim = || INSIDE.compare_exchange(NO_CALL, CALL, Ordering::Acquire, Ordering::Relaxed);
    while claim().is_err() {
        if begun.elapsed() > OTHERS_TIMEOUT {
            fatal(
                "a call that changes files has waited for ten minutes for an MPI call of another \
                 thread",
            );
        }
        std::thread::yield_now();
    }
    inside_of(Inside::new, f)
}

/// Runs `f` with the rank, as [`enter`], for an image. `None` also when a call has entered.
pub fn enter_for_image<R>(f: impl FnOnce(&mut ThisRank) -> R) -> Option<R> {
    INSIDE.compare_exchange(NO_CALL, IMAGE, Ordering::Acquire, Ordering::Relaxed).ok()?;
    inside_of(Inside::for_image, f)
}

/// Runs `f`, for which this thread has entered, and leaves.
fn inside_of<R>(inside: fn() -> Inside, f: impl FnOnce(&mut ThisRank) -> R) -> Option<R> {
    let rank = RANK.load(Ordering::Relaxed);
    if rank.is_null() {
        INSIDE.store(NO_CALL, Ordering::Release);
        return None;
    }
    let inside = inside();
    compiler_fence(Ordering::SeqCst);
    // SAFETY: `errno` of this thread. The program may read it after a call that did not fail.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the rank was made by `begin` and is never freed. INSIDE keeps other threads and the
    // signal handler out, so this is the only reference, and the stack is free.
    let result = unsafe { stack::run(|| f(&mut *rank)) };
    // SAFETY: `errno` is this thread's own.
    unsafe { *libc::__errno_location() = errno };
    compiler_fence(Ordering::SeqCst);
    drop(inside);
    INSIDE.store(NO_CALL, Ordering::Release);
    Some(result)
}
