//! The space of a region and the chains in it, as their writer sees them: how a chain grows by an
//! extent and gives the first ones back. A chain always keeps its last extent, and never gives one
//! back that a reader may still stand in.

use crate::check::{seal, VALUE_MAX};
use crate::error::LedgerError;
use crate::extents::{size_for, Extent, Extents, Piece};
use crate::layout::{channel, extent, own, Layout, LARGEST, LINE, PAGE};
use crate::memory::Memory;
use crate::mutation::{active, Mutation};
use crate::region;

/// Pages are made ahead of use in steps of so many bytes. What is behind them may never be used,
/// and a message waits for them.
const AHEAD: u64 = 128 << 10;
/// The same while the rank waits for others: a message may come meanwhile.
const AHEAD_IDLE: u64 = 32 << 10;
/// A channel has pages ahead for so many bytes at most.
const MOST_AHEAD: u64 = 2 << 20;

/// The extents of one channel.
#[derive(Debug)]
pub(crate) struct Chain {
    /// The first extent; 0: there is none.
    first: u64,
    pub last: Option<Extent>,
    /// The extent that the writer stands in: this one and those behind it stay.
    pub hold: u64,
    /// Bytes of all its extents.
    kept: u64,
    /// In the last extent there are pages up to here.
    ready: u64,
}

/// A region with its chains.
#[derive(Debug)]
pub(crate) struct Space<M> {
    pub memory: M,
    pub layout: Layout,
    extents: Extents,
    pub chains: Vec<Chain>,
    waits: bool,
}

impl<M: Memory> Space<M> {
    /// Finds the chains of a region again, and what is free between them. `end` gets the last
    /// extent of a chain, and returns where the content ends: there, or in the one behind it, when
    /// the writer died before it linked that.
    pub fn open(
        memory: M,
        layout: Layout,
        mut end: impl FnMut(&M, u32, &Extent) -> Result<Extent, LedgerError>,
    ) -> Result<Space<M>, LedgerError> {
        region::incarnation(&memory, &layout)?;
        let unusable = |what| LedgerError::Unusable { rank: layout.rank(), what };
        let mut chains = Vec::new();
        let mut used = Vec::new();
        for index in 0..layout.channels() {
            let mut chain = Chain::open(&memory, &layout, index, &mut used).map_err(unusable)?;
            if let Some(last) = chain.last {
                let end = end(&memory, index, &last)?;
                if end.at != last.at {
                    chain.add(end).map_err(unusable)?;
                    used.push(end.at);
                    memory.store_release(last.at + extent::NEXT, end.at);
                }
                (chain.hold, chain.ready) = (end.at, end.at);
            }
            chains.push(chain);
        }
        used.sort_unstable();
        let extents = Extents::open(&memory, &layout, &used).map_err(unusable)?;
        let mut space = Space { memory, layout, extents, chains, waits: true };
        space.wait_for(0);
        for index in 0..layout.channels() {
            space.count(index);
        }
        Ok(space)
    }

    /// A new extent for a channel, with at least `bytes` behind its head. It is not in the chain
    /// before [`Space::link`].
    pub fn extend(
        &mut self,
        index: u32,
        bytes: u64,
        first: u64,
        base: [u64; 2],
    ) -> Result<Extent, LedgerError> {
        self.trim(index)?;
        // The more a channel keeps the larger its extents, so that at most half of them is unused.
        let kept = self.chains[index as usize].kept;
        let least = size_for(LINE + bytes);
        let piece = match self.take(least.max(size_for(kept.min(LARGEST) / 4 + 1))) {
            Err(LedgerError::Full { bytes, .. }) if bytes > least => self.take(least),
            taken => taken,
        }?;
        let extent = Extent { at: piece.at, end: piece.at + piece.size, first, base };
        extent.write(&self.memory, &self.layout, index);
        let chain = &mut self.chains[index as usize];
        chain.ready = piece.ready;
        Ok(extent)
    }

    /// Makes pages that a channel will need soon, which stands at `at`; not many in one call.
    /// False: it has enough.
    pub fn make_ahead(&mut self, index: u32, at: u64) -> bool {
        let chain = &mut self.chains[index as usize];
        let Some(last) = chain.last else { return false };
        let most = at.saturating_add((chain.kept / 4).min(MOST_AHEAD)) / PAGE * PAGE;
        if most >= last.end && chain.ready >= last.end {
            return self.extents.make_ahead(&self.memory, &self.layout, AHEAD_IDLE);
        }
        let to = (chain.ready + AHEAD_IDLE).min(most).min(last.end);
        // Where there is no memory, the message that needs some says so.
        let makes = chain.ready < to && self.memory.populate(chain.ready, to - chain.ready);
        if makes {
            chain.ready = to;
        }
        makes
    }

    /// Puts an extent behind the last one of its chain.
    pub fn link(&mut self, index: u32, extent: Extent) {
        let chain = &mut self.chains[index as usize];
        let (at, mutation) = match chain.last {
            Some(last) => (last.at + extent::NEXT, Mutation::RelaxedNext),
            None => (self.layout.channel(index) + channel::FIRST, Mutation::RelaxedFirst),
        };
        if active(mutation) {
            self.memory.store(at, extent.at)
        } else {
            self.memory.store_release(at, extent.at)
        }
        if chain.last.is_none() {
            chain.first = extent.at;
        }
        (chain.last, chain.hold) = (Some(extent), extent.at);
        chain.kept += extent.end - extent.at;
        self.count(index);
    }

    /// The first extent of a chain.
    pub fn first(&self, index: u32) -> Result<Option<Extent>, LedgerError> {
        let at = self.chains[index as usize].first;
        if at == 0 {
            return Ok(None);
        }
        Extent::read(&self.memory, &self.layout, index, at)
            .map(Some)
            .map_err(|what| self.unusable(what))
    }

