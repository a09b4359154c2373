//! Messages that were taken out of the ledgers of their senders after this rank had received them.
//! It needs them when it is executed again, and then they come before all that its sources' ledgers
//! have. Pure.

use eyrie_ledger::spilled::{len_of, Spilled};
use std::collections::BTreeMap;
use std::collections::VecDeque;

/// The messages that are to be shown again.
#[derive(Default)]
pub(super) struct SpilledMessages {
    bytes: Vec<u8>,
    /// Where those of each source begin that were not shown yet.
    of: BTreeMap<u32, VecDeque<usize>>,
    /// The number of the newest one of each source.
    newest: BTreeMap<u32, u64>,
}

impl SpilledMessages {
    /// Those of a file that come behind what was shown of each rank.
    pub fn behind(shown: &[u64], bytes: Vec<u8>) -> SpilledMessages {
        let mut found = SpilledMessages::default();
        let mut at = 0;
        while let Some((message, _)) = Spilled::take(&bytes[at..]) {
            let Spilled { source, ssn, payload, .. } = message;
            if shown.get(source as usize).is_some_and(|shown| ssn > *shown) {
                found.of.entry(source).or_default().push_back(at);
                found.newest.insert(source, ssn);
            }
            at += len_of(payload.len() as u64) as usize;
        }
        found.bytes = bytes;
        found
    }

    /// The number of the newest message of a source; 0: there is none.
    pub fn newest(&self, source: u32) -> u64 {
        self.newest.get(&source).copied().unwrap_or(0)
    }

    /// Whether all have been shown.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// The next message of a source.
    pub fn first(&self, source: u32) -> Option<Spilled<'_>> {
        let at = *self.of.get(&source)?.front()?;
        Some(Spilled::take(&self.bytes[at..])?.0)
    }

    /// The next message of a source has been shown.
    pub fn pass(&mut self, source: u32) {
        let Some(of) = self.of.get_mut(&source) else { return };
        of.pop_front();
        if of.is_empty() {
            self.of.remove(&source);
        }
        if self.of.is_empty() {
            *self = SpilledMessages::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_ledger::Envelope;

    #[test]
    fn messages_come_in_the_order_of_their_source_behind_what_was_shown() {
        let mut bytes = Vec::new();
        for (source, ssn) in [(1, 1), (0, 1), (1, 2), (1, 3), (0, 2)] {
            let payload = [source as u8, ssn as u8];
            let envelope = Envelope::default();
            Spilled { source, ssn, envelope, payload: &payload }.put(&mut bytes);
        }
        let mut spilled = SpilledMessages::behind(&[2, 1], bytes);
        assert_eq!((spilled.newest(0), spilled.newest(1)), (0, 3), "all of rank 0 was shown");
        assert!(spilled.first(0).is_none());
        for ssn in [2, 3] {
            assert_eq!(spilled.first(1).unwrap().payload, [1, ssn]);
            spilled.pass(1);
        }
        assert!(spilled.is_empty() && spilled.first(1).is_none());
    }
}
