//! Errors that could be made in the protocol. Tests switch each one on, and must then fail: that
//! proves that they would find it. Outside tests none of this is compiled.

#[cfg(test)]
use std::cell::Cell;

/// An error in the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(test), allow(dead_code))]
pub enum Mutation {
    /// Messages are logged whatever their sequence number is.
    SkipSequenceCheck,
    /// A message that is logged already is logged again.
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
    /// The clock of an observation is not noted.
    SkipObservedClock,
    /// A resumed rank is not given its observations.
    ReplayUnobserved,
    /// The saved router has no observations.
    SaveUnobserved,
    /// Older incarnations may still connect and send.
    ForgetTheFence,
    /// A rank is admitted before its recovery is prepared.
    SkipRecovery,
    /// A resumed stream begins one message late.
    ResumeLate,
    /// A resumed rank gets the determinants before its image, too.
    ReplayThePast,
    /// No no-delivery determinant is made for the last clock of a fenced incarnation.
    SkipNoDelivery,
    /// The log is truncated one message too far.
    TruncateTooFar,
    /// Determinants behind the image are dropped with those before it.
    TruncateDeterminants,
    /// A sender is not told what the router has already.
    ForgetKnown,
    /// A rank may have two connections for the same stream.
    KeepOldConnection,
    /// Differences in envelopes are not compared.
    SkipVerification,
    /// Pieces of a payload are acknowledged before their message is logged.
    AcknowledgePieces,
    /// Pieces of a payload are written to the wrong place.
    MisplacePieces,
    /// A message goes to its rank before the last piece of its payload.
    SkipLastPiece,
    /// After a reconnection the payload goes on where the last connection broke off.
    GoOnInTheMiddle,
    /// Messages are acknowledged before they were received, though they should not be.
    AcknowledgeUnreceived,
    /// A sender is told that it need not send again what is logged, though it was not received.
    AnnounceLogged,
    /// A router that has taken over ignores what its ranks have of each source.
    ForgetTheTable,
    /// A rank that connects again is adopted again.
    AdoptTwice,
    /// Messages that arrive for a rank before its adoption are not kept.
    DropPending,
    /// A rank that died before it said what it has is adopted nevertheless.
    AdoptTheDead,
    /// The saved router has no determinants.
    SaveNoDeterminants,
    /// The saved router lacks the last message of a log.
    SaveNotTheLast,
    /// No event says for which ranks senders no longer keep all messages.
    HideExposed,
    /// A rank that has reported only a part counts as having reported.
    ReportAPart,
    /// A rank is told that its progress up to an image is not stable any more.
    ForgetWhatWasTruncated,
    /// A gateway releases what a sender that is about to end has waited for long enough.
    EndFlushesOfGateways,
    /// A gateway keeps what another domain has.
    KeepWhatIsElsewhere,
    /// A gateway goes on where a courier says, which may know less than the one before.
    ResumeWhereTold,
    /// A gateway that has taken over accepts only the first message of a sender.
    BeginWithTheFirst,
    /// Senders that wait for a line are not told that their router lives.
    ShowNoSign,
    /// Every gap is accepted by a gateway that has taken over, not only before the first message.
    SkipAtGateways,
    /// A gateway keeps what ranks have sent that have left its domain.
    KeepSenders,
    /// Pieces go out before their message is announced.
    AnnounceNothing,
    /// The controller hears what ranks of other domains do.
    TellOfElsewhere,
}

#[cfg(test)]
pub const ALL: [Mutation; 44] = {
    use Mutation::*;
    [
        SkipSequenceCheck,
        LogTwice,
        DeliverBeforeLogging,
        AcknowledgeEarly,
        DropDeterminants,
        DropObserved,
        TruncateObserved,
        SkipObservedClock,
        ReplayUnobserved,
        SaveUnobserved,
        ForgetTheFence,
        SkipRecovery,
        ResumeLate,
        ReplayThePast,
        SkipNoDelivery,
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
        AnnounceLogged,
        ForgetTheTable,
        AdoptTwice,
        DropPending,
        AdoptTheDead,
        SaveNoDeterminants,
        SaveNotTheLast,
        HideExposed,
        ReportAPart,
        ForgetWhatWasTruncated,
        EndFlushesOfGateways,
        KeepWhatIsElsewhere,
        ResumeWhereTold,
        BeginWithTheFirst,
        ShowNoSign,
        SkipAtGateways,
        KeepSenders,
        AnnounceNothing,
        TellOfElsewhere,
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
