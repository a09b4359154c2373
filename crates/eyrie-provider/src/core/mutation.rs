//! Deliberate errors in a rank. Tests switch each of them on, and must then fail: that proves that
//! they would find it. They must not exist outside tests.

#[cfg(test)]
use std::cell::Cell;

/// One error each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(test), allow(dead_code))]
pub enum Mutation {
    /// A determinant is safe when any router holds it, though routers may be lost.
    StoredAnywhere,
    /// What is sent to a router beside the rank does not wait for the primary router.
    DoNotStoreFirst,
    /// What waits for a rank that another router serves by now stays where it is.
    LeaveOnOldRoute,
    /// A router that takes over is not told what was seen before the last one was lost.
    ForgetWhatWasSeen,
    /// What each source has sent last is not counted.
    ForgetTheTable,
    /// What was observed does not go before what may depend on it.
    SendUnobserved,
    /// A rank that has to observe something again counts as one that does not re-execute.
    ForgetWhatToObserve,
    /// A rank that re-executes says that it does not.
    HideReplay,
    /// It is not recorded that nothing became visible before something is sent.
    ForgetNoDelivery,
    /// A message becomes visible before it is whole.
    ShowParts,
    /// It is not recorded what became visible.
    ForgetWhatWasShown,
    /// A rank that re-executes may be shown something new before it has done all that it did before
    /// its last observation.
    ForgetWhenItObserved,
    /// An image forgets what was observed and does not lie in the ledger yet.
    ForgetUnwritten,
    /// An image forgets how many messages were sent.
    ForgetWhatWasSent,
    /// What became visible is recorded when the progress call is over.
    RecordLate,
    /// Readers begin one message too early after an image.
    BeginTooEarly,
    /// Boards are not written again by the next incarnation.
    ForgetBoards,
    /// Who goes to sleep does not look again.
    SleepAtOnce,
    /// A message that no board names is not looked for.
    TrustBoards,
    /// A keeper releases one message more than an image has.
    ReleaseTooMuch,
}

#[cfg(test)]
pub const OF_ROUTER_PATH: [Mutation; 8] = {
    use Mutation::*;
    [
        StoredAnywhere,
        DoNotStoreFirst,
        LeaveOnOldRoute,
        ForgetWhatWasSeen,
        ForgetTheTable,
        SendUnobserved,
        ForgetWhatToObserve,
        HideReplay,
    ]
};

#[cfg(test)]
pub const OF_LEDGER_PATH: [Mutation; 13] = {
    use Mutation::*;
    [
        SendUnobserved,
        ForgetNoDelivery,
        ShowParts,
        ForgetWhatWasShown,
        ForgetWhenItObserved,
        ForgetUnwritten,
        ForgetWhatWasSent,
        RecordLate,
        BeginTooEarly,
        ForgetBoards,
        SleepAtOnce,
        TrustBoards,
        ReleaseTooMuch,
    ]
};

#[cfg(test)]
thread_local! {
    static ACTIVE: Cell<Option<Mutation>> = const { Cell::new(None) };
}

/// Makes the error from now on, in this thread.
#[cfg(test)]
pub fn activate(mutation: Option<Mutation>) {
    ACTIVE.with(|a| a.set(mutation));
}

/// Whether the error is to be made.
#[cfg(test)]
pub fn active(mutation: Mutation) -> bool {
    ACTIVE.with(|a| a.get() == Some(mutation))
}

/// Never, outside tests.
#[cfg(not(test))]
#[inline(always)]
pub const fn active(_: Mutation) -> bool {
    false
}
