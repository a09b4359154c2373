//! The records of calls on files: which call it is, and numbers. A record is for one call: the same
//! function with the same path.

use super::kernel::Identity;
use super::saying;
use super::storing::store;
use crate::observed::{stream, ObservedStream, Recorded};
use crate::stream::{folded, number, put_number, unfolded, Sink};
use libc::c_char;
use std::ffi::CStr;

/// Most bytes of a record but for its content.
const HEAD: usize = 64;
/// Most bytes of content in one record.
const MOST_PIECE: usize = 1 << 20;

/// What a record says.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The call is about to be made.
    Intent,
    /// What became of it: a number, or a negative errno.
    Result,
    /// A file was opened: how, which one, and its size.
    Opened,
    /// What a call gave: a number, and as many bytes or fewer.
    Content,
    /// More of them.
    More,
    /// Bytes were appended: how many, and where the file ended then.
    Appended,
    /// Bytes were written over others: how many, the file's size, and numbers of what was there.
    Over,
}

/// A call.
#[derive(Clone, Copy)]
pub struct Call {
    what: u8,
    path: u16,
}

/// The numbers of a record.
pub struct Record(&'static [u8]);

impl Record {
    pub fn number(&mut self) -> i64 {
        unfolded(number(&mut self.0).unwrap_or(0))
    }

    /// What comes behind the numbers.
    pub fn content(self) -> &'static [u8] {
        self.0
    }

    pub fn identity(&mut self) -> Identity {
        Identity { ino: self.number() as u64, born_ns: self.number() }
    }
}

/// A record that is being made.
struct Head {
    bytes: [u8; HEAD],
    len: usize,
}

impl Sink for Head {
    fn push(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }
}

impl Call {
    /// # Safety
    /// `path` must be a C string.
    pub unsafe fn new(what: u8, path: *const c_char) -> Call {
        // SAFETY: the caller passes a C string, as its contract says.
        let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
        let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Call { what, path: (hash >> 32) as u16 }
    }

    /// The same of a path that may be none.
    ///
    /// # Safety
    /// `path` must be null or a C string.
    pub unsafe fn of(what: u8, path: *const c_char) -> Call {
        if path.is_null() {
            Call::on_open(what)
        } else {
            // SAFETY: the caller keeps this contract, which is that of the function called.
            unsafe { Call::new(what, path) }
        }
    }

    /// A call on an open file. Its descriptor may have another number in each process of a rank.
    pub fn on_open(what: u8) -> Call {
        Call { what, path: 0 }
    }

    /// Whether it comes next and came out as it was asked for ([`Call::write_done`]).
    pub fn done_again(self) -> bool {
        stream_of_call().done_again(self.kind())
    }

    /// It came out as it was asked for; a rank that is executed again gets the same from the file.
    pub fn write_done(self) {
        stream_of_call().write_done(self.kind());
    }

    /// Its function, and a part of its path.
    fn kind(self) -> u8 {
        (self.what << 3 ^ self.what >> 5 ^ self.path as u8).max(1)
    }

    fn front(self, part: Part) -> [u8; 4] {
        let [low, high] = self.path.to_le_bytes();
        [self.what, part as u8, low, high]
    }

    /// The record of this call that comes next, when it is known.
    pub fn again(self, part: Part) -> Option<Record> {
        let front = self.front(part);
        let record = stream_of_call().record_again(front)?;
        Some(Record(&record[front.len()..]))
    }

    /// What became of it, when that comes next.
    pub fn result_again(self) -> Option<i64> {
        self.again(Part::Result).map(|mut record| record.number())
    }

