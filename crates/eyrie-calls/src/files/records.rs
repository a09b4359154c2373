//! What is written down of a call on files: which call it is, and numbers. A record is for one
//! call: the same function with the same path.

use super::kernel::Identity;
use super::standing_in::known;
use crate::observed::{stream, ObservedStream};
use crate::stream::{folded, number, put_number, unfolded, Sink};
use libc::c_char;
use std::ffi::CStr;

/// What a record says.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The call is about to be made.
    Intent,
    /// What became of it: a number, or a negative errno.
    Result,
    /// A file was opened: how, which one, and its size.
    Opened,
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
    bytes: [u8; 64],
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
        // SAFETY: handed on to the caller.
        let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
        let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Call { what, path: (hash >> 32) as u16 }
    }

    fn front(self, part: Part) -> [u8; 4] {
        let [low, high] = self.path.to_le_bytes();
        [self.what, part as u8, low, high]
    }

    /// The record of this call that comes next, when it is known.
    pub fn again(self, part: Part) -> Option<Record> {
        let front = self.front(part);
        let record = stream_of_call().record_again(front)?;
        known();
        Some(Record(&record[front.len()..]))
    }

    /// What became of it, when that comes next.
    pub fn result_again(self) -> Option<i64> {
        self.again(Part::Result).map(|mut record| record.number())
    }

    /// At most five numbers.
    pub fn write(self, part: Part, numbers: &[i64]) {
        self.write_with(part, numbers, &[]);
    }

    /// The same with some content.
    pub fn write_with(self, part: Part, numbers: &[i64], content: &[u8]) {
        let mut head = Head { bytes: [0; 64], len: 0 };
        self.front(part).iter().for_each(|byte| head.push(*byte));
        for n in numbers {
            put_number(&mut head, folded(*n));
        }
        stream_of_call().write_record(&head.bytes[..head.len], content);
    }

    pub fn write_result(self, value: i64) -> i64 {
        self.write(Part::Result, &[value]);
        value
    }
}

/// The stream, for a short while.
fn stream_of_call() -> &'static mut ObservedStream {
    // SAFETY: all of this module runs in calls that are written down.
    unsafe { stream() }
}

/// Whether what the rank does now was never done before.
pub fn is_new() -> bool {
    stream_of_call().is_new()
}

/// The same of a call that changes files.
pub fn is_new_change() -> bool {
    stream_of_call().ends_without_record()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_record_are_read_as_they_were_written() {
        let mut head = Head { bytes: [0; 64], len: 0 };
        for n in [0, -1, i64::MAX, i64::MIN, 7] {
            put_number(&mut head, folded(n));
        }
        let bytes: &'static [u8] = Box::leak(head.bytes[..head.len].to_vec().into());
        let mut record = Record(bytes);
        let read: Vec<i64> = (0..6).map(|_| record.number()).collect();
        assert_eq!(read, [0, -1, i64::MAX, i64::MIN, 7, 0]);
    }
}
