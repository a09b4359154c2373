//! ORDER: at which clock how many messages of which channels became visible. With the messages
//! themselves this is all that is nondeterministic in a rank. The determinant of a clock is written
//! before the progress call returns to MPI, and never changed.
//!
//! ```text
//! determinant
//!   = gap·2      the next clock by `gap`: one message, of the channel that was the first one last
//!   | gap·2 + 1  then for each channel: (channel + 1)·4 + 2 [the count follows] + 1 [more follow],
//!   |            or 0: nothing became visible, which is known up to this clock (no-delivery)
//! ```
//!
//! All numbers are varints. So a determinant of the same source as before has one byte, one of
//! another of the first 31 ranks two, and one more when it came with several messages.

use crate::error::LedgerError;
use crate::layout::{Channel, Layout, Rank};
use crate::memory::{Memory, View};
use crate::space::Space;
use crate::stream::{More, Source, Tail};
use crate::varint;

/// What the next determinant goes on from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct State {
    clock: u64,
    /// Messages that have become visible.
    rsn: u64,
    /// The channel that was the first of the last determinant.
    usual: u64,
}

impl State {
    fn of(first: u64, base: [u64; 2]) -> State {
        State { clock: first, rsn: base[0], usual: base[1] }
    }

    fn after(&self, clock: u64, shown: &[(Rank, u32)]) -> State {
        let count: u64 = shown.iter().map(|(_, count)| u64::from(*count)).sum();
        let usual = shown.first().map_or(self.usual, |(channel, _)| u64::from(*channel));
        State { clock, rsn: self.rsn.saturating_add(count), usual }
    }

    /// The numbers that a determinant consists of.
    fn numbers<'a>(
        &self,
        clock: u64,
        shown: &'a [(Rank, u32)],
    ) -> impl Iterator<Item = u64> + Clone + 'a {
        let usual = matches!(shown, [(channel, 1)] if u64::from(*channel) == self.usual);
        let gap = (clock - self.clock) << 1 | u64::from(!usual);
        let nothing = shown.is_empty().then_some(0);
        let listed = if usual { &[] } else { shown };
        let each = listed.iter().enumerate().flat_map(move |(n, (channel, count))| {
            let more = u64::from(n + 1 < listed.len());
            let several = u64::from(*count != 1);
            let word = (u64::from(*channel) + 1) << 2 | several << 1 | more;
            [Some(word), (several == 1).then_some(u64::from(*count))].into_iter().flatten()
        });
        std::iter::once(gap).chain(nothing).chain(each)
    }
}

/// The end of ORDER, as its writer has it.
#[derive(Debug)]
pub(crate) struct OrderTail {
    tail: Tail,
    state: State,
}

impl OrderTail {
    /// The end of an order that was read to its end.
    pub fn behind<V: View>(reader: &OrderReader<V>) -> OrderTail {
        OrderTail { tail: Tail::behind(&reader.source), state: reader.state }
    }

    pub const fn clock(&self) -> u64 {
        self.state.clock
    }

    /// Records that these messages of these channels became visible at this clock.
    ///
    /// # Panics
    /// When the clock does not grow.
    #[inline]
    pub fn record<M: Memory>(
        &mut self,
        space: &mut Space<M>,
        clock: u64,
        shown: &[(Rank, u32)],
    ) -> Result<(), LedgerError> {
        assert!(clock > self.state.clock, "clock {clock} after {}", self.state.clock);
        let numbers = self.state.numbers(clock, shown);
        let bytes: usize = numbers.clone().map(varint::len).sum();
        let State { clock: first, rsn, usual } = self.state;
        self.tail.room(space, bytes as u64, first, [rsn, usual])?;
        let mut buffer = [0; 64];
        let mut used = 0;
        for n in numbers {
            if used > buffer.len() - 10 {
                self.tail.put(&space.memory, &buffer[..used]);
                used = 0;
            }
            used += varint::write(n, &mut buffer[used..]);
        }
        self.tail.put(&space.memory, &buffer[..used]);
        self.tail.publish(&space.memory);
        self.state = self.state.after(clock, shown);
        Ok(())
    }
}

/// What became visible at a clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Determinant<'a> {
    /// The receiver's clock.
    pub clock: u64,
    /// How many messages of which sources, in this order. None: nothing more became visible up to
    /// this clock.
    pub shown: &'a [(Rank, u32)],
}

