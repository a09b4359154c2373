//! OBSERVED: what the rank has learned from outside other than by messages, as a stream of bytes
//! that is cut into parts. A part is in the ledger before the next message that may depend on it.
//! What the bytes mean is not known here.
//!
//! A part is its clock (from the last one on) and its length, both varints, and its bytes.

use crate::error::LedgerError;
use crate::layout::{channel, Channel, Layout};
use crate::memory::{Memory, View};
use crate::space::Space;
use crate::stream::{More, Source, Tail};
use crate::varint;

/// Longest part in bytes.
pub const MAX_PART: usize = 1 << 20;

/// What the next part goes on from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct State {
    clock: u64,
    /// Bytes of the stream before it.
    from: u64,
}

/// The end of OBSERVED, as its writer has it.
#[derive(Debug)]
pub(crate) struct ObservedTail {
    tail: Tail,
    state: State,
}

impl ObservedTail {
    /// The end of a stream that was read to its end.
    pub fn behind<V: View>(reader: &ObservedReader<V>) -> ObservedTail {
        ObservedTail { tail: Tail::behind(&reader.source), state: reader.state }
    }

    pub const fn end(&self) -> u64 {
        self.state.from
    }

    /// Adds a part that was cut at this clock, or at that of the last part, whichever is later: a
    /// rank that is executed again may observe something new before it did so the first time.
    ///
    /// # Panics
    /// When it is empty or longer than [`MAX_PART`].
    pub fn observe<M: Memory>(
        &mut self,
        space: &mut Space<M>,
        clock: u64,
        part: &[u8],
    ) -> Result<(), LedgerError> {
        assert!(!part.is_empty() && part.len() <= MAX_PART, "a part of {} bytes", part.len());
        let clock = clock.max(self.state.clock);
        let mut head = [0; 20];
        let mut used = varint::write(clock - self.state.clock, &mut head);
        used += varint::write(part.len() as u64, &mut head[used..]);
        let State { clock: clock_before, from } = self.state;
        self.tail.room(space, (used + part.len()) as u64, from, [clock_before, 0])?;
        self.tail.put(&space.memory, &head[..used]);
        self.tail.put(&space.memory, part);
        self.tail.publish(&space.memory);
        self.state = State { clock, from: from + part.len() as u64 };
        let line = space.layout.channel(space.layout.index(Channel::Observed));
        space.memory.store(line + channel::PAYLOAD[0], self.state.from);
        Ok(())
    }
}

/// A part of what was observed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part<'a> {
    /// Bytes of the stream before it.
    pub from: u64,
    /// The rank's clock when it was cut.
    pub clock: u64,
    pub bytes: &'a [u8],
}

/// Reads what a rank has observed, also while it grows.
#[derive(Debug)]
pub struct ObservedReader<V> {
    source: Source<V>,
    state: State,
    part: Vec<u8>,
}

impl<V: View> ObservedReader<V> {
    /// Reads from a part on that begins at this byte of the stream or before.
    ///
    /// # Errors
    /// When the ledger is damaged, or has these parts no more.
    ///
    /// # Panics
    /// When the view is shorter than the region.
    pub fn open(view: V, layout: Layout, from: u64) -> Result<ObservedReader<V>, LedgerError> {
        let mut source = Source::new(view, layout, Channel::Observed);
        let extent = source.seek(from)?;
        let state = extent.map_or(State::default(), |e| State { clock: e.base[0], from: e.first });
        Ok(ObservedReader { source, state, part: Vec::new() })
    }

    /// The next part.
    ///
    /// # Errors
    /// When the ledger is damaged.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Part<'_>>, LedgerError> {
        while self.source.bytes().is_empty() {
            match self.source.more(self.state.from)? {
                More::Nothing => return Ok(None),
                More::Bytes => {}
                More::Extent { first, base } => {
                    if (State { clock: base[0], from: first }) != self.state {
                        return Err(self.damaged("an extent is missing"));
                    }
                }
            }
        }
        let mut rest = self.source.bytes();
        let Some((clock, part)) = parse(&mut rest, self.state.clock) else {
            return Err(self.damaged("a part is nonsense"));
        };
        self.part.clear();
        self.part.extend_from_slice(part);
        let taken = self.source.bytes().len() - rest.len();
        self.source.take(taken);
        let from = self.state.from;
        self.state = State { clock, from: from.saturating_add(self.part.len() as u64) };
        Ok(Some(Part { from, clock, bytes: &self.part }))
    }

    fn damaged(&self, what: &'static str) -> LedgerError {
        self.source.damaged(self.state.from, what)
    }
}

/// Takes a part from `from`. `None`: it is nonsense.
fn parse<'a>(from: &mut &'a [u8], clock: u64) -> Option<(u64, &'a [u8])> {
    let clock = clock.checked_add(varint::take(from)?)?;
    let len = usize::try_from(varint::take(from)?).ok()?;
    let (part, rest) = from.split_at_checked(len).filter(|_| len > 0)?;
    *from = rest;
    Some((clock, part))
}
