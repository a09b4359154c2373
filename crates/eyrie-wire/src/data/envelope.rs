//! What a message means to its receiver. Routers carry envelopes and compare them, byte by byte,
//! with what a re-executing rank sends again. They never look inside.

use super::bytes::Reader;

/// Length of an encoded envelope in bytes.
pub const ENVELOPE_LEN: usize = 40;

/// What an atomic operation returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum AtomicOp {
    /// Nothing but its completion.
    Update = 0,
    /// The values before it.
    Fetch = 1,
    /// The values before it; the operands are followed by the values to compare with.
    Compare = 2,
}

/// The envelope of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Envelope {
    /// For the untagged queue; `data` is for the completion.
    Untagged { data: Option<u64> },
    /// For the tagged queue.
    Tagged { tag: u64, data: Option<u64> },
    /// Write the payload to the memory region `key`, from `offset` on. `request`: the number by
    /// which the sender recognises the answer.
    Write { key: u64, offset: u64, request: u64 },
    /// Send `len` bytes of the memory region back.
    Read { key: u64, offset: u64, request: u64, len: u64 },
    /// Apply operation `op` on `count` elements of type `datatype` (libfabric's numbers) to the
    /// memory region; the payload holds the operands.
    Atomic { key: u64, offset: u64, request: u64, what: AtomicOp, op: u8, datatype: u8, count: u32 },
    /// The answer to `request`. The payload is what it asked for. `error`: an errno, 0 for success.
    Answer { request: u64, error: u32 },
}

const HAS_DATA: u8 = 1;

impl Envelope {
    /// The envelope as it is in a header: class, flags, four small fields, four numbers.
    pub fn encode(&self) -> [u8; ENVELOPE_LEN] {
        let mut out = [0; ENVELOPE_LEN];
        let (class, small, count, words) = match *self {
            Envelope::Untagged { data } => {
                (1, [data_flag(data), 0, 0], 0, [0, data.unwrap_or(0), 0, 0])
            }
            Envelope::Tagged { tag, data } => {
                (2, [data_flag(data), 0, 0], 0, [tag, data.unwrap_or(0), 0, 0])
            }
            Envelope::Write { key, offset, request } => (3, [0; 3], 0, [key, offset, request, 0]),
            Envelope::Read { key, offset, request, len } => {
                (4, [0; 3], 0, [key, offset, request, len])
            }
            Envelope::Atomic { key, offset, request, what, op, datatype, count } => {
                (5, [what as u8, op, datatype], count, [key, offset, request, 0])
            }
            Envelope::Answer { request, error } => (6, [0; 3], error, [0, 0, request, 0]),
        };
        out[0] = class;
        out[1..4].copy_from_slice(&small);
        out[4..8].copy_from_slice(&count.to_le_bytes());
        for (place, word) in out[8..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Reads an envelope.
    ///
    /// # Errors
    /// When its class is unknown.
    pub fn decode(bytes: &[u8; ENVELOPE_LEN]) -> Result<Envelope, &'static str> {
        let mut r = Reader(bytes);
        let [class, first, op, datatype] = r.array();
        let count = r.u32();
        let [a, b, request, len] = [r.u64(), r.u64(), r.u64(), r.u64()];
        let data = (first & HAS_DATA != 0).then_some(b);
        Ok(match class {
            1 => Envelope::Untagged { data },
            2 => Envelope::Tagged { tag: a, data },
            3 => Envelope::Write { key: a, offset: b, request },
            4 => Envelope::Read { key: a, offset: b, request, len },
            5 => {
                let what = match first {
                    0 => AtomicOp::Update,
                    1 => AtomicOp::Fetch,
                    2 => AtomicOp::Compare,
                    _ => return Err("unknown kind of atomic operation"),
                };
                Envelope::Atomic { key: a, offset: b, request, what, op, datatype, count }
            }
            6 => Envelope::Answer { request, error: count },
            _ => return Err("unknown class of message"),
        })
    }
}

fn data_flag(data: Option<u64>) -> u8 {
    if data.is_some() {
        HAS_DATA
    } else {
        0
    }
}

impl std::fmt::Display for Envelope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Envelope::Untagged { .. } => write!(f, "no tag"),
            Envelope::Tagged { tag, .. } => write!(f, "tag {tag:#x}"),
            Envelope::Write { offset, .. } => write!(f, "a write at {offset:#x}"),
            Envelope::Read { offset, len, .. } => write!(f, "a read of {len} bytes at {offset:#x}"),
            Envelope::Atomic { offset, op, .. } => {
                write!(f, "atomic operation {op} at {offset:#x}")
            }
            Envelope::Answer { request, .. } => write!(f, "the answer to request {request}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelopes_survive_and_nonsense_is_refused() {
        for e in [
            Envelope::Untagged { data: None },
            Envelope::Untagged { data: Some(0) },
            Envelope::Tagged { tag: u64::MAX, data: Some(3) },
            Envelope::Write { key: 1, offset: 2, request: 3 },
            Envelope::Read { key: 1, offset: 2, request: 3, len: 4 },
            Envelope::Atomic {
                key: 1,
                offset: 2,
                request: 3,
                what: AtomicOp::Compare,
                op: 12,
                datatype: 9,
                count: 70_000,
            },
            Envelope::Answer { request: 9, error: 22 },
        ] {
            assert_eq!(Envelope::decode(&e.encode()), Ok(e));
        }
        for class in [0, 7, 255] {
            let mut bytes = [0; ENVELOPE_LEN];
            bytes[0] = class;
            assert!(Envelope::decode(&bytes).is_err());
        }
    }
}
