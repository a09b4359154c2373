//! Frames of the data path between a rank and a router: one 64-byte header, then determinants, then the
//! payload. Large payloads do not go through the stream: they lie in a *segment*, a file that belongs to
//! the router, written by the sender and read by the receiver; the frame names segment and offset.
//!
//! A rank has one *delivery* stream from its home router and one *send* stream to each router it
//! sends to, so that an acknowledgement never waits behind messages that nobody has taken yet.

use crate::auth::{NONCE_LEN, PROOF_LEN};
use crate::{Incarnation, Rank, VERSION};

/// Length of a frame header in bytes.
pub const HEADER_LEN: usize = 64;
/// Longest payload that goes inside a frame, in bytes; longer messages go through a segment.
pub const MAX_INLINE: usize = 16 * 1024;
/// Most determinants on one frame.
pub const MAX_DETERMINANTS: usize = 1024;
/// Length of a determinant in bytes.
pub const DETERMINANT_LEN: usize = 16;
/// Longest frame in bytes.
pub const MAX_FRAME: usize = HEADER_LEN + MAX_DETERMINANTS * DETERMINANT_LEN + MAX_INLINE;

/// One nondeterministic event of a rank: at this clock all messages up to this position had become
/// visible to matching.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Determinant {
    /// The rank's progress calls so far, this one included.
    pub clock: u64,
    /// Place of the last visible message in the total order of the rank's messages, from 1.
    pub position: u64,
}

impl Determinant {
    /// The determinant as it stands in a frame.
    pub fn encode(&self) -> [u8; DETERMINANT_LEN] {
        let mut out = [0; DETERMINANT_LEN];
        out[..8].copy_from_slice(&self.clock.to_le_bytes());
        out[8..].copy_from_slice(&self.position.to_le_bytes());
        out
    }

    /// The determinants that stand one after another in `bytes` (a rest that is too short is ignored).
    pub fn decode_all(bytes: &[u8]) -> impl Iterator<Item = Determinant> + '_ {
        bytes.chunks_exact(DETERMINANT_LEN).map(|c| Determinant {
            clock: u64::from_le_bytes(c[..8].try_into().unwrap()),
            position: u64::from_le_bytes(c[8..].try_into().unwrap()),
        })
    }
}

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    // Rank to router.
    /// A message to `peer`, number `seq` of this pair.
    Data = 1,
    /// A message that the router has already, sent again by a re-executing rank: its envelope, and the
    /// hash of its content in `offset`, for comparison with the log.
    Resend = 2,
    /// Nothing but determinants.
    Determinants = 3,
    /// Asks for a segment of at least `size` bytes.
    SegmentRequest = 4,
    /// No later frame of this stream will name `segment`.
    SegmentDone = 5,
    /// Asks for an acknowledgement now.
    Flush = 6,
    /// First frame on a delivery stream: `position` is the last message that the rank holds, `tag` its clock.
    Resume = 7,
    /// The rank has caught up with its last determinant (delivery stream).
    Replayed = 8,
    // Router to rank.
    /// A message from `peer` at `position`.
    Deliver = 16,
    /// `seq` frames of this stream are logged, determinants up to clock `tag` too.
    Ack = 17,
    /// The descriptor of `segment` (`size` bytes) comes with this frame.
    Segment = 18,
    /// `segment` will not be named again on this stream: close it.
    SegmentDrop = 19,
    /// The router has messages up to number `seq` of the pair (this rank, `peer`).
    Known = 20,
    /// Determinants to replay.
    Replay = 21,
    /// End of [`Kind::Known`] or [`Kind::Replay`]: the stream is ready.
    Ready = 22,
    /// The rank must end: the payload says why.
    Refused = 23,
}

impl Kind {
    fn from_u8(n: u8) -> Option<Kind> {
        use Kind::*;
        const ALL: [Kind; 16] = [
            Data,
            Resend,
            Determinants,
            SegmentRequest,
            SegmentDone,
            Flush,
            Resume,
            Replayed,
            Deliver,
            Ack,
            Segment,
            SegmentDrop,
            Known,
            Replay,
            Ready,
            Refused,
        ];
        ALL.into_iter().find(|k| *k as u8 == n)
    }
}

/// Flag of a header: the message is tagged (else it is for the untagged queue).
pub const TAGGED: u8 = 1;
/// Flag of a header: `data` is meant for the completion.
pub const HAS_DATA: u8 = 2;
/// Flag of a header: the payload lies in `segment` at `offset`.
pub const IN_SEGMENT: u8 = 4;

