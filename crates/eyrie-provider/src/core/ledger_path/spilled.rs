//! Messages that were taken out of the ledgers of their senders after this rank had received them.
//! It needs them when it is executed again, and then they come before all that its sources' ledgers
//! have. They lie in a file in the order in which the rank has received them, and are read when
//! they are shown: the memory that they need does not grow with their number. Pure.

use super::host::{SpilledFile, SpilledRange};
use crate::core::error::RankError;
use crate::core::matching::Content;
use eyrie_ledger::spilled::{PayloadCheck, Spilled, HEAD};
use eyrie_wire::Rank;
use std::io;

/// Bytes that are read at a time where heads are looked for.
const PIECE: u64 = if cfg!(test) { 200 } else { 64 << 10 };

/// The messages that are to be shown again.
pub(super) struct SpilledMessages<F> {
    /// `None`: there are none.
    file: Option<Heads<F>>,
    /// The next one.
    next: Option<Spilled>,
    /// The number of the newest one of each source; 0: there is none.
    newest: Vec<u64>,
}

/// The heads in a file, one behind another.
struct Heads<F> {
    file: F,
    /// The place of the next head, and the end of all.
    at: u64,
    end: u64,
    /// What was read, and the place where it begins.
    piece: Vec<u8>,
    piece_at: u64,
}

impl<F: SpilledFile> Heads<F> {
    fn of(range: SpilledRange<F>) -> Heads<F> {
        let SpilledRange { file, begin, end } = range;
        Heads { file, at: begin, end, piece: Vec::new(), piece_at: begin }
    }

    /// The next head; `None`: there are no more.
    fn look(&mut self) -> Result<Option<Spilled>, RankError> {
        if self.at == self.end {
            return Ok(None);
        }
        let damaged = || RankError::Content("a message on disk is damaged".into());
        let left = self.end.checked_sub(self.at).filter(|left| *left >= HEAD as u64);
        let left = left.ok_or_else(damaged)?;
        let read = self.at.checked_sub(self.piece_at).map(|from| from as usize);
        let head = read.and_then(|from| self.piece.get(from..)?.first_chunk());
        let head: [u8; HEAD] = match head {
            Some(head) => *head,
            None => {
                self.piece.resize(left.min(PIECE) as usize, 0);
                self.piece_at = self.at;
                self.file.read(self.at, &mut self.piece).map_err(unreadable)?;
                *self.piece.first_chunk().ok_or_else(damaged)?
            }
        };
        let message = Spilled::read(&head).filter(|message| message.bytes() <= left);
        message.map(Some).ok_or_else(damaged)
    }
}

impl<F: SpilledFile> SpilledMessages<F> {
    /// Those behind what was shown of each rank.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn behind(shown: &[u64], range: Option<SpilledRange<F>>) -> Result<Self, RankError> {
        let mut newest = vec![0; shown.len()];
        let Some(range) = range else {
            return Ok(SpilledMessages { file: None, next: None, newest });
        };
        let mut heads = Heads::of(range);
        let mut first = None;
        while let Some(message) = heads.look()? {
            let source = message.source as usize;
            let known = shown.get(source).zip(newest.get_mut(source));
            let (shown, newest) = known.ok_or_else(|| out_of_order(message.source))?;
            if message.ssn > *shown {
                *newest = message.ssn;
                first.get_or_insert(heads.at);
            }
            heads.at += message.bytes();
        }
        let mut file = first.map(|first| Heads { at: first, ..heads });
        let next = file.as_mut().map(Heads::look).transpose()?.flatten();
        Ok(SpilledMessages { file, next, newest })
    }

    /// The number of the newest message of a source; 0: there is none.
    pub fn newest(&self, source: u32) -> u64 {
        self.newest.get(source as usize).copied().unwrap_or(0)
    }

    /// Whether all have been shown.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.next.is_none()
    }

    /// The next message, which must be this one.
    ///
    /// # Errors
    /// When it is another one.
    pub fn first(&self, source: u32, ssn: u64) -> Result<Option<SpilledMessage<'_, F>>, RankError> {
        let (Some(heads), Some(message)) = (&self.file, self.next) else { return Ok(None) };
        if (message.source, message.ssn) != (source, ssn) {
            return Err(out_of_order(source));
        }
        Ok(Some(SpilledMessage { message, file: &heads.file, at: heads.at + HEAD as u64 }))
    }

    /// The next message has been shown.
    ///
    /// # Errors
    /// When the one behind it cannot be read.
    pub fn pass(&mut self) -> Result<(), RankError> {
        let (Some(heads), Some(message)) = (&mut self.file, self.next) else { return Ok(()) };
        heads.at += message.bytes();
        self.next = heads.look()?;
        if self.next.is_none() {
            self.file = None;
        }
        Ok(())
    }

    /// The number of the file.
    pub fn descriptor(&self) -> Option<i32> {
        self.file.as_ref()?.file.descriptor()
    }
}

