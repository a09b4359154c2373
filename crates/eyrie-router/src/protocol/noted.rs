//! What the logs were given, for the tests of the protocol. The log itself tells it; outside tests
//! nobody hears it.

use eyrie_wire::data::Message;
use eyrie_wire::Rank;
#[cfg(test)]
use std::{cell::RefCell, collections::BTreeSet};

#[cfg(test)]
thread_local! {
    /// What the logs have been given: (source, destination, ssn).
    static LOGGED: RefCell<BTreeSet<(Rank, Rank, u64)>> = const { RefCell::new(BTreeSet::new()) };
}

/// A log is given a message.
#[cfg(not(test))]
pub fn note_logged(_: Rank, _: &Message) {}

/// A log is given a message.
#[cfg(test)]
pub fn note_logged(source: Rank, m: &Message) {
    LOGGED.with(|l| l.borrow_mut().insert((source, m.destination, m.ssn)));
}

#[cfg(test)]
pub fn is_logged(source: Rank, destination: Rank, ssn: u64) -> bool {
    LOGGED.with(|l| l.borrow().contains(&(source, destination, ssn)))
}

/// Forgets all of it.
#[cfg(test)]
pub fn forget_logged() {
    LOGGED.with(|l| l.borrow_mut().clear());
}
