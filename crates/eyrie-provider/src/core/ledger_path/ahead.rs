//! Copies of large messages that their senders still write: what is there already goes where the
//! message will go when it is whole. Nothing becomes visible by that, and matching decides as ever:
//! what was copied counts only when the same receive takes the message, and all of it is copied
//! again otherwise. A place that another message or the program could use meanwhile must never be
//! written to, so that only receives from this one source are.

use crate::core::matching::Place;
use eyrie_ledger::memory::View;
use eyrie_ledger::reader::Reader;
use eyrie_ledger::{Entry, Filled};

/// What was copied of the next message of a source.
#[derive(Clone, Copy, Default)]
pub struct Ahead {
    /// Its number, and how often it was begun anew.
    message: (u64, u8),
    /// The receive that was copied to.
    receive: u64,
    bytes: usize,
}

/// So many bytes of a message lie at this place already.
#[derive(Clone, Copy)]
pub struct Copied {
    place: *const u8,
    bytes: usize,
}

impl Copied {
    const NOTHING: Copied = Copied { place: std::ptr::null(), bytes: 0 };

    /// How many bytes need not be copied to this place.
    pub fn at(&self, to: *const u8) -> usize {
        if to == self.place {
            self.bytes
        } else {
            0
        }
    }
}

impl Ahead {
    /// Copies what is there of a message that is not whole.
    pub fn copy<V: View>(
        &mut self,
        reader: &Reader<V>,
        entry: &Entry,
        filled: Filled,
        place: Option<Place>,
    ) {
        let Some(place) = place else { return };
        let message = (entry.ssn, filled.turn);
        if (self.message, self.receive) != (message, place.receive) {
            *self = Ahead { message, receive: place.receive, bytes: 0 };
        }
        let there = (filled.bytes as usize).min(place.len);
        if there > self.bytes {
            // SAFETY: the MPI library gave this buffer to a receive that is still posted. It does
            // not use it before the receive is over. `place.len` bytes of it are for this message.
            let to = unsafe {
                let to = place.buffer.add(self.bytes);
                std::slice::from_raw_parts_mut(to, there - self.bytes)
            };
            reader.read(entry, self.bytes as u64, to);
            self.bytes = there;
        }
    }

    /// What was copied of a message that is whole, if the receive that takes it now is the same.
    pub fn copied(
        &mut self,
        entry: &Entry,
        filled: Filled,
        place: impl Fn() -> Option<Place>,
    ) -> Copied {
        let Ahead { message, receive, bytes } = std::mem::take(self);
        if bytes == 0 || message != (entry.ssn, filled.turn) {
            return Copied::NOTHING;
        }
        match place() {
            Some(place) if place.receive == receive => Copied { place: place.buffer, bytes },
            _ => Copied::NOTHING,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_ledger::heap::Heap;
    use eyrie_ledger::layout::Layout;
    use eyrie_ledger::region;
    use eyrie_ledger::writer::{Message, Sent, Sizes, Writer};
    use eyrie_ledger::Envelope;

    const BYTES: u64 = 4 << 20;
    const LONG: usize = 400 << 10;
    /// Stores of a sender that dies in the middle of a message that long: words of 8 bytes.
    const STORES: u64 = 20_000;

    fn layout() -> Layout {
        Layout::new(0, 2, BYTES)
    }

    fn memory() -> Heap {
        let memory = Heap::new(BYTES);
        region::prepare(&memory, &layout(), 1, BYTES);
        memory
    }

    /// An incarnation of the sender sends this. If it dies, it stores nothing any more soon after
    /// it has begun.
    fn send(memory: &Heap, payload: &[u8], dies: bool) -> Sent {
        let mut writer = Writer::open(memory, layout(), |_| 0, Sizes::default()).unwrap();
        let message = Message { to: 1, envelope: Envelope::default(), clock: 0, payload };
        let begun = || {
            if dies && !memory.stopped() {
                memory.stop_after(STORES);
            }
        };
        let sent = writer.append(&message, begun).unwrap();
        memory.stop_after(u64::MAX);
        sent
    }

    fn place(receive: u64, buffer: &mut [u8]) -> Place {
        Place { receive, buffer: buffer.as_mut_ptr(), len: buffer.len() }
    }

    /// Copies ahead into `buffer` while a part of `first` is there, and then, when all of `second`
    /// is, says what need not be copied to where `later` says.
    fn copied(first: &[u8], second: &[u8], buffer: &mut [u8], later: Place) -> Copied {
        let memory = memory();
        send(&memory, first, true);
        let mut reader = Reader::new(&memory, layout(), 1, 0);
        let mut ahead = Ahead::default();
        let entry = reader.look().unwrap().unwrap();
        let filled = reader.progress(&entry).unwrap();
        assert!(filled.bytes > 0 && filled.bytes < entry.len);
        ahead.copy(&reader, &entry, filled, Some(place(1, buffer)));
        assert_eq!(ahead.bytes, (filled.bytes as usize).min(buffer.len()));
        assert_eq!(buffer[..ahead.bytes], first[..ahead.bytes]);
        assert_eq!(send(&memory, second, false), Sent::Again);
        let entry = reader.look().unwrap().unwrap();
        let filled = reader.progress(&entry).unwrap();
        assert_eq!(filled.bytes, entry.len);
        ahead.copied(&entry, filled, || Some(later))
    }

    #[test]
    fn what_was_copied_ahead_is_not_copied_again() {
        let payload = vec![7; LONG];
        let mut buffer = vec![0; LONG];
        let later = place(1, &mut buffer);
        let copied = copied(&payload, &payload, &mut buffer, later);
        assert!(copied.at(later.buffer) > 0 && copied.at(later.buffer) < LONG);
        assert_eq!(copied.at(later.buffer.wrapping_add(8)), 0, "another place");
    }

    #[test]
    fn a_short_buffer_gets_no_more_than_it_has() {
        let payload = vec![7; LONG];
        let mut buffer = vec![0; 1000];
        let later = place(1, &mut buffer);
        assert_eq!(copied(&payload, &payload, &mut buffer, later).at(later.buffer), 1000);
    }

    #[test]
    fn what_was_copied_for_another_receive_means_nothing() {
        let payload = vec![7; LONG];
        let mut buffer = vec![0; LONG];
        // The program may have used the same buffer for something else meanwhile.
        let later = place(2, &mut buffer);
        assert_eq!(copied(&payload, &payload, &mut buffer, later).at(later.buffer), 0);
    }

    #[test]
    fn what_a_sender_that_died_had_written_means_nothing_when_it_writes_something_else() {
        let first = vec![7; LONG];
        let second = vec![8; LONG];
        let mut buffer = vec![0; LONG];
        let later = place(1, &mut buffer);
        assert_eq!(copied(&first, &second, &mut buffer, later).at(later.buffer), 0);
    }
}