/// A message whose payload is in the file.
pub(super) struct SpilledMessage<'a, F> {
    pub message: Spilled,
    file: &'a F,
    at: u64,
}

impl<F: SpilledFile> Content for SpilledMessage<'_, F> {
    unsafe fn copy_to(&self, to: *mut u8, len: usize) -> io::Result<()> {
        if len as u64 > self.message.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // SAFETY: the caller vouches for `len` bytes at `to`, which nothing else refers to.
        let to = unsafe { std::slice::from_raw_parts_mut(to, len) };
        self.file.read(self.at, to)?;
        // Of a message that is cut short, what is left out is not read.
        if len as u64 == self.message.len && PayloadCheck::of(to) != self.message.check {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its check is wrong"));
        }
        Ok(())
    }
}

fn unreadable(e: io::Error) -> RankError {
    RankError::Content(format!("on disk: {e}"))
}

fn out_of_order(source: u32) -> RankError {
    RankError::Damaged { source: Rank(source), what: "its messages on disk are out of order" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_ledger::Envelope;

    impl SpilledFile for Vec<u8> {
        fn read(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
            let from = self.get(at as usize..at as usize + to.len());
            to.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        }
        fn descriptor(&self) -> Option<i32> {
            None
        }
    }

    const ALL: [(u32, u64); 6] = [(1, 1), (0, 1), (1, 2), (0, 2), (1, 3), (0, 3)];

    fn payload(source: u32, ssn: u64) -> Vec<u8> {
        vec![source as u8 + ssn as u8; 100 * ssn as usize - 99]
    }

    /// Three bytes that mean nothing, and the messages.
    fn file() -> Vec<u8> {
        let mut bytes = vec![9; 3];
        for (source, ssn) in ALL {
            let payload = payload(source, ssn);
            let len = payload.len() as u64;
            let check = PayloadCheck::of(&payload);
            let message = Spilled { source, ssn, envelope: Envelope::default(), len, check };
            let end = bytes.len() + message.bytes() as usize;
            bytes.extend(message.head());
            bytes.extend(payload);
            bytes.resize(end, 0);
        }
        bytes
    }

    fn opened(shown: &[u64], file: Vec<u8>) -> Result<SpilledMessages<Vec<u8>>, RankError> {
        let end = file.len() as u64;
        SpilledMessages::behind(shown, Some(SpilledRange { file, begin: 3, end }))
    }

    fn content(spilled: &SpilledMessages<Vec<u8>>, source: u32, ssn: u64) -> io::Result<Vec<u8>> {
        let message = spilled.first(source, ssn).unwrap().unwrap();
        let mut bytes = vec![0; message.message.len as usize];
        // SAFETY: there are so many bytes.
        unsafe { message.copy_to(bytes.as_mut_ptr(), bytes.len())? };
        Ok(bytes)
    }

    #[test]
    fn messages_come_in_their_order_behind_what_was_shown() {
        for shown in 0..=ALL.len() {
            let of = |rank| ALL[..shown].iter().filter(|(source, _)| *source == rank).count();
            let mut spilled = opened(&[of(0) as u64, of(1) as u64], file()).unwrap();
            for (source, ssn) in &ALL[shown..] {
                assert_eq!(spilled.newest(*source), 3);
                assert!(spilled.first(*source, ssn + 1).is_err() && !spilled.is_empty());
                assert!(spilled.first(1 - source, *ssn).is_err());
                assert_eq!(content(&spilled, *source, *ssn).unwrap(), payload(*source, *ssn));
                spilled.pass().unwrap();
            }
            assert!(spilled.is_empty() && spilled.first(1, 4).unwrap().is_none());
        }
        let none = SpilledMessages::<Vec<u8>>::behind(&[0, 0], None).unwrap();
        assert!(none.is_empty() && none.newest(1) == 0);
    }

    #[test]
    fn a_changed_bit_is_found_before_the_message_is_shown() {
        let whole = file();
        for bit in 3 * 8..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let Ok(mut spilled) = opened(&[0, 0], damaged) else { continue };
            let shown = ALL.iter().take_while(|(source, ssn)| {
                let sound = content(&spilled, *source, *ssn);
                if let Ok(bytes) = &sound {
                    assert_eq!(*bytes, payload(*source, *ssn), "bit {bit}");
                    spilled.pass().unwrap();
                }
                sound.is_ok()
            });
            // Bytes behind a payload mean nothing.
            let _ = shown.count();
        }
        assert!(opened(&[0, 0], whole[..whole.len() - 1].to_vec()).is_err());
        assert!(opened(&[0], whole).is_err(), "there is no such rank");
    }
}
