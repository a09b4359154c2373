//! A receiver, or the keeper, reads the messages of one source to one destination from the source's
//! region. It has a view only and stores nothing; so it can die anywhere. It shows a message only
//! when the whole line is sound, and says what is wrong otherwise.

use crate::cursor::Cursor;
use crate::entry::{Entry, Filled, Form};
use crate::error::LedgerError;
use crate::layout::{channel, Channel, Layout, Rank};
use crate::memory::View;

/// Reads one channel.
#[derive(Clone, Debug)]
pub struct Reader<V> {
    view: V,
    cursor: Cursor,
    newest: u64,
}

impl<V: View> Reader<V> {
    /// Reads what the rank of this region sends to rank `to`, behind message `count`.
    ///
    /// # Panics
    /// When the job has no rank `to`, or the view is shorter than the region.
    pub fn new(view: V, layout: Layout, to: Rank, count: u64) -> Reader<V> {
        assert!(to < layout.ranks(), "rank {to} of {}", layout.ranks());
        assert!(layout.end() <= view.bytes(), "a view of {} bytes", view.bytes());
        let index = layout.index(Channel::Rank(to));
        let newest = layout.channel(index) + channel::NEWEST;
        Reader { view, cursor: Cursor::new(layout, index, count + 1), newest }
    }

    /// The next message, if it is there. It stays the next one until [`Reader::pass`]. Where
    /// nothing is there this is one load.
    ///
    /// # Errors
    /// When the ledger is damaged, or no longer has the message.
    #[inline]
    pub fn look(&mut self) -> Result<Option<Entry>, LedgerError> {
        self.cursor.look(&self.view)
    }

    /// How many bytes of the next message's payload are written. It is whole, and may be shown,
    /// when these are [`Entry::len`].
    ///
    /// # Errors
    /// When the ledger is damaged.
    #[inline]
    pub fn filled(&self, entry: &Entry) -> Result<u64, LedgerError> {
        self.progress(entry).map(|filled| filled.bytes)
    }

    /// The same for one who reads parts of it: what was read in an earlier turn means nothing.
    ///
    /// # Errors
    /// When the ledger is damaged.
    #[inline]
    pub fn progress(&self, entry: &Entry) -> Result<Filled, LedgerError> {
        entry
            .filled(&self.view)
            .ok_or_else(|| self.cursor.damaged("how much of it is written is nonsense"))
    }

    /// Copies payload from byte `from` on. Only what is [filled](Reader::filled) means anything.
    ///
    /// # Panics
    /// When the message is not so long.
    #[inline]
    pub fn read(&self, entry: &Entry, from: u64, to: &mut [u8]) {
        assert!(from <= entry.len && to.len() as u64 <= entry.len - from, "beyond the message");
        match entry.form {
            // What was checked, and not what may lie there by now.
            Form::Inline => {
                to.copy_from_slice(&entry.inline[from as usize..from as usize + to.len()]);
            }
            _ => self.view.read(entry.payload() + from, to),
        }
    }

    /// The message was shown: the next one comes next.
    #[inline]
    pub fn pass(&mut self, entry: &Entry) {
        debug_assert_eq!(entry.ssn, self.cursor.ssn, "messages are passed in order");
        self.cursor.pass(entry);
    }

    /// Messages passed so far, with those before this reader.
    pub fn count(&self) -> u64 {
        self.cursor.ssn - 1
    }

    /// Looks whether the next message was published and is not where it should be, which no other
    /// look finds: zeros look like a message that was not sent yet. For a receiver that waits.
    ///
    /// # Errors
    /// When it is so.
    pub fn look_for_lost(&mut self) -> Result<(), LedgerError> {
        let newest = self.view.load_acquire(self.newest);
        if self.cursor.look(&self.view)?.is_none() && newest >= self.cursor.ssn {
            return Err(self.cursor.damaged("the next one is missing"));
        }
        Ok(())
    }
}
