//! Images that were refused: the same reason is said once for each rank and then counted, and the
//! count is said at the end.

use crate::record::list;
use eyrie_wire::Rank;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Reasons that are said at the end, and ranks that are named there.
const REASONS: usize = 4;
const RANKS: usize = 8;

/// Refusals of a job, by reason. Reasons that differ in numbers only (of a thread, say) are one.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Refusals {
    reasons: BTreeMap<String, Reason>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Reason {
    /// As it was given, or without its numbers when these differed.
    text: String,
    ranks: BTreeMap<Rank, u64>,
}

impl Reason {
    fn count(&self) -> u64 {
        self.ranks.values().sum()
    }
}

impl Refusals {
    /// Counts one more; whether it is the first of this rank for this reason.
    pub fn add(&mut self, rank: Rank, reason: &str) -> bool {
        let alike = without_numbers(reason);
        let known = self
            .reasons
            .entry(alike.clone())
            .or_insert_with(|| Reason { text: reason.into(), ranks: BTreeMap::new() });
        if known.text != reason {
            known.text = alike;
        }
        let count = known.ranks.entry(rank).or_default();
        *count += 1;
        *count == 1
    }

    /// How many images were refused and for what; `None` when none was.
    pub fn in_words(&self) -> Option<String> {
        let mut reasons: Vec<&Reason> = self.reasons.values().collect();
        reasons.sort_by_key(|reason| std::cmp::Reverse(reason.count()));
        let all: u64 = reasons.iter().map(|reason| reason.count()).sum();
        let part = |reason: &&Reason| {
            let ranks: Vec<Rank> = reason.ranks.keys().copied().collect();
            let who = match ranks.len() {
                0..=RANKS => list(&ranks),
                many => format!("{many} ranks"),
            };
            format!("{} of {who}: {}", reason.count(), reason.text)
        };
        let mut parts: Vec<String> = reasons.iter().take(REASONS).map(part).collect();
        let others: u64 = reasons.iter().skip(REASONS).map(|reason| reason.count()).sum();
        parts.extend((others > 0).then(|| format!("{others} for other reasons")));
        let were = if all == 1 { "image was" } else { "images were" };
        (all > 0).then(|| format!("{all} {were} refused: {}", parts.join("; ")))
    }
}

/// The text with one letter for each number, which may go on in hexadecimal digits.
fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    let mut in_number = false;
    for c in text.chars() {
        let begins = c.is_ascii_digit() && !in_number;
        in_number = begins || in_number && matches!(c, '0'..='9' | 'a'..='f');
        if begins {
            out.push('N');
        } else if !in_number {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_said_once_for_each_rank_and_counted() {
        let mut refusals = Refusals::default();
        assert_eq!(refusals.in_words(), None);
        assert!(refusals.add(Rank(1), "no space") && refusals.add(Rank(1), "thread 70 runs"));
        // Its next incarnation has another thread, for the same reason.
        assert!(
            !refusals.add(Rank(1), "thread 75 runs") && refusals.add(Rank(3), "thread 80 runs")
        );
        assert_eq!(
            refusals.in_words().unwrap(),
            "4 images were refused: 3 of ranks 1, 3: thread N runs; 1 of rank 1: no space"
        );
    }

    #[test]
    fn a_file_with_another_number_is_no_other_reason() {
        let full = |file: &str| without_numbers(&format!("store-1/packs/{file}: no space"));
        assert_eq!(full("000000000000000a"), full("0000000000000019"));
        assert_eq!(without_numbers("NN 12, 3 of 4"), "NN N, N of N");
    }

    #[test]
    fn the_end_stays_a_line_however_many_there_are() {
        let mut refusals = Refusals::default();
        for (i, reason) in ["a", "b", "c", "d", "e", "f"].iter().enumerate() {
            (0..100).for_each(|rank| _ = refusals.add(Rank(rank), reason));
            (i..6).for_each(|_| assert!(!refusals.add(Rank(0), reason)));
        }
        let words = refusals.in_words().unwrap();
        assert!(words.starts_with("621 images were refused: 106 of 100 ranks: a; "), "{words}");
        assert!(words.ends_with("; 203 for other reasons"), "{words}");
    }
}