/// Reads an order, also while it grows.
#[derive(Debug)]
pub struct OrderReader<V> {
    source: Source<V>,
    ranks: u32,
    state: State,
    shown: Vec<(Rank, u32)>,
}

impl<V: View> OrderReader<V> {
    /// Reads the determinants behind this clock.
    ///
    /// # Errors
    /// When the ledger is damaged, or no longer has them.
    ///
    /// # Panics
    /// When the view is shorter than the region.
    pub fn open(view: V, layout: Layout, clock: u64) -> Result<OrderReader<V>, LedgerError> {
        let mut reader = OrderReader::at_last(view, layout, clock)?;
        // Those before it in the same extent.
        while reader.next_until(clock)?.is_some() {}
        Ok(reader)
    }

    /// Reads from the start of the last extent that begins at this clock or before.
    pub(crate) fn at_last(
        view: V,
        layout: Layout,
        clock: u64,
    ) -> Result<OrderReader<V>, LedgerError> {
        let mut source = Source::new(view, layout, Channel::Order);
        let state = source.seek(clock)?.map_or(State::default(), |e| State::of(e.first, e.base));
        Ok(OrderReader { source, ranks: layout.ranks(), state, shown: Vec::new() })
    }

    /// Messages that had become visible with the determinants read so far.
    pub fn rsn(&self) -> u64 {
        self.state.rsn
    }

    /// The clock of the last determinant read; 0: there was none.
    pub fn clock(&self) -> u64 {
        self.state.clock
    }

    /// The next determinant.
    ///
    /// # Errors
    /// When the ledger is damaged.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Determinant<'_>>, LedgerError> {
        self.next_until(u64::MAX)
    }

    /// The next determinant, unless it is behind this clock.
    ///
    /// # Errors
    /// When the ledger is damaged.
    pub fn next_until(&mut self, clock: u64) -> Result<Option<Determinant<'_>>, LedgerError> {
        match self.peek()? {
            Some((at, bytes)) if at <= clock => {
                self.take(at, bytes);
                Ok(Some(Determinant { clock: at, shown: &self.shown }))
            }
            _ => Ok(None),
        }
    }

    /// The clock of the next determinant, and its bytes. What it shows is in `shown`.
    fn peek(&mut self) -> Result<Option<(u64, usize)>, LedgerError> {
        while self.source.bytes().is_empty() {
            match self.source.more(self.state.clock)? {
                More::Nothing => return Ok(None),
                More::Bytes => {}
                More::Extent { first, base } => {
                    if State::of(first, base) != self.state {
                        return Err(self.damaged("an extent is missing"));
                    }
                }
            }
        }
        let bytes = self.source.bytes();
        let mut rest = bytes;
        let Some(clock) = parse(&mut rest, &self.state, self.ranks, &mut self.shown) else {
            return Err(self.damaged("a determinant is nonsense"));
        };
        Ok(Some((clock, bytes.len() - rest.len())))
    }

    /// Goes on behind the determinant that was looked at.
    fn take(&mut self, clock: u64, bytes: usize) {
        self.source.take(bytes);
        self.state = self.state.after(clock, &self.shown);
    }

    fn damaged(&self, what: &'static str) -> LedgerError {
        self.source.damaged(self.state.clock, what)
    }
}

/// Takes a determinant from `from`: its clock. `None`: it is nonsense.
fn parse(from: &mut &[u8], state: &State, ranks: u32, shown: &mut Vec<(Rank, u32)>) -> Option<u64> {
    shown.clear();
    let word = varint::take(from)?;
    let clock = state.clock.checked_add(word >> 1).filter(|clock| *clock > state.clock)?;
    if word & 1 == 0 {
        shown.push((u32::try_from(state.usual).ok().filter(|rank| *rank < ranks)?, 1));
        return Some(clock);
    }
    loop {
        let word = varint::take(from)?;
        if word == 0 && shown.is_empty() {
            return Some(clock);
        }
        let channel = u32::try_from((word >> 2).checked_sub(1)?).ok().filter(|c| *c < ranks)?;
        let count = if word & 2 == 0 { 1 } else { u32::try_from(varint::take(from)?).ok()? };
        shown.push((channel, count));
        if word & 1 == 0 {
            return Some(clock);
        }
    }
}
