//! The kinds of frames.

/// What a frame is. The comments say which header it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    // Rank to router, on a send stream.
    /// A message ([`super::Message`]).
    Message = 1,
    /// A message that the router already has, sent again by a re-executing rank: its envelope and
    /// the hash of its content, for comparison with the log ([`super::Repeat`]).
    Repeat = 2,
    /// Only determinants and what was observed.
    Determinants = 3,
    /// Asks for a segment ([`super::SegmentRequest`]).
    SegmentRequest = 4,
    /// No later frame of this stream will name this segment ([`super::SegmentDone`]).
    SegmentDone = 5,
    /// Asks for an acknowledgement now.
    Flush = 6,
    // Rank to router, on a delivery stream.
    /// The first frame: where the rank continues ([`super::Resume`]).
    Resume = 7,
    /// The rank has reached its last determinant ([`super::Replayed`]).
    Replayed = 8,
    /// If routers may be lost, before [`Kind::Resume`]: what the rank has seen of one source
    /// ([`super::Shown`]).
    Shown = 9,
    /// What the rank has received ([`super::Received`]). Before [`Kind::Resume`] it also says that
    /// the rank does not re-execute.
    Received = 10,
    // On a send stream again.
    /// As [`Kind::Determinants`], when one frame cannot hold everything: the rest follows before
    /// anything else.
    DeterminantsPart = 11,
    // Router to rank.
    /// A message ([`super::Deliver`]).
    Deliver = 16,
    /// What is logged ([`super::Ack`]).
    Ack = 17,
    /// A segment ([`super::Segment`]). Its descriptor comes with the frame if descriptors can be
    /// passed.
    Segment = 18,
    /// A segment will not be named again on this stream: close it ([`super::SegmentDrop`]).
    SegmentDrop = 19,
    /// What the router has from this rank for one destination ([`super::Known`]).
    Known = 20,
    /// Determinants to replay, or a part of what is to be observed again.
    Replay = 21,
    /// The stream has begun ([`super::Ready`]).
    Ready = 22,
    /// The rank must end: the payload says why.
    Refused = 23,
    /// The pieces that follow are of this message, which comes behind them ([`super::Deliver`]).
    /// Only the gateway of a domain says so: its receiver passes the pieces on as they come.
    Announced = 24,
    // In both directions, when no descriptors can be passed.
    /// A piece of the payload of a message that comes later ([`super::Piece`]).
    Piece = 32,
}

const KINDS: [Kind; 21] = [
    Kind::Message,
    Kind::Repeat,
    Kind::Determinants,
    Kind::SegmentRequest,
    Kind::SegmentDone,
    Kind::Flush,
    Kind::Resume,
    Kind::Replayed,
    Kind::Shown,
    Kind::Received,
    Kind::DeterminantsPart,
    Kind::Deliver,
    Kind::Ack,
    Kind::Segment,
    Kind::SegmentDrop,
    Kind::Known,
    Kind::Replay,
    Kind::Ready,
    Kind::Refused,
    Kind::Announced,
    Kind::Piece,
];

impl Kind {
    pub(super) fn from_u8(n: u8) -> Option<Kind> {
        KINDS.into_iter().find(|k| *k as u8 == n)
    }
}
