//! One message as it lies in a region. Nothing here follows anything: an entry is read at one
//! place, and what is nonsense is refused.
//!
//! ```text
//!  0  number u32 · check u32    STORED LAST, in one step
//!  8  len 40 bits · form u8 · kind u8 · flags u8
//! 16  two words of the envelope
//! 32  clock u32 · epoch u32 (0 on one node)
//! 40  payload up to 24 bytes, or three more words of the envelope
//! 64  payload, or of a large message: how much of it is written, and how often it was begun anew
//!     (sealed); then the payload at 128
//! ```
//!
//! Number and check are one word, so neither is seen without the other. The word is 0 where there
//! is no entry yet, and the number never is. The check goes over the whole line, the channel and
//! the ssn: no entry counts at another place of the order. Payload of more than 24 bytes is not in
//! it: at 64 KiB that would double the cost of the message on both sides. Wrong bytes there are
//! found when the message is sent again and compared.

use crate::check::{seal, unseal, words};
use crate::layout::{Layout, LINE};
use crate::memory::View;
use crate::mutation::{active, Mutation};

/// Longest payload that lies in the line of its entry.
pub const INLINE: usize = 24;
/// Longest message.
pub const LONGEST: u64 = (1 << FILLED_BITS) - 1;

/// What a message means to its receiver. The ledger keeps it and never looks inside.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Envelope {
    pub kind: u8,
    pub flags: u8,
    pub words: [u64; 2],
    /// Messages that need more than two words have no payload in their line.
    pub more: Option<[u64; 3]>,
}

/// How the payload lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    Inline = 1,
    Plain = 2,
    /// It is published before its payload is written.
    Large = 3,
    /// No message: the next one is the first of another extent.
    Jump = 4,
}

/// How much of a large message is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filled {
    pub bytes: u64,
    /// It was begun anew so often, with other content. What was read of it before means nothing.
    pub turn: u8,
}

const MORE: u8 = 8;
/// Bits of the word of [`Filled`] that are bytes.
const FILLED_BITS: u32 = 40;

/// A message in a region.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub ssn: u64,
    pub envelope: Envelope,
    /// Bytes of payload.
    pub len: u64,
    /// The low bits of the sender's clock when it was sent.
    pub clock: u32,
    /// Payload in the line: it was checked with it.
    pub(crate) inline: [u8; INLINE],
    pub(crate) at: u64,
    pub(crate) form: Form,
}

/// The line of an entry but for its first word.
pub(crate) type Line = [u64; 7];

impl Entry {
    /// Where its payload begins.
    pub(crate) const fn payload(&self) -> u64 {
        self.at + payload(self.form)
    }

    /// Bytes that it takes.
    pub(crate) const fn bytes(&self) -> u64 {
        bytes(self.form, self.len)
    }

    /// How much of the payload is written; all of it, but for a large message. `None`: nonsense.
    pub(crate) fn filled(&self, view: &impl View) -> Option<Filled> {
        if self.form != Form::Large {
            return Some(Filled { bytes: self.len, turn: 0 });
        }
        let at = self.at + LINE;
        let word =
            if active(Mutation::RelaxedFilledLook) { view.load(at) } else { view.load_acquire(at) };
        let value = unseal(word, filled_salt(at, self.ssn))?;
        let filled = Filled { bytes: value & LONGEST, turn: (value >> FILLED_BITS) as u8 };
        (filled.bytes <= self.len).then_some(filled)
    }

    /// The line that it is written as.
    pub(crate) fn line(&self) -> Line {
        let Envelope { kind, flags, words: [a, b], more } = self.envelope;
        let form = self.form as u8 | if more.is_some() { MORE } else { 0 };
        let sizes = self.len | u64::from_le_bytes([0, 0, 0, 0, 0, form, kind, flags]);
        let [c, d, e] = more.unwrap_or_else(|| {
            let word = |n: usize| {
                let mut word = [0; 8];
                word.copy_from_slice(&self.inline[n..n + 8]);
                u64::from_le_bytes(word)
            };
            [word(0), word(8), word(16)]
        });
        [sizes, a, b, u64::from(self.clock), c, d, e]
    }

