//! The headers of the kinds of frames: one type each, with the fields that this kind has.

use super::bytes::{Reader, Writer};
use super::envelope::{Envelope, ENVELOPE_LEN};
use super::kind::Kind;
use crate::traffic::Sent;
use crate::Rank;

/// The place of a payload that is not in its frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Never 0.
    pub segment: u32,
    /// Bytes from the segment's start.
    pub offset: u64,
}

/// A message on its way to the router.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    pub destination: Rank,
    /// Send sequence number: which message of this source to this destination it is, from 1.
    pub ssn: u64,
    /// The sender's clock. A send also depends on nothing having become visible since the last
    /// determinant.
    pub clock: u64,
    pub envelope: Envelope,
    /// Length of the content in bytes.
    pub size: u64,
    /// Bytes of the content of all messages of this source to this destination up to this one.
    pub sent_bytes: u64,
    /// `None`: the content is in the frame.
    pub place: Option<Place>,
}

impl Message {
    /// What its source has sent to its destination, up to this message.
    pub fn sent(&self) -> Sent {
        Sent { messages: self.ssn, bytes: self.sent_bytes }
    }
}

/// A message that the router already has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repeat {
    pub destination: Rank,
    pub ssn: u64,
    pub clock: u64,
    pub envelope: Envelope,
    pub size: u64,
    /// [`super::content_hash`] of the first [`super::MAX_INLINE`] bytes.
    pub hash: u64,
}

/// A message on its way to its destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deliver {
    pub source: Rank,
    pub ssn: u64,
    /// Receive sequence number: its position in the total order of the destination, from 1.
    pub rsn: u64,
    pub envelope: Envelope,
    pub size: u64,
    /// As in [`Message`].
    pub sent_bytes: u64,
    pub place: Option<Place>,
}

impl Deliver {
    /// What its source has sent to its destination, up to this message.
    pub fn sent(&self) -> Sent {
        Sent { messages: self.ssn, bytes: self.sent_bytes }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentRequest {
    /// At least so many bytes.
    pub bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentDone {
    pub segment: u32,
}

/// The point at which a rank continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resume {
    /// The last message that it has made visible to matching.
    pub rsn: u64,
    pub clock: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replayed {
    pub rsn: u64,
}

/// What a rank has seen of one source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shown {
    pub source: Rank,
    /// All of it, up to the last message that was shown.
    pub sent: Sent,
}

/// What a rank has received: the messages that were shown to it are in its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// Messages up to this receive sequence number.
    pub rsn: u64,
}

/// The part of a send stream that is safe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ack {
    /// Number of frames of this connection that are safe: logged and, if routers may be lost,
    /// received.
    pub frames: u64,
    /// Determinants up to this clock are held.
    pub clock: u64,
    /// Observed bytes up to this one are held as well.
    pub observed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    pub segment: u32,
    pub bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentDrop {
    pub segment: u32,
}

/// A piece of a payload that is in a segment. The payload of the frame is the bytes of the piece.
/// The pieces of a payload come in order, all of them before the frame that names its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    pub segment: u32,
    /// Start of the piece in the segment, in bytes.
    pub offset: u64,
}

/// The messages of a sender for one destination that need not be sent again: the router has them
/// and, if routers may be lost, so does the destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    pub destination: Rank,
    /// Messages up to this send sequence number.
    pub ssn: u64,
}

/// A stream has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ready {
    /// On a send stream: determinants up to this clock are held. On a delivery stream, if routers
    /// may be lost: messages up to this receive sequence number were received, perhaps by an
    /// earlier incarnation, and only this router keeps them.
    pub up_to: u64,
    /// On a send stream: observed bytes up to this one are held.
    pub observed: u64,
}

/// A frame's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Header {
    Message(Message),
    Repeat(Repeat),
    Determinants,
    SegmentRequest(SegmentRequest),
    SegmentDone(SegmentDone),
    Flush,
    Resume(Resume),
    Replayed(Replayed),
    Shown(Shown),
    Received(Received),
    DeterminantsPart,
    Deliver(Deliver),
    Ack(Ack),
    Segment(Segment),
    SegmentDrop(SegmentDrop),
    Known(Known),
    Replay,
    Ready(Ready),
    Refused,
    Announced(Deliver),
    Piece(Piece),
}

