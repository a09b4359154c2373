//! How files were opened, as records say it, and which record says that a file was cut. It must
//! know nothing of the files themselves.

use super::records::{Part, Record};

/// Numbers of the functions that open and cut files, in what is recorded.
pub const OPEN: u8 = 40;
pub const FOPEN: u8 = 41;
pub const CUT: u8 = 83;

/// How a file was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// It was empty.
    Empty,
    /// To append to what was there.
    Append,
    /// It was open in an image, and written at its end.
    AtTheEnd,
    /// To write anywhere in what was there.
    Anywhere,
    /// To read it.
    Read,
    /// It is a directory.
    Directory,
}

impl How {
    /// As a record says it.
    pub fn of(number: i64) -> How {
        match number {
            0 => How::Empty,
            1 => How::Append,
            2 => How::AtTheEnd,
            3 => How::Anywhere,
            5 => How::Directory,
            _ => How::Read,
        }
    }
}

/// The number of the file that a call has cut or emptied, and its size then, as its record says;
/// `None`: it has done something else.
pub fn cut_by(what: u8, part: Part, record: &mut Record) -> Option<(u64, u64)> {
    match (what, part) {
        (OPEN | FOPEN, Part::Opened) if How::of(record.number()) == How::Empty => {
            Some((record.identity().ino, 0))
        }
        (CUT, Part::Result) if record.number() == 0 => {
            Some((record.number() as u64, record.number() as u64))
        }
        _ => None,
    }
}
