//! Frames of the data path between a rank and a router. A frame is a prefix of eight bytes, a
//! header of the type of its kind, determinants, what was observed, and a payload. Large payloads
//! are not sent through the stream. They are in a *segment*, a file of the router that the sender
//! writes and the receiver reads; the header names segment and offset. Between hosts no descriptors
//! can be passed. There the payload is sent in pieces on the stream, before the frame that names
//! its place.
//!
//! A rank has one *delivery* stream from its primary router and one *send* stream to each router it
//! sends to. So an acknowledgement never waits behind messages that were not read yet.

mod bytes;
mod determinant;
mod envelope;
mod header;
mod kind;
mod observed;

use bytes::Writer;
pub use determinant::{Determinant, DETERMINANT_LEN};
pub use envelope::{AtomicOp, Envelope, ENVELOPE_LEN};
pub use header::{
    Ack, Deliver, Header, Known, Message, Piece, Place, Ready, Received, Repeat, Replayed, Resume,
    Segment, SegmentDone, SegmentDrop, SegmentRequest, Shown,
};
pub use kind::Kind;
pub use observed::{ObservedPart, ObservedParts, MAX_PART};

/// Length of the prefix of every frame, in bytes.
pub const PREFIX_LEN: usize = 8;
/// Longest payload inside a frame, in bytes; longer messages use a segment.
pub const MAX_INLINE: usize = 16 * 1024;
const _: () = assert!(MAX_PART <= MAX_INLINE);
/// Most determinants on one frame.
pub const MAX_DETERMINANTS: usize = 1024;
/// Longest frame in bytes.
pub const MAX_FRAME: usize = PREFIX_LEN
    + header::MAX_LEN
    + MAX_DETERMINANTS * DETERMINANT_LEN
    + observed::HEAD_LEN
    + MAX_PART
    + MAX_INLINE;

/// The prefix and the header of a frame.
pub type Head = Writer<{ PREFIX_LEN + header::MAX_LEN }>;

/// Appends a frame to `out` and returns how many determinants it took, at most
/// [`MAX_DETERMINANTS`]. The payload must not be longer than [`MAX_INLINE`]. `observed`: a part
/// that goes with it.
pub fn put(
    out: &mut Vec<u8>,
    header: &Header,
    determinants: impl Iterator<Item = Determinant>,
    observed: Option<ObservedPart<&[u8]>>,
    payload: &[u8],
) -> usize {
    let at = out.len();
    out.extend_from_slice(head(header, payload).written());
    let mut count = 0;
    for determinant in determinants.take(MAX_DETERMINANTS) {
        out.extend_from_slice(&determinant.encode());
        count += 1;
    }
    out[at + 2..at + 4].copy_from_slice(&(count as u16).to_le_bytes());
    if let Some(part) = observed {
        out[at + 6..at + 8].copy_from_slice(&(part.bytes.len() as u16).to_le_bytes());
        out.extend_from_slice(&part.head());
        out.extend_from_slice(part.bytes);
    }
    out.extend_from_slice(payload);
    count
}

/// Appends a frame with only a payload.
pub fn put_plain(out: &mut Vec<u8>, header: &Header, payload: &[u8]) {
    put(out, header, std::iter::empty(), None, payload);
}

/// The bytes before the payload of a frame that has nothing else.
pub fn head(header: &Header, payload: &[u8]) -> Head {
    debug_assert!(payload.len() <= MAX_INLINE);
    let mut head = Head::new();
    head.put(&[header.kind() as u8, 0, 0, 0]);
    head.put(&(payload.len() as u16).to_le_bytes());
    head.put(&[0, 0]);
    header.put(&mut head);
    head
}

/// A whole frame at the start of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    pub header: Header,
    determinants: &'a [u8],
    observed: &'a [u8],
    pub payload: &'a [u8],
    /// Bytes of the buffer that the frame takes.
    pub len: usize,
}

impl<'a> Frame<'a> {
    /// The frame at the start of `bytes`, or `None` while it is incomplete.
    ///
    /// # Errors
    /// What is wrong with the frame.
    pub fn parse(bytes: &'a [u8]) -> Result<Option<Frame<'a>>, &'static str> {
        let Some(prefix) = bytes.first_chunk::<PREFIX_LEN>() else { return Ok(None) };
        let kind = Kind::from_u8(prefix[0]).ok_or("unknown kind of frame")?;
        let determinants = usize::from(u16::from_le_bytes([prefix[2], prefix[3]]));
        let inline = usize::from(u16::from_le_bytes([prefix[4], prefix[5]]));
        let observed = match u16::from_le_bytes([prefix[6], prefix[7]]) {
            0 => 0,
            len => observed::HEAD_LEN + usize::from(len),
        };
        let too_long = inline > MAX_INLINE || observed > observed::HEAD_LEN + MAX_PART;
        if too_long || determinants > MAX_DETERMINANTS {
            return Err("frame too long");
        }
        let head_end = PREFIX_LEN + header::len_of(kind);
        let list_end = head_end + determinants * DETERMINANT_LEN;
        let observed_end = list_end + observed;
        let len = observed_end + inline;
        let Some(head) = bytes.get(PREFIX_LEN..head_end) else { return Ok(None) };
        let header = Header::decode(kind, head, inline)?;
        if bytes.len() < len {
            return Ok(None);
        }
        let determinants = &bytes[head_end..list_end];
        let observed = &bytes[list_end..observed_end];
        Ok(Some(Frame { header, determinants, observed, payload: &bytes[observed_end..len], len }))
    }

    /// The determinants on the frame.
    pub fn determinants(&self) -> impl Iterator<Item = Determinant> + 'a {
        Determinant::decode_all(self.determinants)
    }

    /// The part of the observations that goes with the frame.
    pub fn observed(&self) -> Option<ObservedPart<&'a [u8]>> {
        ObservedPart::decode(self.observed)
    }
}