/// Rank, segment, two numbers, the envelope, size, offset or hash.
const REPEAT_LEN: usize = 4 + 4 + 8 + 8 + ENVELOPE_LEN + 8 + 8;
/// And all bytes that were sent to the destination.
const MESSAGE_LEN: usize = REPEAT_LEN + 8;
/// Longest header in bytes.
pub const MAX_LEN: usize = MESSAGE_LEN;

/// Length of the header of a kind in bytes.
pub fn len_of(kind: Kind) -> usize {
    match kind {
        Kind::Message | Kind::Deliver | Kind::Announced => MESSAGE_LEN,
        Kind::Repeat => REPEAT_LEN,
        Kind::Determinants | Kind::DeterminantsPart => 0,
        Kind::Flush | Kind::Replay | Kind::Refused => 0,
        Kind::SegmentRequest | Kind::Replayed | Kind::Received => 8,
        Kind::SegmentDone | Kind::SegmentDrop => 4,
        Kind::Resume | Kind::Ready => 16,
        Kind::Shown => 20,
        Kind::Ack => 24,
        Kind::Segment | Kind::Known | Kind::Piece => 12,
    }
}

impl Header {
    pub fn kind(&self) -> Kind {
        match self {
            Header::Message(_) => Kind::Message,
            Header::Repeat(_) => Kind::Repeat,
            Header::Determinants => Kind::Determinants,
            Header::SegmentRequest(_) => Kind::SegmentRequest,
            Header::SegmentDone(_) => Kind::SegmentDone,
            Header::Flush => Kind::Flush,
            Header::Resume(_) => Kind::Resume,
            Header::Replayed(_) => Kind::Replayed,
            Header::Shown(_) => Kind::Shown,
            Header::Received(_) => Kind::Received,
            Header::DeterminantsPart => Kind::DeterminantsPart,
            Header::Deliver(_) => Kind::Deliver,
            Header::Ack(_) => Kind::Ack,
            Header::Segment(_) => Kind::Segment,
            Header::SegmentDrop(_) => Kind::SegmentDrop,
            Header::Known(_) => Kind::Known,
            Header::Replay => Kind::Replay,
            Header::Ready(_) => Kind::Ready,
            Header::Refused => Kind::Refused,
            Header::Announced(_) => Kind::Announced,
            Header::Piece(_) => Kind::Piece,
        }
    }

    /// Appends the header to `out`.
    pub fn put<const N: usize>(&self, out: &mut Writer<N>) {
        match self {
            Header::Message(m) => {
                let (segment, offset) = place_fields(m.place);
                let numbers = [m.ssn, m.clock];
                put_message(
                    out,
                    [m.destination.0, segment],
                    numbers,
                    &m.envelope,
                    [m.size, offset, m.sent_bytes],
                );
            }
            Header::Repeat(r) => {
                let numbers = [r.ssn, r.clock];
                put_message(out, [r.destination.0, 0], numbers, &r.envelope, [r.size, r.hash]);
            }
            Header::Deliver(d) | Header::Announced(d) => {
                let (segment, offset) = place_fields(d.place);
                let sizes = [d.size, offset, d.sent_bytes];
                put_message(out, [d.source.0, segment], [d.ssn, d.rsn], &d.envelope, sizes);
            }
            Header::Determinants | Header::DeterminantsPart => {}
            Header::Flush | Header::Replay | Header::Refused => {}
            Header::SegmentRequest(s) => put_numbers(out, [], [s.bytes]),
            Header::SegmentDone(s) => put_numbers(out, [s.segment], []),
            Header::SegmentDrop(s) => put_numbers(out, [s.segment], []),
            Header::Resume(r) => put_numbers(out, [], [r.rsn, r.clock]),
            Header::Replayed(r) => put_numbers(out, [], [r.rsn]),
            Header::Shown(s) => {
                put_numbers(out, [s.source.0], [s.sent.messages, s.sent.bytes]);
            }
            Header::Received(r) => put_numbers(out, [], [r.rsn]),
            Header::Ack(a) => put_numbers(out, [], [a.frames, a.clock, a.observed]),
            Header::Segment(s) => put_numbers(out, [s.segment], [s.bytes]),
            Header::Known(k) => put_numbers(out, [k.destination.0], [k.ssn]),
            Header::Ready(r) => put_numbers(out, [], [r.up_to, r.observed]),
            Header::Piece(p) => put_numbers(out, [p.segment], [p.offset]),
        }
    }

