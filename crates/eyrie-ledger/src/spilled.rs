//! Messages that were taken out of ledgers, because these are full, as bytes: those that one rank
//! has received, of all sources, in a file that its next incarnation reads. Only messages that
//! their receiver has recorded may be taken out: it needs them again when it is executed again, and
//! not before. Whatever the bytes are, they are a message that is right or an error.
//!
//! ```text
//!  0  source u32 · check u32 (over all else of the message)
//!  8  ssn u64
//! 16  len u64
//! 24  kind u8 · flags u8 · whether there are three more words u8 · 0
//! 32  two words of the envelope · three more
//! 72  payload, to a multiple of 8
//! ```

use crate::check::{bytes, START};
use crate::entry::{Envelope, LONGEST};
use crate::layout::Rank;

/// Bytes of a message before its payload.
pub const HEAD: usize = 72;

/// A message that was taken out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spilled<'a> {
    pub source: Rank,
    pub ssn: u64,
    pub envelope: Envelope,
    pub payload: &'a [u8],
}

/// Bytes that a message of so many bytes takes.
pub const fn len_of(payload: u64) -> u64 {
    HEAD as u64 + payload.next_multiple_of(8)
}

impl<'a> Spilled<'a> {
    /// Appends the message to `out`.
    pub fn put(&self, out: &mut Vec<u8>) {
        let at = out.len();
        let Envelope { kind, flags, words, more } = self.envelope;
        out.extend_from_slice(&self.source.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.ssn.to_le_bytes());
        out.extend_from_slice(&(self.payload.len() as u64).to_le_bytes());
        out.extend_from_slice(&[kind, flags, u8::from(more.is_some()), 0, 0, 0, 0, 0]);
        for word in words.into_iter().chain(more.unwrap_or_default()) {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(self.payload);
        out.resize(at + len_of(self.payload.len() as u64) as usize, 0);
        let check = check_of(&out[at..]);
        out[at + 4..at + 8].copy_from_slice(&check.to_le_bytes());
    }

    /// The message at the start of `from`, and what follows it. `None`: there is no whole one, or
    /// it is nonsense.
    pub fn take(from: &'a [u8]) -> Option<(Spilled<'a>, &'a [u8])> {
        let head = from.get(..HEAD)?;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&head[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let (source, check) = (word(0) as u32, (word(0) >> 32) as u32);
        let len = Some(word(16)).filter(|len| *len <= LONGEST)?;
        let (message, rest) = from.split_at_checked(usize::try_from(len_of(len)).ok()?)?;
        if check != check_of(message) {
            return None;
        }
        let [kind, flags, has_more, ..] = word(24).to_le_bytes();
        let more = (has_more != 0).then(|| [word(48), word(56), word(64)]);
        let envelope = Envelope { kind, flags, words: [word(32), word(40)], more };
        let payload = &message[HEAD..HEAD + len as usize];
        Some((Spilled { source, ssn: word(8), envelope, payload }, rest))
    }
}

/// The check of a message, without the place where it lies.
fn check_of(message: &[u8]) -> u32 {
    bytes(bytes(START, &message[..4]), &message[8..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_one_behind_another_and_no_flipped_bit_passes() {
        let first = Spilled {
            source: 3,
            ssn: 1 << 40,
            envelope: Envelope { kind: 2, flags: 1, words: [7, u64::MAX], more: None },
            payload: b"a payload of 23 bytes..",
        };
        let second = Spilled {
            source: 0,
            envelope: Envelope { kind: 5, more: Some([1, 2, 3]), ..first.envelope },
            payload: &[],
            ..first
        };
        let mut all = Vec::new();
        first.put(&mut all);
        second.put(&mut all);
        assert_eq!(all.len() as u64, len_of(23) + len_of(0));
        let (message, rest) = Spilled::take(&all).unwrap();
        assert_eq!(message, first);
        assert_eq!(Spilled::take(rest), Some((second, &[][..])));
        for cut in 0..rest.len() {
            assert_eq!(Spilled::take(&rest[..cut]), None);
        }
        for bit in 0..all.len() * 8 {
            let mut damaged = all.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let taken = Spilled::take(&damaged);
            assert!(taken.is_none_or(|(message, _)| message == first), "bit {bit}");
        }
    }
}