    /// Makes sure that the last extent has pages up to here.
    #[inline]
    pub fn ready(&mut self, index: u32, up_to: u64) -> Result<(), LedgerError> {
        if up_to > self.chains[index as usize].ready {
            self.populate(index, up_to)
        } else {
            Ok(())
        }
    }

    /// Makes sure that there is a page for the line at `at`, which lies far behind what is ready.
    pub fn page(&mut self, index: u32, at: u64) -> Result<(), LedgerError> {
        let there = at + LINE <= self.chains[index as usize].ready
            || self.memory.populate(at / PAGE * PAGE, PAGE);
        there.then_some(()).ok_or(LedgerError::NoMemory { rank: self.layout.rank(), bytes: PAGE })
    }

    #[cold]
    fn populate(&mut self, index: u32, up_to: u64) -> Result<(), LedgerError> {
        let chain = &mut self.chains[index as usize];
        let Some(last) = chain.last else { return Ok(()) };
        let from = chain.ready.max(last.at);
        let to = up_to.next_multiple_of(PAGE).max(from + AHEAD).min(last.end);
        if !self.memory.populate(from, to - from) {
            let rank = self.layout.rank();
            return Err(LedgerError::NoMemory { rank, bytes: to - from });
        }
        chain.ready = to;
        Ok(())
    }

    /// An extent of this size: one that was in use before, else a new one.
    fn take(&mut self, size: u64) -> Result<Piece, LedgerError> {
        let mut piece = self.extents.reuse(&self.memory, &self.layout, size);
        if piece.is_none() {
            for index in 0..self.layout.channels() {
                self.trim(index)?;
            }
            piece = self.extents.reuse(&self.memory, &self.layout, size);
        }
        if let Some(piece) = piece {
            self.wait_for(0);
            return Ok(piece);
        }
        let fresh = self.extents.fresh(&self.memory, &self.layout, size);
        let Err(LedgerError::Full { .. }) = fresh else {
            self.wait_for(0);
            return fresh;
        };
        let merged =
            self.extents.merge(&self.memory, &self.layout).map_err(|what| self.unusable(what))?;
        if merged {
            if let Some(piece) = self.extents.reuse(&self.memory, &self.layout, size) {
                self.wait_for(0);
                return Ok(piece);
            }
        }
        self.wait_for(size);
        fresh
    }

    /// Gives back the first extents of a chain: those of which all is released, and of the next one
    /// something. So no reader stands at the end of one of them.
    fn trim(&mut self, index: u32) -> Result<(), LedgerError> {
        let memory = &self.memory;
        let layout = &self.layout;
        let unusable = |what| LedgerError::Unusable { rank: layout.rank(), what };
        let chain = &mut self.chains[index as usize];
        while chain.first != chain.hold {
            let first = Extent::read(memory, layout, index, chain.first).map_err(unusable)?;
            let next = memory.load(chain.first + extent::NEXT);
            let second = Extent::read(memory, layout, index, next).map_err(unusable)?;
            // The first message of the second extent has the number that is in its head; the first
            // item of a stream lies behind it.
            let behind = second.first.saturating_add(u64::from(index >= layout.ranks()));
            if region::released_of(memory, layout, index) < behind {
                break;
            }
            memory.store(layout.channel(index) + channel::FIRST, next);
            // A reader that is opening the channel, and sees what is written into the extent from
            // now on, must see that it is off the chain, too.
            if !active(Mutation::NoFenceBeforeReuse) {
                memory.fence();
            }
            chain.first = next;
            chain.kept -= first.end - first.at;
            self.extents.give(memory, first);
        }
        self.count(index);
        Ok(())
    }

    /// Says how many bytes a channel keeps.
    fn count(&self, index: u32) {
        let chain = &self.chains[index as usize];
        if chain.first != 0 {
            self.memory.store(self.layout.channel(index) + channel::BYTES, chain.kept);
        }
    }

    /// Says to the keeper how many bytes more the rank needs.
    fn wait_for(&mut self, bytes: u64) {
        if self.waits || bytes != 0 {
            let word = seal(bytes.min(VALUE_MAX), self.layout.salt(own::WANTED));
            self.memory.store(own::WANTED, word);
            self.waits = bytes != 0;
        }
    }

    /// Bytes of all extents that the region has ever used.
    pub fn bytes(&self) -> u64 {
        self.extents.bytes(&self.layout)
    }

    fn unusable(&self, what: &'static str) -> LedgerError {
        LedgerError::Unusable { rank: self.layout.rank(), what }
    }
}

impl Chain {
    /// Follows a chain by the heads of its extents.
    fn open(
        memory: &impl Memory,
        layout: &Layout,
        index: u32,
        used: &mut Vec<u64>,
    ) -> Result<Chain, &'static str> {
        let first = memory.load(layout.channel(index) + channel::FIRST);
        let mut chain = Chain { first, last: None, hold: first, kept: 0, ready: 0 };
        let mut at = first;
        while at != 0 {
            chain.add(Extent::read(memory, layout, index, at)?)?;
            used.push(at);
            at = memory.load(at + extent::NEXT);
        }
        Ok(chain)
    }

    /// Adds the next extent. Numbers only grow along a chain, so that it has an end.
    fn add(&mut self, extent: Extent) -> Result<(), &'static str> {
        if self.last.is_some_and(|last| !extent.follows(&last)) {
            return Err("its extents lead in a circle");
        }
        self.kept += extent.end - extent.at;
        self.last = Some(extent);
        Ok(())
    }
}
