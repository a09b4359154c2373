//! This process as a rank. It joins its job, and provider calls become calls of the one rank. An
//! image that is asked for during a call must be taken only at its end.

use crate::chosen_path::ChosenPath;
use crate::core::error::RankError;
use crate::core::path::Path;
use crate::core::rank::RankCore;
use crate::ending::or_end;
use crate::entry::ThisRank;
use crate::identity::{self, process_id, Identity};
use crate::observing::Inside;
use crate::sockets::Sockets;
use crate::{calls, capture, channel, entry, level, stack};
use eyrie_wire::agent::{FromRank, ToRank};

/// Makes this process a rank, once; [`memory::reserve`] has succeeded.
///
/// # Errors
/// What is missing, in words for the user.
pub fn join() -> Result<(), String> {
    if entry::is_rank() {
        return Ok(());
    }
    calls::begin(store)?;
    let _inside = Inside::new();
    level::prepare();
    stack::prepare();
    // The C library makes this library's thread-local memory, with the program's malloc, when it is
    // first used: that must be now, and not when a message comes.
    std::hint::black_box(std::hash::RandomState::new());
    channel::open(identity::agent_fd()?);
    let identity = Identity::of_this_process()?;
    let rank = identity.instance.rank;
    let size = identity.size;
    entry::begin(RankCore::new(ChosenPath::new(Sockets::new(identity), rank, size)));
    capture::prepare();
    capture::track();
    // From the next line on the agent may send the signal.
    capture::install();
    // The agent does not answer a rank that has not met the others: the job ends before it
    // computes. An image that is asked for in the same moment waits, or it would take the answer
    // off the channel.
    let admitted = entry::enter(|_| {
        channel::send(&FromRank::Loaded { pid: process_id() });
        channel::await_agent(|m, _| (m == ToRank::Admitted).then_some(()))
    });
    capture::run_pending();
    admitted.unwrap_or(Ok(()))
}

/// Runs a provider call; an image that was asked for meanwhile is taken when it is over.
pub fn call<R>(f: impl FnOnce(&mut ThisRank) -> R) -> R {
    let result = entry::enter(f).expect("no endpoint without getinfo");
    capture::run_pending();
    result
}

/// Runs a provider call that may find out that the rank cannot go on.
pub fn call_or_end<R>(f: impl FnOnce(&mut ThisRank) -> Result<R, RankError>) -> R {
    call(|rank| or_end(f(rank)))
}

/// What was observed is safe when this returns; for libeyrie-calls, in the program. An image that
/// is asked for meanwhile waits: the call that this is for has not been made.
extern "C" fn store() {
    let stored = entry::enter_after_others(|rank| or_end(rank.path.store_observed()));
    debug_assert!(stored.is_some() || !entry::is_rank());
}
