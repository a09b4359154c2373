//! Errors that could be made in the protocol. Each can be switched on in tests, which must then
//! fail: that proves that they would find it. Outside tests none of this is there.

#[cfg(test)]
use std::cell::Cell;

/// One error each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(test), allow(dead_code))]
pub enum Mutation {
    /// Messages are logged whatever their sequence number.
    SkipSequenceCheck,
    /// A message that is there already is logged again.
    LogTwice,
    /// The frame goes to the rank before it is logged.
    DeliverBeforeLogging,
    /// Frames are acknowledged before they are logged.
    AcknowledgeEarly,
    /// Determinants of a frame are dropped.
    DropDeterminants,
    /// What ranks observe is dropped.
    DropObserved,
    /// What a rank observed after an image, before the next progress call, is truncated with it.
    TruncateObserved,
    /// It is not noted up to which clock a rank has observed.
    ObserveUnspoken,
    /// A resumed rank is not given what it observed.
    ReplayUnobserved,
    /// What is saved has nothing that ranks observed.
    SaveUnobserved,
    /// Older incarnations may go on speaking.
    ForgetTheFence,
    /// A rank is let in before its recovery is prepared.
    SkipRecovery,
    /// A resumed stream begins one message late.
    ResumeLate,
    /// A resumed rank gets the determinants of its past too.
    ReplayThePast,
    /// No-delivery determinants are not made for what a fenced incarnation said last.
    ForgetWhatWasSpoken,
    /// The log is truncated one message too far.
    TruncateTooFar,
    /// Determinants behind the image are dropped with those before it.
    TruncateDeterminants,
    /// A sender is not told what is there already.
    ForgetKnown,
    /// Two connections may be the same stream of a rank.
    KeepOldConnection,
    /// Differences in envelopes are not compared.
    SkipVerification,
    /// Pieces of a payload are acknowledged before the message that they belong to is there.
    AcknowledgePieces,
    /// Pieces of a payload are not written where they belong.
    MisplacePieces,
    /// A message goes to its rank before the last piece of its payload.
    SkipLastPiece,
    /// After a reconnection the payload goes on where the last connection broke.
    GoOnInTheMiddle,
    /// Messages are acknowledged before they were received, though they ought to be.
    AcknowledgeUnreceived,
    /// A sender is told that what is logged need not be sent again, though it was not received.
    TellLogged,
    /// A router that has taken over does not look at what its ranks have of each source.
    ForgetTheTable,
    /// A rank that connects again is adopted again.
    AdoptTwice,
    /// What comes for a rank before its adoption is not kept.
    KeepNothingAside,
    /// A rank that died before it said what it has is adopted all the same.
    AdoptTheDead,
    /// What is saved has no determinants.
    SaveNoDeterminants,
    /// What is saved ends before the last message of a log.
    SaveNotTheLast,
    /// Nobody hears which ranks' messages no sender keeps any more.
    HideExposed,
    /// A rank that has said a part of what it has to say counts as heard.
    HearAPart,
    /// A rank is told that what became visible up to an image is not safe any more.
    ForgetWhatWasTruncated,
}

#[cfg(test)]
pub const ALL: [Mutation; 35] = {
    use Mutation::*;
    [
        SkipSequenceCheck,
        LogTwice,
        DeliverBeforeLogging,
        AcknowledgeEarly,
        DropDeterminants,
        DropObserved,
        TruncateObserved,
        ObserveUnspoken,
        ReplayUnobserved,
        SaveUnobserved,
        ForgetTheFence,
        SkipRecovery,
        ResumeLate,
        ReplayThePast,
        ForgetWhatWasSpoken,
        TruncateTooFar,
        TruncateDeterminants,
        ForgetKnown,
        KeepOldConnection,
        SkipVerification,
        AcknowledgePieces,
        MisplacePieces,
        SkipLastPiece,
        GoOnInTheMiddle,
        AcknowledgeUnreceived,
        TellLogged,
        ForgetTheTable,
        AdoptTwice,
        KeepNothingAside,
        AdoptTheDead,
        SaveNoDeterminants,
        SaveNotTheLast,
        HideExposed,
        HearAPart,
        ForgetWhatWasTruncated,
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