/// What a connection to a router is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub enum StreamKind {
    Delivery,
    Send,
}

/// Hash of a message's content, to find out whether a message that is sent again is the same.
pub fn content_hash(content: &[u8]) -> u64 {
    u64::from_le_bytes(blake3::hash(content).as_bytes()[..8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rank;
    use proptest::prelude::*;

    fn message(size: u64, place: Option<Place>) -> Header {
        let envelope = Envelope::Tagged { tag: 5, data: Some(9) };
        let sent_bytes = 1 << 40;
        let destination = Rank(3);
        let message = Message { destination, ssn: 4, clock: 2, envelope, size, sent_bytes, place };
        Header::Message(message)
    }

    proptest! {
        #[test]
        fn frames_survive_the_wire(ssn: u64, clock: u64, tag: u64, data: Option<u64>, payload in
            prop::collection::vec(any::<u8>(), 0..300), clocks in prop::collection::vec(any::<u64>(), 0..9),
            seen in prop::collection::vec(any::<u8>(), 0..40)) {
            let envelope = Envelope::Tagged { tag, data };
            let size = payload.len() as u64;
            let sent_bytes = clock.wrapping_add(size);
            let message =
                Message { destination: Rank(7), ssn, clock, envelope, size, sent_bytes, place: None };
            let header = Header::Message(message);
            let list: Vec<_> = clocks.iter().map(|c| Determinant { clock: *c, rsn: c / 2 }).collect();
            let part = ObservedPart { from: ssn, clock, bytes: &seen[..] };
            let part = (!part.bytes.is_empty()).then_some(part);
            let mut bytes = b"before".to_vec();
            let put = put(&mut bytes, &header, list.iter().copied(), part, &payload);
            prop_assert_eq!(put, list.len());
            let frame = Frame::parse(&bytes[6..]).unwrap().unwrap();
            prop_assert_eq!(frame.header, header);
            prop_assert_eq!(frame.payload, &payload[..]);
            prop_assert_eq!(frame.len, bytes.len() - 6);
            prop_assert_eq!(frame.determinants().collect::<Vec<_>>(), list);
            prop_assert_eq!(frame.observed(), part);
        }
    }

    /// A million byte strings, half of them random, half valid frames with a few changed bytes.
    /// None panics, and none claims more than is there or than the bound allows.
    #[test]
    fn random_bytes_are_refused_or_within_bounds() {
        use rand::{rngs::SmallRng, Rng, SeedableRng};
        let seed = std::env::var("EYRIE_TEST_SEED").ok().and_then(|s| s.parse().ok());
        let seed: u64 = seed.unwrap_or_else(|| u64::from_le_bytes(crate::auth::random()));
        println!("EYRIE_TEST_SEED={seed}");
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut bytes = vec![0u8; 256];
        let mut parsed = 0;
        for round in 0..1_000_000 {
            let len = rng.gen_range(0..256);
            bytes.resize(256, 0);
            rng.fill(&mut bytes[..len]);
            if round % 2 == 0 {
                let inline = rng.gen_range(0..100u64);
                let headers = [
                    message(inline, None),
                    Header::Ready(Ready { up_to: 1, observed: 2 }),
                    Header::Ack(Ack { frames: 3, clock: 8, observed: 5 }),
                ];
                let mut frame = Vec::new();
                let payload = vec![7; inline as usize];
                put_plain(&mut frame, &headers[round / 2 % 3], &payload);
                for _ in 0..rng.gen_range(0..3) {
                    let at = rng.gen_range(0..frame.len().min(100));
                    frame[at] = rng.gen();
                }
                bytes = frame;
                bytes.resize(256, 0);
            }
            if let Ok(Some(f)) = Frame::parse(&bytes[..len]) {
                assert!(f.len <= len && f.len <= MAX_FRAME);
                assert!(f.payload.len() <= MAX_INLINE);
                parsed += 1;
            }
        }
        assert!(parsed > 1000, "only {parsed} frames were sound: the test proves little");
    }

    #[test]
    fn a_truncated_frame_waits_and_an_oversized_one_is_refused() {
        let mut bytes = Vec::new();
        let part = ObservedPart { from: 7, clock: 2, bytes: &b"seen"[..] };
        put(&mut bytes, &message(5, None), std::iter::empty(), Some(part), b"hello");
        for cut in 0..bytes.len() {
            assert_eq!(Frame::parse(&bytes[..cut]), Ok(None));
        }
        assert_eq!(Frame::parse(&bytes).unwrap().unwrap().payload, b"hello");
        let parse_with = |at: usize, len: usize| {
            let mut bytes = bytes.clone();
            bytes[at..at + 2].copy_from_slice(&(len as u16).to_le_bytes());
            Frame::parse(&bytes).is_err()
        };
        assert!(parse_with(4, MAX_INLINE + 1) && parse_with(6, MAX_PART + 1));
        assert!(parse_with(2, MAX_DETERMINANTS + 1));
    }

    #[test]
    fn the_length_of_a_message_fits_its_frame() {
        let parse = |header: &Header, payload: &[u8]| {
            let mut bytes = Vec::new();
            put_plain(&mut bytes, header, payload);
            Frame::parse(&bytes).map(|f| f.is_some())
        };
        assert_eq!(parse(&message(0, None), b""), Ok(true));
        assert!(parse(&message(5, None), b"hell").is_err());
        let place = Some(Place { segment: 1, offset: 64 });
        assert_eq!(parse(&message(1 << 20, place), b""), Ok(true));
        assert!(parse(&message(5, place), b"hello").is_err());
    }
}
