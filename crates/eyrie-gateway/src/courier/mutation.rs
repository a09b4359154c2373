//! Errors that could be made in the courier. Tests switch each one on, and must then fail: that
//! proves that they would find it. Outside tests none of this is compiled.

#[cfg(test)]
use std::cell::Cell;

/// An error in the courier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(test), allow(dead_code))]
pub enum Mutation {
    /// A message is called safe when it was given.
    SafeWhenGiven,
    /// What a lost connection had not acknowledged is not fetched again.
    LoseWithTheConnection,
    /// What has come before the stream begins again is given as well.
    TakeTheOldStream,
    /// What is fetched again is given again.
    GiveTwice,
    /// What a router has is not noted.
    IgnoreKnown,
    /// A message that was not given is called safe when a later one is.
    SkipAwaited,
    /// A segment is ended while a payload is written to it.
    EndSegmentEarly,
}

#[cfg(test)]
pub const ALL: [Mutation; 7] = {
    use Mutation::*;
    [
        SafeWhenGiven,
        LoseWithTheConnection,
        TakeTheOldStream,
        GiveTwice,
        IgnoreKnown,
        SkipAwaited,
        EndSegmentEarly,
    ]
};

#[cfg(test)]
thread_local! {
    static ACTIVE: Cell<Option<Mutation>> = const { Cell::new(None) };
}

/// Makes this error from now on, in this thread.
#[cfg(test)]
pub fn activate(mutation: Option<Mutation>) {
    ACTIVE.with(|a| a.set(mutation));
}

/// Whether this error is to be made.
#[cfg(test)]
pub fn active(mutation: Mutation) -> bool {
    ACTIVE.with(|a| a.get() == Some(mutation))
}

/// Always false, outside tests.
#[cfg(not(test))]
#[inline(always)]
pub const fn active(_: Mutation) -> bool {
    false
}
