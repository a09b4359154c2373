//! This process as a rank: the one object behind all libfabric objects, entered by one call at a
//! time, on the provider's own stack. Here, and nowhere below, a rank that cannot go on ends its
//! process.

use crate::core::error::RankError;
use crate::core::rank::Rank;
use crate::identity::{self, Identity};
use crate::sockets::Sockets;
use crate::{capture, channel, memory, stack};
use eyrie_wire::agent::{FromRank, ToRank};
use std::sync::atomic::{compiler_fence, AtomicPtr, AtomicU32, Ordering};

static RANK: AtomicPtr<Rank<Sockets>> = AtomicPtr::new(std::ptr::null_mut());
/// Who has entered: nobody, a provider call, an image.
static INSIDE: AtomicU32 = AtomicU32::new(NOBODY);
const NOBODY: u32 = 0;
const CALL: u32 = 1;
const IMAGE: u32 = 2;

/// Whether somebody has entered.
pub fn inside() -> bool {
    INSIDE.load(Ordering::Relaxed) != NOBODY
}

/// Makes this process a rank, once.
///
/// # Errors
/// What is missing, in words for the user.
pub fn join() -> Result<(), String> {
    if !RANK.load(Ordering::Relaxed).is_null() {
        return Ok(());
    }
    memory::reserve()?;
    stack::prepare();
    // The C library makes this library's thread-local memory, with the program's malloc, when it is
    // first used: that must be now, and not when a message comes.
    std::hint::black_box(std::hash::RandomState::new());
    channel::open(identity::agent_fd()?);
    let identity = Identity::of_this_process()?;
    let (rank, size) = (identity.instance.rank, identity.size);
    let rank = Rank::new(Sockets::new(identity), rank, size);
    RANK.store(Box::into_raw(Box::new(rank)), Ordering::Release);
    // From the next line on the agent may send the signal.
    capture::install();
    // The agent does not answer a rank that has not met the others: the job ends before it
    // computes. An image that is asked for in the same moment waits, or it would take the answer
    // off the channel.
    let admitted = enter(|_| {
        channel::tell(&FromRank::Loaded { pid: std::process::id() });
        channel::await_agent(|m, _| (m == ToRank::Admitted).then_some(()))
    });
    capture::run_pending();
    admitted.unwrap_or(Ok(()))
}

/// Runs a provider call; an image that was asked for meanwhile is taken when it is over.
pub fn call<R>(f: impl FnOnce(&mut Rank<Sockets>) -> R) -> R {
    let result = enter(f).expect("no endpoint without getinfo");
    capture::run_pending();
    result
}

/// Runs a provider call that may find out that the rank cannot go on.
pub fn call_or_end<R>(f: impl FnOnce(&mut Rank<Sockets>) -> Result<R, RankError>) -> R {
    call(|rank| or_end(f(rank)))
}

/// Ends this process when the rank cannot go on.
pub fn or_end<R>(result: Result<R, RankError>) -> R {
    result.unwrap_or_else(|e| fatal(&e.to_string()))
}

/// Runs `f` with the rank, if this process is one already, on the provider's stack. No image is
/// taken meanwhile.
fn enter<R>(f: impl FnOnce(&mut Rank<Sockets>) -> R) -> Option<R> {
    let claim = || INSIDE.compare_exchange(NOBODY, CALL, Ordering::Acquire, Ordering::Relaxed);
    while let Err(who) = claim() {
        if who == CALL {
            fatal(
                "two threads were in MPI at the same time (or a signal handler called MPI while it \
                 was in MPI): Eyrie's provider takes one call at a time; use MPI_THREAD_SERIALIZED \
                 or less",
            );
        }
        // The signal that asks for an image has come to another thread, which is soon done.
        std::thread::yield_now();
    }
    inside_of(f)
}

/// Runs `f` with the rank, as [`enter`], for an image. `None` also when somebody has entered.
pub fn enter_for_image<R>(f: impl FnOnce(&mut Rank<Sockets>) -> R) -> Option<R> {
    INSIDE.compare_exchange(NOBODY, IMAGE, Ordering::Acquire, Ordering::Relaxed).ok()?;
    inside_of(f)
}

/// Runs `f`, for which this thread has entered, and leaves.
fn inside_of<R>(f: impl FnOnce(&mut Rank<Sockets>) -> R) -> Option<R> {
    let rank = RANK.load(Ordering::Relaxed);
    if rank.is_null() {
        INSIDE.store(NOBODY, Ordering::Release);
        return None;
    }
    compiler_fence(Ordering::SeqCst);
    // SAFETY: of `errno`: this thread's, which the program may read after a call that did not fail.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: made by `join` and never freed; INSIDE keeps others and the signal handler out, so
    // this is the only reference, and nobody is on the stack.
    let result = unsafe { stack::run(|| f(&mut *rank)) };
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    compiler_fence(Ordering::SeqCst);
    INSIDE.store(NOBODY, Ordering::Release);
    Some(result)
}

/// Tells the user something on standard error, which may be closed.
pub fn say(text: &str) {
    let line = format!("eyrie: {text}\n");
    // SAFETY: the line is as long as said. Nobody can be told that nobody is there.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}

/// Ends this rank: it cannot go on. The agent hears why.
pub fn fatal(reason: &str) -> ! {
    channel::tell(&FromRank::Fatal { reason });
    // SAFETY: ends the process without running the program's exit handlers, which may call MPI.
    unsafe { libc::_exit(70) }
}