    /// Reads a header from its bytes, whose number is the [`len_of`] its kind. `inline`: number of
    /// payload bytes in the frame.
    ///
    /// # Errors
    /// When it contradicts itself or its frame.
    pub fn decode(kind: Kind, bytes: &[u8], inline: usize) -> Result<Header, &'static str> {
        let mut r = Reader(bytes);
        Ok(match kind {
            Kind::Message => {
                let [destination, segment] = [r.u32(), r.u32()];
                let [ssn, clock] = [r.u64(), r.u64()];
                let envelope = Envelope::decode(&r.array())?;
                let size = r.u64();
                let place = place_of(segment, r.u64(), size, inline)?;
                Header::Message(Message {
                    destination: Rank(destination),
                    ssn,
                    clock,
                    envelope,
                    size,
                    sent_bytes: r.u64(),
                    place,
                })
            }
            Kind::Repeat => {
                let destination = r.u32();
                r.u32();
                let [ssn, clock] = [r.u64(), r.u64()];
                let envelope = Envelope::decode(&r.array())?;
                let [size, hash] = [r.u64(), r.u64()];
                Header::Repeat(Repeat {
                    destination: Rank(destination),
                    ssn,
                    clock,
                    envelope,
                    size,
                    hash,
                })
            }
            Kind::Deliver => Header::Deliver(deliver(&mut r, inline)?),
            Kind::Announced => Header::Announced(deliver(&mut r, inline)?),
            Kind::Determinants => Header::Determinants,
            Kind::DeterminantsPart => Header::DeterminantsPart,
            Kind::SegmentRequest => Header::SegmentRequest(SegmentRequest { bytes: r.u64() }),
            Kind::SegmentDone => Header::SegmentDone(SegmentDone { segment: r.u32() }),
            Kind::Flush => Header::Flush,
            Kind::Resume => Header::Resume(Resume { rsn: r.u64(), clock: r.u64() }),
            Kind::Replayed => Header::Replayed(Replayed { rsn: r.u64() }),
            Kind::Shown => {
                let source = Rank(r.u32());
                Header::Shown(Shown { source, sent: Sent { messages: r.u64(), bytes: r.u64() } })
            }
            Kind::Received => Header::Received(Received { rsn: r.u64() }),
            Kind::Ack => Header::Ack(Ack { frames: r.u64(), clock: r.u64(), observed: r.u64() }),
            Kind::Segment => Header::Segment(Segment { segment: r.u32(), bytes: r.u64() }),
            Kind::SegmentDrop => Header::SegmentDrop(SegmentDrop { segment: r.u32() }),
            Kind::Known => Header::Known(Known { destination: Rank(r.u32()), ssn: r.u64() }),
            Kind::Replay => Header::Replay,
            Kind::Ready => Header::Ready(Ready { up_to: r.u64(), observed: r.u64() }),
            Kind::Refused => Header::Refused,
            Kind::Piece => Header::Piece(Piece { segment: r.u32(), offset: r.u64() }),
        })
    }
}

fn put_numbers<const A: usize, const B: usize, const N: usize>(
    out: &mut Writer<N>,
    a: [u32; A],
    b: [u64; B],
) {
    for n in a {
        out.put(&n.to_le_bytes());
    }
    for n in b {
        out.put(&n.to_le_bytes());
    }
}

fn put_message<const SIZES: usize, const N: usize>(
    out: &mut Writer<N>,
    ranks: [u32; 2],
    numbers: [u64; 2],
    envelope: &Envelope,
    sizes: [u64; SIZES],
) {
    put_numbers(out, ranks, numbers);
    out.put(&envelope.encode());
    put_numbers(out, [], sizes);
}

fn deliver(r: &mut Reader, inline: usize) -> Result<Deliver, &'static str> {
    let [source, segment] = [r.u32(), r.u32()];
    let [ssn, rsn] = [r.u64(), r.u64()];
    let envelope = Envelope::decode(&r.array())?;
    let size = r.u64();
    let place = place_of(segment, r.u64(), size, inline)?;
    let sent_bytes = r.u64();
    Ok(Deliver { source: Rank(source), ssn, rsn, envelope, size, sent_bytes, place })
}

/// Segment 0 means "in the frame".
fn place_fields(place: Option<Place>) -> (u32, u64) {
    place.map_or((0, 0), |p| (p.segment, p.offset))
}

fn place_of(
    segment: u32,
    offset: u64,
    size: u64,
    inline: usize,
) -> Result<Option<Place>, &'static str> {
    let expected = if segment == 0 { size } else { 0 };
    if inline as u64 != expected {
        return Err("message length does not fit its frame");
    }
    Ok((segment != 0).then_some(Place { segment, offset }))
}
