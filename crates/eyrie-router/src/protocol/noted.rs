//! Notes which messages the logs were given, for the tests of the protocol. Outside tests it does
//! nothing.

use eyrie_wire::data::Message;
use eyrie_wire::Rank;
#[cfg(test)]
use std::{cell::RefCell, collections::BTreeSet};

#[cfg(test)]
thread_local! {
    /// The messages that the logs were given: (source, destination, ssn).
    static LOGGED: RefCell<BTreeSet<(Rank, Rank, u64)>> = const { RefCell::new(BTreeSet::new()) };
}

/// Does nothing.
#[cfg(not(test))]
pub fn note_logged(_: Rank, _: &Message) {}

/// Notes a message that a log is given.
#[cfg(test)]
pub fn note_logged(source: Rank, m: &Message) {
    LOGGED.with(|l| l.borrow_mut().insert((source, m.destination, m.ssn)));
}

#[cfg(test)]
pub fn is_logged(source: Rank, destination: Rank, ssn: u64) -> bool {
    LOGGED.with(|l| l.borrow().contains(&(source, destination, ssn)))
}

/// Removes all notes.
#[cfg(test)]
pub fn forget_logged() {
    LOGGED.with(|l| l.borrow_mut().clear());
}
