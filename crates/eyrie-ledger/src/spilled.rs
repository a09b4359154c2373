//! Messages that were taken out of ledgers, because these are full, as bytes: those that one rank
//! has received, in the order in which it has, in a file that its next incarnation reads. Only
//! messages that their receiver has recorded may be taken out: it needs them again when it is
//! executed again, and not before. Whatever the bytes are, they are a message that is right or an
//! error.
//!
//! ```text
//!  0  source u32 · check u32 (over all else of the head)
//!  8  ssn u64
//! 16  len u64
//! 24  kind u8 · flags u8 · whether there are three more words u8 · 0 · check of the payload u32
//! 32  two words of the envelope · three more
//! 72  payload, to a multiple of 8
//! ```

use crate::check::{bytes, START};
use crate::entry::{Envelope, LONGEST};
use crate::layout::Rank;

/// Bytes of a message before its payload.
pub const HEAD: usize = 72;

/// A message that was taken out, but for its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spilled {
    pub source: Rank,
    pub ssn: u64,
    pub envelope: Envelope,
    /// Bytes of payload.
    pub len: u64,
    pub check: PayloadCheck,
}

/// The check of a payload, which may be read in pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PayloadCheck(u32);

impl Default for PayloadCheck {
    /// Of no bytes.
    fn default() -> PayloadCheck {
        PayloadCheck(START)
    }
}

impl PayloadCheck {
    /// Goes on with the next bytes.
    pub fn add(&mut self, piece: &[u8]) {
        self.0 = bytes(self.0, piece);
    }

    /// The check of these bytes.
    pub fn of(payload: &[u8]) -> PayloadCheck {
        PayloadCheck(bytes(START, payload))
    }
}

/// Bytes that a message takes whose payload has so many.
pub const fn len_of(payload: u64) -> u64 {
    HEAD as u64 + payload.next_multiple_of(8)
}

impl Spilled {
    /// The bytes before the payload.
    pub fn head(&self) -> [u8; HEAD] {
        let Envelope { kind, flags, words: [a, b], more } = self.envelope;
        let [c, d, e] = more.unwrap_or_default();
        let check = u64::from(self.check.0) << 32;
        let kinds = u64::from_le_bytes([kind, flags, u8::from(more.is_some()), 0, 0, 0, 0, 0]);
        let words = [u64::from(self.source), self.ssn, self.len, kinds | check, a, b, c, d, e];
        let mut head = [0; HEAD];
        for (to, word) in head.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let check = check_of(&head);
        head[4..8].copy_from_slice(&check.to_le_bytes());
        head
    }

    /// The message that begins with these bytes. `None`: they are nonsense.
    pub fn read(head: &[u8; HEAD]) -> Option<Spilled> {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&head[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let source = word(0) as u32;
        let check = (word(0) >> 32) as u32;
        let (ssn, len) = (word(8), word(16));
        if check != check_of(head) || len > LONGEST {
            return None;
        }
        let [kind, flags, has_more, ..] = word(24).to_le_bytes();
        let more = (has_more != 0).then(|| [word(48), word(56), word(64)]);
        let envelope = Envelope { kind, flags, words: [word(32), word(40)], more };
        let check = PayloadCheck((word(24) >> 32) as u32);
        Some(Spilled { source, ssn, envelope, len, check })
    }

    /// Bytes that the message takes.
    pub const fn bytes(&self) -> u64 {
        len_of(self.len)
    }
}

/// The check of a head, without the place where it lies.
fn check_of(head: &[u8; HEAD]) -> u32 {
    bytes(bytes(START, &head[..4]), &head[8..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_come_back_and_no_flipped_bit_passes() {
        let payload = b"a payload of 23 bytes..";
        let first = Spilled {
            source: 3,
            ssn: 1 << 40,
            envelope: Envelope { kind: 2, flags: 1, words: [7, u64::MAX], more: None },
            len: 23,
            check: PayloadCheck::of(payload),
        };
        let more = Some([1, 2, 3]);
        let envelope = Envelope { kind: 5, more, ..first.envelope };
        let second = Spilled { source: 0, envelope, len: 0, check: PayloadCheck::of(&[]), ..first };
        for message in [first, second] {
            let head = message.head();
            assert_eq!(Spilled::read(&head), Some(message));
            for bit in 0..HEAD * 8 {
                let mut damaged = head;
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Spilled::read(&damaged), None, "bit {bit}");
            }
        }
        assert_eq!((first.bytes(), second.bytes()), (96, 72));
        let mut pieces = PayloadCheck::default();
        payload.chunks(5).for_each(|piece| pieces.add(piece));
        assert_eq!(pieces, first.check);
        for bit in 0..payload.len() * 8 {
            let mut damaged = *payload;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(PayloadCheck::of(&damaged), first.check, "bit {bit}");
        }
    }
}
