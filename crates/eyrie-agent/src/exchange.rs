//! What ranks tell each other by PMI while they start, as far as this node knows it: entries, and
//! how many barriers the job has passed.

use eyrie_wire::entries::{Entries, Entry};
use eyrie_wire::Rank;

/// What this node knows of the start-up exchange.
#[derive(Default)]
pub struct Exchange {
    entries: Entries,
    barriers: u32,
}

impl Exchange {
    pub fn entries(&self) -> &Entries {
        &self.entries
    }

    /// How many barriers the job has passed.
    pub fn barriers(&self) -> u32 {
        self.barriers
    }

    /// A rank of this node has put an entry.
    pub fn put(&mut self, rank: Rank, key: String, value: String) {
        self.entries.put(rank, key, value);
    }

    /// The controller has sent what others have put. Its messages may come twice.
    pub fn learn(&mut self, entries: Vec<Entry>, barriers: u32) {
        for entry in entries {
            self.entries.add(entry);
        }
        self.barriers = self.barriers.max(barriers);
    }
}
