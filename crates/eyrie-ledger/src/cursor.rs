//! A place in a channel: the next message that is looked at. The reader has one for its source, the
//! writer one for each destination. Everything that it meets may be nonsense: then it says so, and
//! stays where it is. It never waits, and what it follows has an end.

use crate::entry::{self, Entry, Form};
use crate::error::LedgerError;
use crate::extents::Extent;
use crate::layout::{channel, extent, Channel, Layout, LINE, MOST_TRIES};
use crate::memory::View;
use crate::mutation::{active, Mutation};

/// Jumps that may follow one another without a message.
const MOST_JUMPS: usize = 16;

/// A place in a channel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    layout: Layout,
    index: u32,
    seed: u32,
    /// The message that comes next.
    pub ssn: u64,
    /// Where it lies, or will; 0: not known yet.
    pub at: u64,
    pub end: u64,
    /// The extent that it lies in.
    pub extent: u64,
}

impl Cursor {
    /// The place of message `ssn` of a channel, which is looked up when it is first needed.
    pub fn new(layout: Layout, index: u32, ssn: u64) -> Cursor {
        Cursor { layout, index, seed: layout.seed(index), ssn, at: 0, end: 0, extent: 0 }
    }

    /// The next message, if it is there.
    #[inline]
    pub fn look(&mut self, view: &impl View) -> Result<Option<Entry>, LedgerError> {
        if self.at != 0 {
            let word = self.word(view);
            return if word == 0 { Ok(None) } else { self.entry(view, word) };
        }
        self.look_up(view)
    }

    /// Goes on behind this message.
    #[inline]
    pub fn pass(&mut self, entry: &Entry) {
        self.at = entry.at + entry.bytes();
        self.ssn += 1;
    }

    /// Goes to the start of an extent.
    pub fn enter(&mut self, extent: &Extent) {
        (self.at, self.end, self.extent) = (extent.content(), extent.end, extent.at);
    }

    /// What checks of the channel begin with.
    pub const fn seed(&self) -> u32 {
        self.seed
    }

    pub fn damaged(&self, what: &'static str) -> LedgerError {
        let channel = if self.index < self.layout.ranks() {
            Channel::Rank(self.index)
        } else {
            Channel::Order
        };
        let behind = self.ssn.saturating_sub(1);
        LedgerError::Damaged { rank: self.layout.rank(), channel, behind, what }
    }

    #[inline]
    fn word(&self, view: &impl View) -> u64 {
        if active(Mutation::RelaxedLook) {
            view.load(self.at)
        } else {
            view.load_acquire(self.at)
        }
    }

    /// The message that begins with this word, here or in the extents that jumps lead to.
    #[inline]
    fn entry(&mut self, view: &impl View, mut word: u64) -> Result<Option<Entry>, LedgerError> {
        for _ in 0..MOST_JUMPS {
            if word == 0 {
                return Ok(None);
            }
            let entry = Entry::read(view, self.seed, self.at, self.ssn, word)
                .map_err(|what| self.damaged(what))?;
            if entry.form != Form::Jump {
                // A jump must fit behind each message.
                let fits = entry::fits(&self.layout, self.at, entry.bytes() + LINE, self.end);
                return if fits {
                    Ok(Some(entry))
                } else {
                    Err(self.damaged("it is longer than its extent"))
                };
            }
            let to = entry.envelope.words[0];
            let extent = self.extent_at(view, to)?;
            if extent.first != self.ssn {
                return Err(self.damaged("it goes on in an extent of other messages"));
            }
            self.enter(&extent);
            word = self.word(view);
        }
        Err(self.damaged("it goes on without an end"))
    }

    fn extent_at(&self, view: &impl View, at: u64) -> Result<Extent, LedgerError> {
        Extent::read(view, &self.layout, self.index, at).map_err(|what| self.damaged(what))
    }

    /// Looks the place up from the start of the chain. Meanwhile the writer may take extents off
    /// it: then what was read may be nonsense, and it is looked up again.
    #[cold]
    fn look_up(&mut self, view: &impl View) -> Result<Option<Entry>, LedgerError> {
        let word = self.layout.channel(self.index) + channel::FIRST;
        for _ in 0..MOST_TRIES {
            let first = if active(Mutation::RelaxedFirstLook) {
                view.load(word)
            } else {
                view.load_acquire(word)
            };
            if first == 0 {
                return match self.ssn {
                    1 => Ok(None),
                    _ => Err(self.damaged("its messages are missing")),
                };
            }
            let mut found = *self;
            let entry = found.walk(view, first).and_then(|()| found.look(view));
            view.fence();
            if !active(Mutation::NoSecondLook) && view.load(word) != first {
                continue;
            }
            let entry = entry?;
            *self = found;
            return Ok(entry);
        }
        Err(self.damaged("its start does not stay where it is"))
    }

    /// Goes to the place of the next message from the first extent of the chain.
    fn walk(&mut self, view: &impl View, first: u64) -> Result<(), LedgerError> {
        let mut extent = self.extent_at(view, first)?;
        if extent.first > self.ssn {
            return Err(LedgerError::Gone {
                rank: self.layout.rank(),
                channel: Channel::Rank(self.index),
                wanted: self.ssn,
                first: extent.first,
            });
        }
        loop {
            let next = view.load_acquire(extent.at + extent::NEXT);
            if next == 0 {
                break;
            }
            let next = self.extent_at(view, next)?;
            if !next.follows(&extent) {
                return Err(self.damaged("its extents lead in a circle"));
            }
            if next.first > self.ssn {
                break;
            }
            extent = next;
        }
        let wanted = std::mem::replace(&mut self.ssn, extent.first);
        self.enter(&extent);
        while self.ssn < wanted {
            match self.look(view)? {
                Some(entry) => self.pass(&entry),
                None => return Err(self.damaged("the next one is missing")),
            }
        }
        Ok(())
    }
}