    /// Reads the entry at `at`, whose first word is `word`. Fewer than 64 bytes need not lie there.
    pub(crate) fn read(
        view: &impl View,
        seed: u32,
        at: u64,
        ssn: u64,
        word: u64,
    ) -> Result<Entry, &'static str> {
        if word as u32 != number(ssn) {
            return Err("its number is another");
        }
        let line: Line = std::array::from_fn(|n| view.load(at + 8 + 8 * n as u64));
        if first_word(seed, ssn, &line) != word {
            return Err("its check is wrong");
        }
        let [_, _, _, _, _, form, kind, flags] = line[0].to_le_bytes();
        let more = form & MORE != 0;
        let form = match form & !MORE {
            1 if !more => Form::Inline,
            2 => Form::Plain,
            3 => Form::Large,
            4 if !more => Form::Jump,
            _ => return Err("its form is unknown"),
        };
        let len = line[0] & LONGEST;
        if form == Form::Inline && len > INLINE as u64 {
            return Err("its length is nonsense");
        }
        let mut inline = [0; INLINE];
        for (bytes, word) in inline.chunks_exact_mut(8).zip(&line[4..]) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let envelope = Envelope {
            kind,
            flags,
            words: [line[1], line[2]],
            more: more.then(|| [line[4], line[5], line[6]]),
        };
        Ok(Entry { ssn, envelope, len, clock: line[3] as u32, inline, at, form })
    }
}

/// Where the payload of an entry begins.
pub(crate) const fn payload(form: Form) -> u64 {
    match form {
        Form::Inline => 40,
        Form::Plain | Form::Jump => LINE,
        Form::Large => 2 * LINE,
    }
}

/// Bytes of an entry of this form.
pub(crate) const fn bytes(form: Form, len: u64) -> u64 {
    match form {
        Form::Inline | Form::Jump => LINE,
        Form::Plain | Form::Large => payload(form) + len.next_multiple_of(LINE),
    }
}

/// The number of an entry: never 0, and another one for each of 2^32 - 1 messages.
pub(crate) const fn number(ssn: u64) -> u32 {
    (ssn % (u32::MAX as u64)) as u32 + 1
}

/// The word that publishes an entry.
#[inline]
pub(crate) fn first_word(seed: u32, ssn: u64, line: &Line) -> u64 {
    let [a, b, c, d, e, f, g] = *line;
    u64::from(number(ssn)) | u64::from(words(seed, &[ssn, a, b, c, d, e, f, g])) << 32
}

/// The line of a jump to the extent at `to`.
pub(crate) const fn jump(to: u64) -> Line {
    [(Form::Jump as u64) << 40, to, 0, 0, 0, 0, 0]
}

/// The word that says how much of a large message is written.
pub(crate) fn filled_word(at: u64, ssn: u64, filled: Filled) -> u64 {
    seal(filled.bytes | u64::from(filled.turn) << FILLED_BITS, filled_salt(at, ssn))
}

const fn filled_salt(at: u64, ssn: u64) -> u64 {
    at ^ ssn.rotate_left(32)
}

/// Where a channel's entries may lie at all, for what is read.
pub(crate) const fn fits(layout: &Layout, at: u64, bytes: u64, end: u64) -> bool {
    let end = if end < layout.end() { end } else { layout.end() };
    at <= end && bytes <= end - at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::Heap;
    use crate::memory::Memory;

    fn put(memory: &Heap, entry: &Entry) -> u64 {
        let line = entry.line();
        for (n, word) in line.iter().enumerate() {
            memory.store(entry.at + 8 + 8 * n as u64, *word);
        }
        first_word(7, entry.ssn, &line)
    }

    #[test]
    fn an_entry_is_read_as_it_was_written_and_nowhere_else() {
        let memory = Heap::new(4096);
        let more = Some([5, 6, u64::MAX]);
        for (more, form, len) in [(None, Form::Inline, 24), (more, Form::Large, LONGEST)] {
            let envelope = Envelope { kind: 9, flags: 200, words: [u64::MAX, 4], more };
            let inline = if more.is_none() { [0xee; INLINE] } else { [0; INLINE] };
            let entry = Entry { ssn: 1 << 33, envelope, len, clock: 77, inline, at: 128, form };
            let word = put(&memory, &entry);
            let read = Entry::read(&memory, 7, 128, 1 << 33, word).unwrap();
            assert_eq!((read.envelope, read.len, read.clock), (envelope, len, 77));
            assert!(more.is_some() || read.inline == inline);
            assert!(Entry::read(&memory, 8, 128, 1 << 33, word).is_err(), "another channel");
            assert!(Entry::read(&memory, 7, 128, (1 << 33) + 1, word).is_err(), "another number");
        }
    }

    #[test]
    fn numbers_are_never_zero_and_neighbours_differ() {
        for ssn in [0, 1, u64::from(u32::MAX) - 1, u64::from(u32::MAX), 1 << 40] {
            assert_ne!(number(ssn), 0);
            assert_ne!(number(ssn), number(ssn + 1));
        }
    }
}