/// A frame header. Which fields count depends on the kind; the others are zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    pub kind: Kind,
    pub flags: u8,
    /// Determinants behind the header.
    pub determinants: u16,
    /// Payload bytes behind the determinants.
    pub inline: u32,
    /// Destination of a sent message, source of a delivered one.
    pub peer: Rank,
    pub segment: u32,
    /// Number of the message among those of its (source, destination), from 1.
    pub seq: u64,
    /// Of a delivered message: its place in the total order of the destination, from 1. Of a sent one: the sender's
    /// clock, because a send also depends on nothing having become visible since the last determinant.
    pub position: u64,
    pub tag: u64,
    pub data: u64,
    /// Length of the message in bytes.
    pub size: u64,
    pub offset: u64,
}

impl Header {
    /// A header of this kind with all fields zero.
    pub const fn new(kind: Kind) -> Header {
        Header {
            kind,
            flags: 0,
            determinants: 0,
            inline: 0,
            peer: 0,
            segment: 0,
            seq: 0,
            position: 0,
            tag: 0,
            data: 0,
            size: 0,
            offset: 0,
        }
    }

    /// The header as it stands in the stream.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut out = [0u8; HEADER_LEN];
        out[0] = self.kind as u8;
        out[1] = self.flags;
        out[2..4].copy_from_slice(&self.determinants.to_le_bytes());
        out[4..8].copy_from_slice(&self.inline.to_le_bytes());
        out[8..12].copy_from_slice(&self.peer.to_le_bytes());
        out[12..16].copy_from_slice(&self.segment.to_le_bytes());
        let wide = [self.seq, self.position, self.tag, self.data, self.size, self.offset];
        for (i, n) in wide.into_iter().enumerate() {
            out[16 + 8 * i..24 + 8 * i].copy_from_slice(&n.to_le_bytes());
        }
        out
    }

    /// Reads a header and checks its bounds; the error says what is wrong.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Header, &'static str> {
        let u32_at = |i: usize| u32::from_le_bytes(bytes[i..i + 4].try_into().unwrap());
        let u64_at = |i: usize| u64::from_le_bytes(bytes[i..i + 8].try_into().unwrap());
        let h = Header {
            kind: Kind::from_u8(bytes[0]).ok_or("unknown kind of frame")?,
            flags: bytes[1],
            determinants: u16::from_le_bytes(bytes[2..4].try_into().unwrap()),
            inline: u32_at(4),
            peer: u32_at(8),
            segment: u32_at(12),
            seq: u64_at(16),
            position: u64_at(24),
            tag: u64_at(32),
            data: u64_at(40),
            size: u64_at(48),
            offset: u64_at(56),
        };
        if h.inline as usize > MAX_INLINE || h.determinants as usize > MAX_DETERMINANTS {
            return Err("frame too long");
        }
        if matches!(h.kind, Kind::Data | Kind::Deliver) {
            let in_segment = h.flags & IN_SEGMENT != 0;
            if in_segment != (h.inline == 0 && h.size > 0)
                || !in_segment && h.inline as u64 != h.size
            {
                return Err("message length does not fit its frame");
            }
        }
        Ok(h)
    }

    /// Length of the whole frame in bytes.
    pub fn frame_len(&self) -> usize {
        HEADER_LEN + self.determinants as usize * DETERMINANT_LEN + self.inline as usize
    }
}

/// A whole frame at the start of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    pub header: Header,
    pub determinants: &'a [u8],
    pub payload: &'a [u8],
    /// Bytes of the buffer that the frame takes.
    pub len: usize,
}

impl<'a> Frame<'a> {
    /// The frame at the start of `bytes`, or `None` when it is not whole yet.
    ///
    /// # Errors
    /// What is wrong with the frame.
    pub fn parse(bytes: &'a [u8]) -> Result<Option<Frame<'a>>, &'static str> {
        let Some(head) = bytes.first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let header = Header::decode(head)?;
        let len = header.frame_len();
        let Some(body) = bytes.get(HEADER_LEN..len) else { return Ok(None) };
        let (determinants, payload) = body.split_at(header.determinants as usize * DETERMINANT_LEN);
        Ok(Some(Frame { header, determinants, payload, len }))
    }
}

/// What a connection to a router is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Stream {
    Delivery = 1,
    Send = 2,
}

/// First bytes on a connection to a router.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    pub stream: Stream,
    pub rank: Rank,
    pub incarnation: Incarnation,
    pub nonce: [u8; NONCE_LEN],
}

const MAGIC: [u8; 5] = *b"EYRIE";

impl Hello {
    /// Length of a hello in bytes.
    pub const LEN: usize = 16 + NONCE_LEN;