/// A writer that writes nonsense whose checks are right.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::seal;
    use crate::entry::{filled_word, first_word, jump, Envelope, Filled, Line};
    use crate::heap::Heap;
    use crate::memory::Memory;
    use crate::reader::Reader;
    use crate::region;
    use crate::writer::{Message, Sizes, Writer};

    const BYTES: u64 = 1 << 20;

    fn layout() -> Layout {
        Layout::new(0, 2, BYTES)
    }

    /// A region with `sent` messages of one line to rank 1.
    fn region_with(sent: u64) -> Heap {
        let memory = Heap::new(BYTES);
        region::prepare(&memory, &layout(), 1, BYTES);
        let mut writer = Writer::open(&memory, layout(), |_| 0, Sizes::default()).unwrap();
        let message = Message { to: 1, envelope: Envelope::default(), clock: 0, payload: b"sound" };
        (0..sent).for_each(|_| assert!(writer.append(&message, || ()).is_ok()));
        memory
    }

    /// Publishes a line as message `ssn`.
    fn publish(memory: &Heap, at: u64, ssn: u64, line: &Line) {
        for (word, at) in line.iter().zip((at + 8..).step_by(8)) {
            memory.store(at, *word);
        }
        memory.store(at, first_word(layout().seed(1), ssn, line));
    }

    /// An extent of channel 1 where there is none.
    fn extent(memory: &Heap, at: u64, first: u64, number: u64) {
        memory.store(at + extent::SIZE, seal(4096, layout().salt(at)));
        Extent { at, end: at + 4096, first, base: [number, 0] }.write(memory, &layout(), 1);
        memory.store(at + LINE, 0);
    }

    /// What a reader says behind `count` messages.
    fn said(memory: &Heap, count: u64) -> String {
        let error = Reader::new(memory, layout(), 1, count).look().unwrap_err();
        assert!(matches!(error, LedgerError::Damaged { behind, .. } if behind <= count), "{error}");
        error.to_string()
    }

    #[test]
    fn jumps_in_a_circle_end() {
        let memory = region_with(1);
        let at = layout().extents() + 2 * LINE;
        let other = layout().extents() + 4096;
        extent(&memory, other, 2, 1);
        publish(&memory, at, 2, &jump(other));
        publish(&memory, other + LINE, 2, &jump(other));
        assert!(said(&memory, 1).contains("it goes on without an end"));
    }

    #[test]
    fn a_jump_leads_to_an_extent_of_the_next_message_only() {
        let memory = region_with(3);
        let at = layout().extents() + 4 * LINE;
        let other = layout().extents() + 4096;
        extent(&memory, other, 9, 1);
        for (to, what) in [
            (other, "it goes on in an extent of other messages"),
            (layout().extents(), "it goes on in an extent of other messages"),
            (other + 4096, "a size is nonsense"),
            (other + 64, "an extent lies outside"),
            (BYTES, "an extent lies outside"),
            (0, "an extent lies outside"),
            (u64::MAX, "an extent lies outside"),
        ] {
            publish(&memory, at, 4, &jump(to));
            assert!(said(&memory, 3).contains(what), "{to:#x}: {}", said(&memory, 3));
        }
    }

    #[test]
    fn heads_in_a_circle_end() {
        let memory = region_with(3);
        let first = layout().extents();
        memory.store(first + extent::NEXT, first);
        assert!(said(&memory, 3).contains("its extents lead in a circle"));
        let other = first + 4096;
        extent(&memory, other, 4, 1);
        memory.store(first + extent::NEXT, other);
        memory.store(other + extent::NEXT, first);
        assert!(said(&memory, 3).contains("its extents lead in a circle"));
        let open = Writer::open(&memory, layout(), |_| 0, Sizes::default());
        assert!(open.unwrap_err().to_string().contains("its extents lead in a circle"));
    }

    #[test]
    fn a_message_does_not_reach_beyond_its_extent() {
        let memory = region_with(0);
        extent(&memory, layout().extents(), 1, 0);
        memory.store(layout().channel(1) + channel::FIRST, layout().extents());
        let at = layout().extents() + LINE;
        let plain = 2 << 40;
        // 4096 bytes hold the head, this line, this payload and a jump.
        for (len, fits) in [(4096 - 192, true), (4096 - 191, false), ((1 << 40) - 1, false)] {
            publish(&memory, at, 1, &[plain | len, 0, 0, 0, 0, 0, 0]);
            let look = Reader::new(&memory, layout(), 1, 0).look();
            assert_eq!(look.is_ok(), fits, "{len} bytes");
        }
    }

    #[test]
    fn no_more_of_a_message_is_written_than_it_has() {
        let memory = region_with(0);
        extent(&memory, layout().extents(), 1, 0);
        memory.store(layout().channel(1) + channel::FIRST, layout().extents());
        let at = layout().extents() + LINE;
        publish(&memory, at, 1, &[3 << 40 | 1000, 0, 0, 0, 0, 0, 0]);
        for (filled, sound) in [(0, true), (1000, true), (1001, false)] {
            memory.store(at + LINE, filled_word(at + LINE, 1, Filled { bytes: filled, turn: 9 }));
            let mut reader = Reader::new(&memory, layout(), 1, 0);
            let entry = reader.look().unwrap().unwrap();
            assert_eq!(reader.filled(&entry).is_ok(), sound, "{filled} of 1000 bytes");
        }
    }
}
