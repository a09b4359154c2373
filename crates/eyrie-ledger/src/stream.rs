//! Items as a stream of bytes in a chain of extents: determinants, or parts of what was observed.
//! An item is published by one store of a word in the head of its extent: how many bytes there are,
//! and the check of all of them. So an item costs no bytes but its own, is seen whole or not at
//! all, and a wrong byte anywhere in an extent is found. An item must not lie in two extents: each
//! can be read by itself, from the two numbers in its head on.

use crate::check;
use crate::error::LedgerError;
use crate::extents::Extent;
use crate::layout::{channel, extent, Channel, Layout, MOST_TRIES};
use crate::memory::{Memory, View};
use crate::mutation::{active, Mutation};
use crate::space::Space;

/// The check of a stream where its extent begins.
fn start(layout: &Layout, index: u32, extent: &Extent) -> u32 {
    let [a, b] = extent.base;
    check::words(layout.seed(index), &[extent.at, extent.first, a, b])
}

/// The end of a stream, where items are added.
#[derive(Debug)]
pub(crate) struct Tail {
    index: u32,
    at: u64,
    end: u64,
    published: u64,
    check: u32,
    start: u64,
}

impl Tail {
    /// The end of a stream that nothing is in.
    pub fn new(index: u32) -> Tail {
        Tail { index, at: 0, end: 0, published: 0, check: 0, start: 0 }
    }

    /// The end of a stream that was read to its end.
    pub fn behind<V: View>(source: &Source<V>) -> Tail {
        let index = source.index;
        let Some(extent) = source.extent else { return Tail::new(index) };
        let start = extent.content();
        Tail {
            index,
            at: start + source.verified,
            end: extent.end,
            published: extent.at + extent::PUBLISHED,
            check: source.check,
            start,
        }
    }

    /// Makes room for an item of so many bytes, which goes on from these numbers.
    #[inline]
    pub fn room<M: Memory>(
        &mut self,
        space: &mut Space<M>,
        bytes: u64,
        first: u64,
        base: [u64; 2],
    ) -> Result<(), LedgerError> {
        if self.at == 0 || bytes > self.end - self.at {
            self.extend(space, bytes, first, base)?;
        }
        space.ready(self.index, self.at + bytes)
    }

    #[cold]
    fn extend<M: Memory>(
        &mut self,
        space: &mut Space<M>,
        bytes: u64,
        first: u64,
        base: [u64; 2],
    ) -> Result<(), LedgerError> {
        let extent = space.extend(self.index, bytes, first, base)?;
        let check = start(&space.layout, self.index, &extent);
        let published = extent.at + extent::PUBLISHED;
        space.memory.store(published, u64::from(check) << 32);
        space.link(self.index, extent);
        let start = extent.content();
        *self = Tail { index: self.index, at: start, end: extent.end, published, check, start };
        Ok(())
    }

    /// Adds bytes for which there is room.
    #[inline]
    pub fn put(&mut self, memory: &impl Memory, bytes: &[u8]) {
        debug_assert!(bytes.len() as u64 <= self.end - self.at, "there is room");
        memory.write(self.at, bytes);
        self.check = check::bytes(self.check, bytes);
        self.at += bytes.len() as u64;
    }

    /// Publishes what was added.
    #[inline]
    pub fn publish(&self, memory: &impl Memory) {
        let word = (self.at - self.start) | u64::from(self.check) << 32;
        if active(Mutation::RelaxedItem) {
            memory.store(self.published, word)
        } else {
            memory.store_release(self.published, word)
        }
    }
}

/// What [`Source::more`] has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum More {
    Nothing,
    /// More bytes of the same extent.
    Bytes,
    /// Another extent, whose first item goes on from these numbers. All before was read.
    Extent {
        first: u64,
        base: [u64; 2],
    },
}

/// A stream that is read, also while it grows. It allocates: no message waits for it. The keeper
/// releases nothing that a source of its own has not read.
#[derive(Debug)]
pub(crate) struct Source<V> {
    view: V,
    layout: Layout,
    channel: Channel,
    index: u32,
    extent: Option<Extent>,
    /// Bytes of the extent that were read and found sound.
    verified: u64,
    check: u32,
    /// These bytes, as far as they were not taken.
    bytes: Vec<u8>,
    taken: usize,
}

