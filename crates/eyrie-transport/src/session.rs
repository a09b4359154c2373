//! The state of a session between two roles, which outlives its connections. Numbered messages
//! (letters) are kept until the other side has confirmed them, so that a new connection continues
//! where the last one ended. No letter is received twice, and none is left out. There is no socket
//! here.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::Arc;

/// A message in the form in which it is sent.
pub type Frame = Arc<[u8]>;

/// Precedes each message, and is sent alone as a confirmation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    pub kind: Kind,
    /// The number of the last letter that the writer of this header has received.
    pub heard: u64,
}

/// What follows a [`Header`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The letter of this number, from 1.
    Letter(u64),
    /// A message that is not kept: it is lost when its connection ends.
    Passing,
    /// Nothing: the first header on each connection, and confirmations later.
    Nothing,
}

const PASSING: u64 = 0;
const NOTHING: u64 = u64::MAX;

impl Header {
    /// Its length in bytes.
    pub const LEN: usize = 16;

    /// As bytes.
    pub fn encode(self) -> [u8; Header::LEN] {
        let kind = match self.kind {
            Kind::Letter(number) => number,
            Kind::Passing => PASSING,
            Kind::Nothing => NOTHING,
        };
        let mut bytes = [0; Header::LEN];
        bytes[..8].copy_from_slice(&kind.to_le_bytes());
        bytes[8..].copy_from_slice(&self.heard.to_le_bytes());
        bytes
    }

    /// Decodes a header.
    pub fn decode(bytes: &[u8; Header::LEN]) -> Header {
        let number = |at: usize| {
            let bytes: [u8; 8] = bytes[at..at + 8].try_into().expect("eight of sixteen bytes");
            u64::from_le_bytes(bytes)
        };
        let kind = match number(0) {
            PASSING => Kind::Passing,
            NOTHING => Kind::Nothing,
            letter => Kind::Letter(letter),
        };
        Header { kind, heard: number(8) }
    }

    /// Reads a header.
    ///
    /// # Errors
    /// The reader's.
    pub fn read(input: &mut impl Read) -> io::Result<Header> {
        let mut bytes = [0; Header::LEN];
        input.read_exact(&mut bytes)?;
        Ok(Header::decode(&bytes))
    }

    /// Reads the first header of a connection, which says what was received over earlier ones.
    pub fn read_first(input: &mut impl Read) -> io::Result<u64> {
        match Header::read(input)? {
            Header { kind: Kind::Nothing, heard } => Ok(heard),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the connection does not begin with a greeting",
            )),
        }
    }
}

/// Letters that the other side has not confirmed, oldest first.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Number of the last letter that was ever written.
    last: u64,
    kept: VecDeque<Frame>,
    bytes: usize,
}

impl Outbox {
    /// An outbox that has written letters up to `last`, of which it still keeps these.
    pub fn of(last: u64, kept: impl IntoIterator<Item = Frame>) -> Outbox {
        let kept: VecDeque<Frame> = kept.into_iter().collect();
        let bytes = kept.iter().map(|frame| frame.len()).sum();
        Outbox { last, kept, bytes }
    }

    /// Number of the last letter that was ever written.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Keeps a letter; returns its number.
    pub fn put(&mut self, frame: Frame) -> u64 {
        self.last += 1;
        self.bytes += frame.len();
        self.kept.push_back(frame);
        self.last
    }

