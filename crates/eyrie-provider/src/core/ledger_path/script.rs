//! The clock of a rank, and the determinants that it follows after a restart, which lie in its own
//! ledger. Pure. It must never make a message visible at another clock than the one at which it was
//! visible before.

use eyrie_ledger::error::LedgerError;
use eyrie_ledger::layout::{Layout, Rank};
use eyrie_ledger::memory::View;
use eyrie_ledger::order::OrderReader;

/// What a progress call may show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Whatever has arrived.
    Free,
    /// Nothing: at this clock nothing became visible before.
    Nothing,
    /// What [`Script::due`] says, and no more.
    Due,
}

/// Counts progress calls and follows determinants.
#[derive(Debug)]
pub struct Script<V> {
    clock: u64,
    /// Where the determinants are read, as long as there are some.
    reader: Option<OrderReader<V>>,
    /// The clock of the next one.
    next: u64,
    /// What it shows: how many messages of which sources, in this order.
    due: Vec<(Rank, u32)>,
}

impl<V: View> Script<V> {
    /// A rank that has made no progress call.
    pub fn new() -> Script<V> {
        Script { clock: 0, reader: None, next: 0, due: Vec::new() }
    }

    /// Progress calls so far.
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// Whether all determinants have been followed.
    pub fn is_over(&self) -> bool {
        self.reader.is_none()
    }

    /// Follows the determinants behind the present clock that lie in the rank's ledger.
    ///
    /// # Errors
    /// When the ledger is damaged, or no longer has them.
    pub fn load(&mut self, view: V, layout: Layout) -> Result<(), LedgerError> {
        self.reader = Some(OrderReader::open(view, layout, self.clock)?);
        self.turn()
    }

    /// The ledger is gone; it is loaded again.
    pub fn forget(&mut self) {
        self.reader = None;
    }

    /// The next progress call.
    ///
    /// # Errors
    /// When the ledger is damaged.
    #[inline]
    pub fn tick(&mut self) -> Step {
        self.clock += 1;
        match self.reader {
            None => Step::Free,
            Some(_) if self.next != self.clock => Step::Nothing,
            Some(_) if self.due.is_empty() => Step::Nothing,
            Some(_) => Step::Due,
        }
    }

    /// What becomes visible at the present clock, when that is [`Step::Due`].
    pub fn due(&self) -> &[(Rank, u32)] {
        &self.due
    }

    /// What was due is shown, or there was nothing to show at this clock.
    ///
    /// # Errors
    /// When the ledger is damaged.
    #[inline]
    pub fn followed(&mut self) -> Result<(), LedgerError> {
        if self.reader.is_some() && self.next == self.clock {
            self.turn()
        } else {
            Ok(())
        }
    }

    /// Goes to the next determinant.
    fn turn(&mut self) -> Result<(), LedgerError> {
        let Some(reader) = &mut self.reader else { return Ok(()) };
        match reader.next()? {
            Some(next) => {
                self.next = next.clock;
                self.due.clear();
                self.due.extend_from_slice(next.shown);
            }
            None => self.reader = None,
        }
        Ok(())
    }
}