    /// The hello as it stands on the connection.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..5].copy_from_slice(&MAGIC);
        out[5] = self.stream as u8;
        out[6..8].copy_from_slice(&VERSION.to_le_bytes());
        out[8..12].copy_from_slice(&self.rank.to_le_bytes());
        out[12..16].copy_from_slice(&self.incarnation.to_le_bytes());
        out[16..].copy_from_slice(&self.nonce);
        out
    }

    /// Reads a hello; the error says what is wrong.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Result<Hello, &'static str> {
        if bytes[..5] != MAGIC {
            return Err("not an Eyrie connection");
        }
        if bytes[6..8] != VERSION.to_le_bytes() {
            return Err("another version of Eyrie");
        }
        Ok(Hello {
            stream: match bytes[5] {
                1 => Stream::Delivery,
                2 => Stream::Send,
                _ => return Err("unknown kind of stream"),
            },
            rank: u32::from_le_bytes(bytes[8..12].try_into().unwrap()),
            incarnation: u32::from_le_bytes(bytes[12..16].try_into().unwrap()),
            nonce: bytes[16..].try_into().unwrap(),
        })
    }
}

/// The router's answer to a [`Hello`]: its nonce and its proof. The rank answers with its own proof.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Challenge {
    pub nonce: [u8; NONCE_LEN],
    pub proof: [u8; PROOF_LEN],
}

impl Challenge {
    /// Length of a challenge in bytes.
    pub const LEN: usize = NONCE_LEN + PROOF_LEN;

    /// The challenge as it stands on the connection.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..NONCE_LEN].copy_from_slice(&self.nonce);
        out[NONCE_LEN..].copy_from_slice(&self.proof);
        out
    }

    /// Reads a challenge.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Challenge {
        Challenge {
            nonce: bytes[..NONCE_LEN].try_into().unwrap(),
            proof: bytes[NONCE_LEN..].try_into().unwrap(),
        }
    }
}

/// The home router of a rank, when there are `routers` of them.
pub fn home(rank: Rank, routers: u32) -> u32 {
    rank % routers
}

/// Hash of a message's content, to tell whether a message sent again says the same.
pub fn content_hash(content: &[u8]) -> u64 {
    u64::from_le_bytes(blake3::hash(content).as_bytes()[..8].try_into().unwrap())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_survive_the_wire(seq: u64, position: u64, tag: u64, data: u64, n in 0u32..MAX_INLINE as u32) {
            let h = Header { seq, position, tag, data, inline: n, size: n.into(), flags: TAGGED | HAS_DATA,
                peer: 7, determinants: 3, ..Header::new(Kind::Data) };
            prop_assert_eq!(Header::decode(&h.encode()), Ok(h));
        }
    }

    /// A million byte strings, half of them random, half sound frames with a few bytes changed: none panics, none
    /// claims more than is there or than the bound allows.
    #[test]
    fn random_bytes_are_refused_or_within_bounds() {
        use rand::{rngs::SmallRng, Rng, SeedableRng};
        let seed = std::env::var("EYRIE_TEST_SEED").ok().and_then(|s| s.parse().ok());
        let seed: u64 = seed.unwrap_or_else(|| u64::from_le_bytes(crate::auth::random()));
        println!("EYRIE_TEST_SEED={seed}");
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut bytes = [0u8; 256];
        let mut parsed = 0;
        for round in 0..1_000_000 {
            let len = rng.gen_range(0..bytes.len());
            rng.fill(&mut bytes[..len]);
            if round % 2 == 0 {
                let inline = rng.gen_range(0..150);
                let kind = [Kind::Data, Kind::Deliver, Kind::Replay, Kind::Ack][round % 4];
                let h = Header { inline, size: inline.into(), ..Header::new(kind) };
                bytes[..HEADER_LEN].copy_from_slice(&h.encode());
                for _ in 0..rng.gen_range(0..3) {
                    bytes[rng.gen_range(0..HEADER_LEN)] = rng.gen();
                }
            }
            if let Ok(Some(f)) = Frame::parse(&bytes[..len]) {
                assert!(f.len <= len && f.len <= MAX_FRAME);
                assert_eq!(f.len, HEADER_LEN + f.determinants.len() + f.payload.len());
                parsed += 1;
            }
            let _ = Hello::decode(bytes.first_chunk().unwrap());
        }
        assert!(parsed > 1000, "only {parsed} frames were sound: the test proves little");
    }

    #[test]
    fn a_truncated_frame_waits_and_an_oversized_one_is_refused() {
        let h = Header { inline: 5, size: 5, ..Header::new(Kind::Data) };
        let mut bytes = h.encode().to_vec();
        bytes.extend_from_slice(b"hello");
        for cut in 0..bytes.len() {
            assert_eq!(Frame::parse(&bytes[..cut]), Ok(None));
        }
        assert_eq!(Frame::parse(&bytes).unwrap().unwrap().payload, b"hello");
        let long = Header { inline: MAX_INLINE as u32 + 1, ..h };
        assert!(Frame::parse(&long.encode()).is_err());
    }
}