    /// Removes all letters up to this one, which the other side has received.
    ///
    /// # Errors
    /// `InvalidData` when it has received more than was ever written.
    pub fn confirm(&mut self, heard: u64) -> io::Result<()> {
        if heard > self.last {
            let text =
                format!("the peer confirms {heard} letters, but only {} were written", self.last);
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        while self.last - (self.kept.len() as u64) < heard {
            let frame = self.kept.pop_front();
            self.bytes -= frame.map_or(0, |frame| frame.len());
        }
        Ok(())
    }

    /// All that is kept, with its numbers.
    pub fn kept(&self) -> impl Iterator<Item = (u64, &Frame)> {
        let first = self.last - self.kept.len() as u64 + 1;
        self.kept.iter().enumerate().map(move |(i, frame)| (first + i as u64, frame))
    }

    /// Bytes that are kept.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Most letters, and bytes of them, that are received before a confirmation is due.
const CONFIRM_LETTERS: u64 = 64;
const CONFIRM_BYTES: usize = 64 * 1024;

/// What was received from the other side.
#[derive(Debug, Default)]
pub struct Inbox {
    heard: u64,
    confirmed: u64,
    unconfirmed_bytes: usize,
}

impl Inbox {
    /// An inbox that has received letters up to this number and has not confirmed them.
    pub fn of(heard: u64) -> Inbox {
        Inbox { heard, ..Inbox::default() }
    }

    /// Number of the last letter that was received.
    pub fn heard(&self) -> u64 {
        self.heard
    }

    /// Records a message of so many bytes, and returns whether it is new.
    ///
    /// # Errors
    /// `InvalidData` when letters before it are missing.
    pub fn hear(&mut self, kind: Kind, bytes: usize) -> io::Result<bool> {
        match kind {
            Kind::Passing => Ok(true),
            Kind::Nothing => Ok(false),
            Kind::Letter(number) if number <= self.heard => Ok(false),
            Kind::Letter(number) if number == self.heard + 1 => {
                self.heard = number;
                self.unconfirmed_bytes += bytes;
                Ok(true)
            }
            Kind::Letter(number) => {
                let text = format!("letter {number} arrived after letter {}", self.heard);
                Err(io::Error::new(io::ErrorKind::InvalidData, text))
            }
        }
    }

    /// The number to confirm in a header that is written now.
    pub fn confirm(&mut self) -> u64 {
        self.confirmed = self.heard;
        self.unconfirmed_bytes = 0;
        self.heard
    }

    /// Whether the other side keeps so much that it should get a confirmation before the next
    /// message.
    pub fn is_due(&self) -> bool {
        self.heard - self.confirmed >= CONFIRM_LETTERS || self.unconfirmed_bytes >= CONFIRM_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn headers_come_back() {
        for kind in [Kind::Letter(1), Kind::Letter(77), Kind::Passing, Kind::Nothing] {
            let header = Header { kind, heard: 5 };
            assert_eq!(Header::decode(&header.encode()), header);
        }
        let first = Header { kind: Kind::Nothing, heard: 9 }.encode();
        assert_eq!(Header::read_first(&mut &first[..]).unwrap(), 9);
        assert!(Header::read_first(&mut &first[..15]).is_err());
        let other = Header { kind: Kind::Letter(1), heard: 9 }.encode();
        assert!(Header::read_first(&mut &other[..]).is_err());
    }

    #[test]
    fn confirmations_of_unwritten_letters_and_gaps_between_letters_are_refused() {
        let mut outbox = Outbox::default();
        outbox.put([1][..].into());
        assert!(outbox.confirm(2).is_err() && outbox.confirm(1).is_ok());
        assert!(Inbox::default().hear(Kind::Letter(2), 1).is_err());
    }

    proptest! {
        /// Connections break at any letter, and any confirmation may be lost.
        #[test]
        fn every_letter_is_received_once_and_in_order(
            connections in prop::collection::vec((0usize..8, 0usize..8), 1..20),
        ) {
            let mut outbox = Outbox::default();
            let mut inbox = Inbox::default();
            let mut written = 0u8;
            let mut heard = Vec::new();
            for (new, through) in connections {
                outbox.confirm(inbox.confirm()).unwrap();
                let mut wire: Vec<(u64, Frame)> =
                    outbox.kept().map(|(n, frame)| (n, Arc::clone(frame))).collect();
                for _ in 0..new {
                    written += 1;
                    let frame: Frame = [written][..].into();
                    wire.push((outbox.put(Arc::clone(&frame)), frame));
                }
                for (n, (number, frame)) in wire.into_iter().take(through).enumerate() {
                    if inbox.hear(Kind::Letter(number), frame.len()).unwrap() {
                        heard.push(frame[0]);
                    }
                    // Every second confirmation is lost.
                    let says = inbox.confirm();
                    if n % 2 == 0 {
                        outbox.confirm(says).unwrap();
                    }
                }
            }
            for (number, frame) in outbox.kept() {
                if inbox.hear(Kind::Letter(number), frame.len()).unwrap() {
                    heard.push(frame[0]);
                }
            }
            prop_assert_eq!(heard, (1..=written).collect::<Vec<_>>());
            outbox.confirm(inbox.confirm()).unwrap();
            prop_assert_eq!(outbox.bytes(), 0);
        }
    }
}
