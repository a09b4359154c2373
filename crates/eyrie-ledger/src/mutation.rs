//! Deliberate errors: orderings and fences taken out, one at a time. `tests/loom.rs` switches each
//! of them on, and must then find a wrong execution. They must not exist in anything else.

#[cfg(loom)]
use std::cell::Cell;

/// One error each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutation {
    /// The place of the next entry is not cleared.
    KeepNextPlace,
    /// An entry is published by a relaxed store.
    RelaxedEntry,
    /// The entry is looked at by a relaxed load.
    RelaxedLook,
    /// What has been written of a large message is said by a relaxed store.
    RelaxedFilled,
    /// What has been written of a large message is read by a relaxed load.
    RelaxedFilledLook,
    /// The first extent of a channel is published by a relaxed store.
    RelaxedFirst,
    /// The first extent of a channel is looked at by a relaxed load.
    RelaxedFirstLook,
    /// What was added to a stream is published by a relaxed store.
    RelaxedItem,
    /// The next extent of a stream is published by a relaxed store.
    RelaxedNext,
    /// The newest number is published by a relaxed store.
    RelaxedNewest,
    /// An extent is reused without a fence after it was taken off its chain.
    NoFenceBeforeReuse,
    /// A reader that opens a channel does not look whether extents were taken off meanwhile.
    NoSecondLook,
    /// A bell is looked at without a fence after publishing.
    NoFenceBeforeRing,
    /// A sleeper looks again without a fence.
    NoFenceBeforeSleep,
}

#[cfg(loom)]
thread_local! {
    static ACTIVE: Cell<Option<Mutation>> = const { Cell::new(None) };
}

/// Makes the error from now on, in this thread.
#[cfg(loom)]
pub fn activate(mutation: Option<Mutation>) {
    ACTIVE.with(|a| a.set(mutation));
}

/// Whether the error is to be made.
#[cfg(loom)]
pub(crate) fn active(mutation: Mutation) -> bool {
    ACTIVE.with(|a| a.get() == Some(mutation))
}

/// Never, outside the model.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) const fn active(_: Mutation) -> bool {
    false
}
