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
    /// Behind the last determinant nothing becomes visible up to this clock.
    silent_until: u64,
}

impl<V: View> Script<V> {
    /// A rank that has made no progress call.
    pub fn new() -> Script<V> {
        Script { clock: 0, reader: None, next: 0, due: Vec::new(), silent_until: 0 }
    }

    /// A rank that has made so many progress calls, without determinants: for tests.
    #[cfg(test)]
    pub fn at(clock: u64) -> Script<V> {
        Script { clock, ..Script::new() }
    }

    /// Progress calls so far.
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// Whether all determinants have been followed.
    pub fn is_over(&self) -> bool {
        self.reader.is_none() && self.clock >= self.silent_until
    }

    /// Follows the determinants behind the present clock that lie in the rank's ledger. The rank
    /// has observed something up to `observed_at`: whatever it had been shown by then is among
    /// these determinants, and what it has observed may depend on having been shown nothing more.
    ///
    /// # Errors
    /// When the ledger is damaged, or no longer has them.
    pub fn load(&mut self, view: V, layout: Layout, observed_at: u64) -> Result<(), LedgerError> {
        self.silent_until = observed_at;
        self.reader = Some(OrderReader::open(view, layout, self.clock)?);
        self.turn()
    }

    /// The ledger is gone; it is loaded again.
    pub fn forget(&mut self) {
        (self.reader, self.silent_until) = (None, 0);
    }

    /// The next progress call.
    #[inline]
    pub fn tick(&mut self) -> Step {
        self.clock += 1;
        match self.reader {
            None if self.clock > self.silent_until => Step::Free,
            Some(_) if self.next == self.clock && !self.due.is_empty() => Step::Due,
            _ => Step::Nothing,
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

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_ledger::heap::Heap;
    use eyrie_ledger::region;
    use eyrie_ledger::writer::{Sizes, Writer};

    const BYTES: u64 = 1 << 20;

    /// What a rank does that has recorded this, whose image was taken at `clock`, and that has
    /// observed something at `observed_at`: a step for each progress call, up to the first free
    /// one.
    fn steps(records: &[(u64, &[(u32, u32)])], clock: u64, observed_at: u64) -> Vec<Step> {
        let memory = Heap::new(BYTES);
        let layout = Layout::new(0, 3, BYTES);
        region::prepare(&memory, &layout, 1, BYTES);
        let mut writer = Writer::open(&memory, layout, |_| 0, Sizes::default()).unwrap();
        records.iter().for_each(|(clock, shown)| writer.record(*clock, shown).unwrap());
        let mut script = Script::at(clock);
        script.load(&memory, layout, observed_at).unwrap();
        let mut steps = Vec::new();
        while steps.last() != Some(&Step::Free) {
            let was_over = script.is_over();
            let step = script.tick();
            assert_eq!(was_over, step == Step::Free);
            if step == Step::Due {
                assert!(records.contains(&(script.clock(), script.due())));
            }
            script.followed().unwrap();
            steps.push(step);
        }
        steps
    }

    use Step::{Due, Free, Nothing};

    #[test]
    fn messages_show_at_their_clock_and_the_order_is_free_behind_the_last() {
        let records: &[(u64, &[_])] = &[(1, &[(2, 1)]), (3, &[(0, 2), (1, 1)])];
        assert_eq!(steps(&[], 0, 0), [Free]);
        assert_eq!(steps(records, 0, 0), [Due, Nothing, Due, Free]);
        assert_eq!(steps(records, 1, 0), [Nothing, Due, Free]);
        assert_eq!(steps(records, 3, 0), [Free]);
    }

    #[test]
    fn nothing_is_shown_up_to_a_no_delivery_determinant_or_an_observation() {
        let records: &[(u64, &[_])] = &[(1, &[(2, 1)]), (3, &[])];
        assert_eq!(steps(records, 0, 0), [Due, Nothing, Nothing, Free]);
        assert_eq!(steps(records, 0, 2), [Due, Nothing, Nothing, Free]);
        assert_eq!(steps(records, 0, 4), [Due, Nothing, Nothing, Nothing, Free]);
        assert_eq!(steps(records, 3, 5), [Nothing, Nothing, Free]);
        assert_eq!(steps(records, 6, 5), [Free]);
    }
}