impl<V: View> Source<V> {
    pub fn new(view: V, layout: Layout, channel: Channel) -> Source<V> {
        assert!(layout.end() <= view.bytes(), "a view of {} bytes", view.bytes());
        let index = layout.index(channel);
        let bytes = Vec::new();
        Source {
            view,
            layout,
            channel,
            index,
            extent: None,
            verified: 0,
            check: 0,
            bytes,
            taken: 0,
        }
    }

    /// Sound bytes that were not taken yet. They end with an item.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    pub fn take(&mut self, bytes: usize) {
        self.taken += bytes;
    }

    pub fn damaged(&self, behind: u64, what: &'static str) -> LedgerError {
        LedgerError::Damaged { rank: self.layout.rank(), channel: self.channel, behind, what }
    }

    /// Goes to the last extent that begins at `first` or before. `None`: there is nothing yet.
    /// Meanwhile the writer may take extents off the chain; then it is looked up again.
    pub fn seek(&mut self, first: u64) -> Result<Option<Extent>, LedgerError> {
        let word = self.layout.channel(self.index) + channel::FIRST;
        for _ in 0..MOST_TRIES {
            let at = self.view.load_acquire(word);
            if at == 0 {
                return Ok(None);
            }
            let found = self.walk(at, first);
            self.view.fence();
            if self.view.load(word) == at {
                let extent = found?;
                self.enter(extent);
                return Ok(Some(extent));
            }
        }
        Err(self.damaged(first, "its start does not stay where it is"))
    }

    fn walk(&self, at: u64, first: u64) -> Result<Extent, LedgerError> {
        let mut extent = self.extent_at(at, 0)?;
        if extent.first > first {
            let rank = self.layout.rank();
            let channel = self.channel;
            return Err(LedgerError::Gone { rank, channel, wanted: first, first: extent.first });
        }
        while let Some(next) = self.next_of(&extent)?.filter(|next| next.first <= first) {
            extent = next;
        }
        Ok(extent)
    }

    /// Reads what was published since.
    pub fn more(&mut self, behind: u64) -> Result<More, LedgerError> {
        let Some(extent) = self.extent else {
            // Nothing was there before: this is the first one.
            let Some(first) = self.seek(0)? else { return Ok(More::Nothing) };
            return Ok(More::Extent { first: first.first, base: first.base });
        };
        // Whatever was published before the next extent is seen after that was seen.
        let next = self.next_of(&extent)?;
        let word = self.view.load_acquire(extent.at + extent::PUBLISHED);
        let published = word & u64::from(u32::MAX);
        let sound = (word >> 32) as u32;
        if published > extent.end - extent.content() || published < self.verified {
            return Err(self.damaged(behind, "its length is nonsense"));
        }
        if published > self.verified {
            let start = self.bytes.len();
            self.bytes.drain(..self.taken);
            let start = start - std::mem::take(&mut self.taken);
            self.bytes.resize(start + (published - self.verified) as usize, 0);
            self.view.read(extent.content() + self.verified, &mut self.bytes[start..]);
            self.check = check::bytes(self.check, &self.bytes[start..]);
            self.verified = published;
        }
        if self.check != sound {
            return Err(self.damaged(behind, "its check is wrong"));
        }
        match next {
            _ if !self.bytes().is_empty() => Ok(More::Bytes),
            Some(next) => {
                self.enter(next);
                Ok(More::Extent { first: next.first, base: next.base })
            }
            None => Ok(More::Nothing),
        }
    }

    fn enter(&mut self, extent: Extent) {
        self.extent = Some(extent);
        (self.verified, self.taken) = (0, 0);
        self.check = start(&self.layout, self.index, &extent);
        self.bytes.clear();
    }

    fn next_of(&self, extent: &Extent) -> Result<Option<Extent>, LedgerError> {
        let at = self.view.load_acquire(extent.at + extent::NEXT);
        if at == 0 {
            return Ok(None);
        }
        let next = self.extent_at(at, extent.first)?;
        if next.follows(extent) {
            Ok(Some(next))
        } else {
            Err(self.damaged(extent.first, "its extents lead in a circle"))
        }
    }

    fn extent_at(&self, at: u64, behind: u64) -> Result<Extent, LedgerError> {
        Extent::read(&self.view, &self.layout, self.index, at)
            .map_err(|what| self.damaged(behind, what))
    }
}