    /// Writes what a call gave, in pieces: `piece` is asked for the bytes from a place on, of which
    /// it may give fewer, up to a number.
    pub fn write_content<'a>(self, n: i64, piece: &mut dyn FnMut(usize, usize) -> &'a [u8]) {
        let len = usize::try_from(n).unwrap_or(0);
        let mut done = 0;
        loop {
            let bytes = if done < len { piece(done, MOST_PIECE.min(len - done)) } else { &[] };
            if !stream_of_call().has_room_for(bytes.len() + HEAD) {
                // SAFETY: this call is being recorded, of which there is one at a time.
                unsafe { store() };
            }
            match done {
                0 => self.write_with(Part::Content, &[n], bytes),
                _ => self.write_with(Part::More, &[], bytes),
            }
            done += bytes.len();
            if done >= len {
                return;
            }
        }
    }

    /// What it gave before, when that is known: `to` gets the bytes, piece by piece.
    pub fn content_again(self, to: &mut dyn FnMut(usize, &[u8])) -> Option<i64> {
        'whole: loop {
            let mut record = self.again(Part::Content)?;
            let n = record.number();
            let len = usize::try_from(n).unwrap_or(0);
            let mut done = 0;
            let mut bytes = record.content();
            loop {
                to(done, &bytes[..bytes.len().min(len - done)]);
                done += bytes.len();
                if done >= len {
                    return Some(n);
                }
                // The rank has died in the middle of writing it down, and has made the call again.
                let Some(more) = self.again(Part::More) else { continue 'whole };
                bytes = more.content();
            }
        }
    }

    /// Writes what a call gave that says a number and puts some bytes.
    pub fn write_answer(self, value: i64, bytes: &[u8]) {
        if !stream_of_call().has_room_for(bytes.len() + HEAD) {
            // SAFETY: this call is being recorded, of which there is one at a time.
            unsafe { store() };
        }
        self.write_with(Part::Result, &[value], bytes);
    }

    /// What it gave before, when that is known: the number, and the bytes.
    pub fn answer_again(self) -> Option<(i64, &'static [u8])> {
        let mut record = self.again(Part::Result)?;
        Some((record.number(), record.content()))
    }

    /// At most five numbers.
    pub fn write(self, part: Part, numbers: &[i64]) {
        self.write_with(part, numbers, &[]);
    }

    /// The same with some content.
    pub fn write_with(self, part: Part, numbers: &[i64], content: &[u8]) {
        let mut head = Head { bytes: [0; HEAD], len: 0 };
        self.front(part).iter().for_each(|byte| head.push(*byte));
        for n in numbers {
            put_number(&mut head, folded(*n));
        }
        if !stream_of_call().write_record(&head.bytes[..head.len], content) {
            saying::not_recorded();
        }
    }

    pub fn write_result(self, value: i64) -> i64 {
        self.write(Part::Result, &[value]);
        value
    }
}

/// Whether the result of such a call is known that comes later, and of which `is_it` says so.
pub fn is_ahead(call: Call, is_it: &dyn Fn(&mut Record) -> bool) -> bool {
    look_ahead(&mut |seen| {
        seen.part_of(call, Part::Result).is_some_and(|mut record| is_it(&mut record))
    })
}

/// Whether a record is known that comes later and of which `is_it` says so: it is given the number
/// of its function.
pub fn is_any_ahead(is_it: &dyn Fn(u8, Part, &mut Record) -> bool) -> bool {
    look_ahead(&mut |seen| {
        let Recorded::Record(record) = seen else { return false };
        let Some(([what, part, ..], rest)) = record.split_first_chunk::<4>() else { return false };
        let part = match *part {
            part if part == Part::Opened as u8 => Part::Opened,
            part if part == Part::Result as u8 => Part::Result,
            _ => return false,
        };
        is_it(*what, part, &mut Record(rest))
    })
}

/// Shows the calls that are known to come, until `is_enough` says so of one; whether it has.
pub fn look_ahead(is_enough: &mut dyn FnMut(&Recorded) -> bool) -> bool {
    stream_of_call().look_ahead(is_enough)
}

/// So many calls that are known are not replayed.
pub fn pass_over(calls: usize) {
    stream_of_call().pass_over(calls);
}

impl Recorded {
    /// This part of a call.
    pub fn part_of(&self, call: Call, part: Part) -> Option<Record> {
        match self {
            Recorded::Record(record) => record.strip_prefix(&call.front(part)).map(Record),
            Recorded::Done(_) => None,
        }
    }

    /// What became of a call.
    pub fn result_of(&self, call: Call) -> Option<i64> {
        self.part_of(call, Part::Result).map(|mut record| record.number())
    }

    /// Whether it is any part of a call.
    pub fn is_of(&self, call: Call) -> bool {
        match self {
            Recorded::Record(record) => {
                let [what, _, low, high] = call.front(Part::Result);
                record.first() == Some(&what) && record.get(2..4) == Some(&[low, high])
            }
            Recorded::Done(kind) => *kind == call.kind(),
        }
    }
}

/// The stream, for a short while.
fn stream_of_call() -> &'static mut ObservedStream {
    // SAFETY: all of this module runs in calls that are recorded.
    unsafe { stream() }
}

/// Whether what the rank does now was never done before: no call is left that it made. What clocks
/// said that is left is then not told any more.
pub fn is_new_change() -> bool {
    stream_of_call().ends_without_record()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_record_are_read_as_they_were_written() {
        let mut head = Head { bytes: [0; HEAD], len: 0 };
        for n in [0, -1, i64::MAX, i64::MIN, 7] {
            put_number(&mut head, folded(n));
        }
        let bytes: &'static [u8] = Box::leak(head.bytes[..head.len].to_vec().into());
        let mut record = Record(bytes);
        let read: Vec<i64> = (0..6).map(|_| record.number()).collect();
        assert_eq!(read, [0, -1, i64::MAX, i64::MIN, 7, 0]);
    }
}
