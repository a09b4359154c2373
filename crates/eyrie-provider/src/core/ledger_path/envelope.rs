//! What a message means, as an entry of a ledger has it. Pure. Each envelope comes back as it was,
//! and what is no envelope is refused.

use eyrie_ledger::Envelope as Entered;
use eyrie_wire::data::{AtomicOp, Envelope};

const UNTAGGED: u8 = 1;
const TAGGED: u8 = 2;
const WRITE: u8 = 3;
const READ: u8 = 4;
const ATOMIC: u8 = 5;
const ANSWER: u8 = 6;

const HAS_DATA: u8 = 1;

/// The envelope of an entry.
pub fn encode(envelope: &Envelope) -> Entered {
    let plain = |kind, data: Option<u64>, tag| Entered {
        kind,
        flags: u8::from(data.is_some()) * HAS_DATA,
        words: [tag, data.unwrap_or(0)],
        more: None,
    };
    let one_sided = |kind, flags, words, more| Entered { kind, flags, words, more: Some(more) };
    match *envelope {
        Envelope::Untagged { data } => plain(UNTAGGED, data, 0),
        Envelope::Tagged { tag, data } => plain(TAGGED, data, tag),
        Envelope::Write { key, offset, request } => {
            one_sided(WRITE, 0, [key, offset], [request, 0, 0])
        }
        Envelope::Read { key, offset, request, len } => {
            one_sided(READ, 0, [key, offset], [request, len, 0])
        }
        Envelope::Atomic { key, offset, request, what, op, datatype, count } => {
            let operation = u64::from_le_bytes([op, datatype, 0, 0, 0, 0, 0, 0]);
            let more = [request, u64::from(count), operation];
            one_sided(ATOMIC, what as u8, [key, offset], more)
        }
        Envelope::Answer { request, error } => {
            Entered { kind: ANSWER, flags: 0, words: [request, u64::from(error)], more: None }
        }
    }
}

/// What an entry means.
///
/// # Errors
/// When it is no envelope.
pub fn decode(entered: &Entered) -> Result<Envelope, &'static str> {
    const NONSENSE: &str = "an envelope is nonsense";
    let Entered { kind, flags, words: [a, b], more } = *entered;
    let data = (flags & HAS_DATA != 0).then_some(b);
    Ok(match (kind, more) {
        (UNTAGGED, None) => Envelope::Untagged { data },
        (TAGGED, None) => Envelope::Tagged { tag: a, data },
        (WRITE, Some([request, ..])) => Envelope::Write { key: a, offset: b, request },
        (READ, Some([request, len, _])) => Envelope::Read { key: a, offset: b, request, len },
        (ATOMIC, Some([request, count, operation])) => {
            let [op, datatype, ..] = operation.to_le_bytes();
            let what = match flags {
                0 => AtomicOp::Update,
                1 => AtomicOp::Fetch,
                2 => AtomicOp::Compare,
                _ => return Err(NONSENSE),
            };
            let count = u32::try_from(count).map_err(|_| NONSENSE)?;
            Envelope::Atomic { key: a, offset: b, request, what, op, datatype, count }
        }
        (ANSWER, None) => {
            let error = u32::try_from(b).map_err(|_| NONSENSE)?;
            Envelope::Answer { request: a, error }
        }
        _ => return Err(NONSENSE),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_envelope_comes_back_and_nonsense_does_not() {
        let key = u64::MAX;
        let offset = 3;
        let request = 1 << 63;
        let all = [
            Envelope::Untagged { data: None },
            Envelope::Untagged { data: Some(0) },
            Envelope::Tagged { tag: u64::MAX, data: Some(u64::MAX) },
            Envelope::Tagged { tag: 0, data: None },
            Envelope::Write { key, offset, request },
            Envelope::Read { key, offset, request, len: u64::MAX },
            Envelope::Atomic {
                key,
                offset,
                request,
                what: AtomicOp::Fetch,
                op: 255,
                datatype: 254,
                count: u32::MAX,
            },
            Envelope::Answer { request, error: u32::MAX },
        ];
        for envelope in all {
            let entered = encode(&envelope);
            assert_eq!(decode(&entered), Ok(envelope));
            assert!(decode(&Entered { kind: entered.kind + 10, ..entered }).is_err());
            let more = entered.more.is_none().then_some([0; 3]);
            assert!(decode(&Entered { more, ..entered }).is_err());
        }
        let mut atomic = encode(&all[6]);
        atomic.flags = 200;
        assert!(decode(&atomic).is_err());
        let mut answer = encode(&all[7]);
        answer.words[1] += 1;
        assert!(decode(&answer).is_err());
    }
}
