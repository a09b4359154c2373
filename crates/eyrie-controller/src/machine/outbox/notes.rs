//! What is said once however often it is found: notes that hold for every node, and refusals of
//! one and the same peer.

use eyrie_wire::RankInstance;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Most different notes and refused instances that are remembered; later ones are said each time.
const MAX_KNOWN: usize = 4096;

/// What was said.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Notes {
    texts: BTreeSet<String>,
    refused: BTreeSet<Option<RankInstance>>,
}

/// Whether it is the first of its kind.
fn is_new<T: Ord>(known: &mut BTreeSet<T>, one: T) -> bool {
    if known.len() < MAX_KNOWN {
        known.insert(one)
    } else {
        !known.contains(&one)
    }
}

impl Notes {
    /// Whether this text is said for the first time.
    pub fn is_new(&mut self, text: &str) -> bool {
        is_new(&mut self.texts, text.to_string())
    }

    /// Whether it is the first time that a router has refused this instance, or a stranger.
    pub fn is_first_refusal(&mut self, instance: Option<RankInstance>) -> bool {
        is_new(&mut self.refused, instance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_not_new_and_memory_is_bounded() {
        let mut known = BTreeSet::new();
        assert!(is_new(&mut known, 7) && !is_new(&mut known, 7));
        for n in 0..10_000 {
            assert_eq!(is_new(&mut known, n), n != 7);
        }
        assert_eq!(known.len(), MAX_KNOWN);
    }
}
