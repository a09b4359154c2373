//! The job's PMI key-value space, as its nodes keep and receive it. What an MPI library puts there
//! for each rank is the address that our provider gave it, which says only the rank. Such entries
//! are kept and sent as runs of ranks, so that a job of many ranks needs no more room than one of
//! few. In either form, an entry reads as it was put.

use crate::rank_address::address;
use crate::Rank;
use rangemap::RangeInclusiveSet;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;

/// How MPI libraries write the bytes of an address as text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
enum Spelling {
    /// Two digits for each byte: MPICH 4, Intel MPI.
    Upper,
    /// The same with small letters: libeyrie-pmix, for Open MPI.
    Lower,
    /// As `Upper`, and `[n]` for two or more bytes of zero: MPICH 5 (`MPL_hex_encode`).
    Zeros,
}

impl Spelling {
    const ALL: [Spelling; 3] = [Spelling::Upper, Spelling::Lower, Spelling::Zeros];

    fn spell(self, bytes: &[u8]) -> String {
        let mut text = String::new();
        let mut rest = bytes;
        while let Some((byte, others)) = rest.split_first() {
            let zeros = rest.iter().take_while(|byte| **byte == 0).count();
            rest = others;
            // Writing to a string cannot fail.
            let _ = match self {
                Spelling::Zeros if zeros > 1 => {
                    rest = &rest[zeros - 1..];
                    write!(text, "[{zeros}]")
                }
                Spelling::Upper | Spelling::Zeros => write!(text, "{byte:02X}"),
                Spelling::Lower => write!(text, "{byte:02x}"),
            };
        }
        text
    }
}

/// Entries of ranks that differ only in the rank. The rank's number is between the two parts of the
/// key, and the rank's address between those of the value.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Pattern {
    key: [String; 2],
    value: [String; 2],
    spelling: Spelling,
}

impl Pattern {
    /// The pattern of an entry of this rank, if its value has the rank's address.
    fn of(rank: Rank, key: &str, value: &str) -> Option<Pattern> {
        let digit = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
        let number = rank.to_string();
        // Keys may have other numbers as well, more likely before the rank's.
        let key = key.rmatch_indices(&number).find_map(|(at, _)| {
            let before = &key[..at];
            let after = &key[at + number.len()..];
            let whole = !before.ends_with(|c: char| c.is_ascii_digit()) && !digit(after);
            whole.then(|| [before.to_string(), after.to_string()])
        })?;
        Spelling::ALL.into_iter().find_map(|spelling| {
            let (before, after) = value.split_once(&spelling.spell(&address(rank)))?;
            let value = [before.to_string(), after.to_string()];
            Some(Pattern { key: key.clone(), value, spelling })
        })
    }

    /// The rank that has this key.
    fn rank_of(&self, key: &str) -> Option<Rank> {
        let [before, after] = &self.key;
        let number = key.strip_prefix(before.as_str())?.strip_suffix(after.as_str())?;
        let rank: Rank = number.parse().ok()?;
        (rank.to_string() == number).then_some(rank)
    }

    fn value_of(&self, rank: Rank) -> String {
        let [before, after] = &self.value;
        [before, self.spelling.spell(&address(rank)).as_str(), after].concat()
    }
}

/// One entry, or those of ranks with consecutive numbers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Entry {
    Text { key: String, value: String },
    Addresses { pattern: Pattern, first: Rank, last: Rank },
}

impl Entry {
    /// Keys and values, as ranks read them.
    pub fn texts(&self) -> Vec<(String, String)> {
        match self {
            Entry::Text { key, value } => vec![(key.clone(), value.clone())],
            Entry::Addresses { pattern, first, last } => {
                let [before, after] = &pattern.key;
                let text = |rank| {
                    let key = format!("{before}{rank}{after}");
                    (key, pattern.value_of(Rank(rank)))
                };
                (first.0..=last.0).map(text).collect()
            }
        }
    }

    /// Most bytes that it can take in a message.
    pub fn most_bytes(&self) -> usize {
        const NUMBERS: usize = 32;
        let texts = match self {
            Entry::Text { key, value } => key.len() + value.len(),
            Entry::Addresses { pattern: Pattern { key, value, .. }, .. } => {
                key.iter().chain(value).map(String::len).sum()
            }
        };
        texts + NUMBERS
    }
}

/// The entries that a node or a rank knows.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Entries {
    /// If a key is in both, this map counts.
    texts: BTreeMap<String, String>,
    addresses: BTreeMap<Pattern, RangeInclusiveSet<Rank>>,
}

impl Entries {
    /// A rank puts an entry. Returns what is new, for others that have the same entries.
    pub fn put(&mut self, rank: Rank, key: String, value: String) -> Option<Entry> {
        let entry = match self.get(&key) {
            Some(known) if known == value => return None,
            Some(_) => Entry::Text { key, value },
            None => match Pattern::of(rank, &key, &value) {
                Some(pattern) => Entry::Addresses { pattern, first: rank, last: rank },
                None => Entry::Text { key, value },
            },
        };
        self.add(entry.clone());
        Some(entry)
    }

    /// Adds what [`Entries::put`] has returned elsewhere, in the same order.
    pub fn add(&mut self, entry: Entry) {
        match entry {
            Entry::Text { key, value } => drop(self.texts.insert(key, value)),
            Entry::Addresses { pattern, first, last } if first <= last => {
                self.addresses.entry(pattern).or_default().insert(first..=last);
            }
            Entry::Addresses { .. } => {}
        }
    }

    pub fn get(&self, key: &str) -> Option<Cow<'_, str>> {
        if let Some(value) = self.texts.get(key) {
            return Some(value.into());
        }
        self.addresses.iter().find_map(|(pattern, ranks)| {
            let rank = pattern.rank_of(key).filter(|rank| ranks.contains(rank))?;
            Some(pattern.value_of(rank).into())
        })
    }

    /// All entries, in as few runs as possible.
    pub fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        let texts = self.texts.iter();
        let texts =
            texts.map(|(key, value)| Entry::Text { key: key.clone(), value: value.clone() });
        let addresses = self.addresses.iter().flat_map(|(pattern, ranks)| {
            ranks.iter().map(|ranks| Entry::Addresses {
                pattern: pattern.clone(),
                first: *ranks.start(),
                last: *ranks.end(),
            })
        });
        texts.chain(addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What three MPI libraries put for a rank, as seen in their jobs.
    const SEEN: [(Rank, &str, &str); 6] = [
        (Rank(0), "-allgather-1-0", "65797269652072616E6B[6]"),
        (Rank(1), "-allgather-1-1", "65797269652072616E6B[2]01[3]"),
        (Rank(256), "-allgather-1-256", "65797269652072616E6B[3]01[2]"),
        (Rank(2), "bc-2", "mpi#65797269652072616E6B000002000000$"),
        (Rank(3), "3.mtl.ofi.5.0", "27:65797269652072616e6b000003000000"),
        (Rank(65_537), "65537.mtl.ofi.5.0", "27:65797269652072616e6b000001000100"),
    ];

    #[test]
    fn addresses_of_all_ranks_are_one_entry_in_the_spellings_of_three_libraries() {
        for (rank, key, value) in SEEN {
            let pattern = Pattern::of(rank, key, value).unwrap();
            let mut entries = Entries::default();
            for rank in (0..1000).rev() {
                let [before, after] = &pattern.key;
                let key = format!("{before}{rank}{after}");
                assert!(entries.put(Rank(rank), key, pattern.value_of(Rank(rank))).is_some());
            }
            let all = Entry::Addresses { pattern, first: Rank(0), last: Rank(999) };
            // Ranks whose number is in the key twice are sent in another form.
            let others = entries.iter().filter(|entry| *entry != all).count();
            assert!(others <= 4, "{key}: {:?}", entries.iter().collect::<Vec<_>>());
            if rank < Rank(1000) {
                assert_eq!(entries.get(key).as_deref(), Some(value));
            }
            assert_eq!(entries.get(&key.replace(&rank.to_string(), "1000")), None);
        }
    }

    #[test]
    fn a_key_reads_as_it_was_put_last_and_known_entries_are_not_sent_again() {
        let mut entries = Entries::default();
        let mut put = |rank, value: &str| entries.put(rank, "bc-7".into(), value.into());
        let ours = Spelling::Upper.spell(&address(Rank(7)));
        let other = "elsewhere";
        assert!(matches!(
            put(Rank(7), &ours),
            Some(Entry::Addresses { first: Rank(7), last: Rank(7), .. })
        ));
        assert_eq!(put(Rank(7), &ours), None);
        for value in [other, &ours, other] {
            let text = Entry::Text { key: "bc-7".into(), value: value.into() };
            assert_eq!((put(Rank(7), value), put(Rank(7), value)), (Some(text), None));
        }
        assert_eq!(entries.get("bc-7").as_deref(), Some(other));
    }

    #[test]
    fn keys_that_only_look_alike_have_no_value() {
        let mut entries = Entries::default();
        let value = Spelling::Zeros.spell(&address(Rank(7)));
        entries.put(Rank(7), "-allgather-1-7".into(), value);
        for key in ["-allgather-1-07", "-allgather-1-+7", "-allgather-1-", "-allgather-1-8", "7"] {
            assert_eq!(entries.get(key), None, "{key}");
        }
    }

    proptest! {
        /// Whatever ranks put, every key reads as in a plain map, here and where it was received.
        #[test]
        fn entries_read_as_in_a_plain_map(puts in prop::collection::vec(
            (0..12u32, 0..12u32, 0..4usize, 0..4usize, any::<bool>()), 0..200)) {
            let mut plain = BTreeMap::new();
            let mut told = Entries::default();
            let mut entries = Entries::default();
            for (rank, of, key, value, split) in puts {
                let numbers = [format!("a-{rank}"), format!("{of}.a.5"), format!("a-{of}-{rank}")];
                let spelled = Spelling::ALL.get(value).map(|spelling| spelling.spell(&address(Rank(of))));
                let value = format!("{}x", spelled.unwrap_or_else(|| of.to_string()));
                let key = numbers.get(key).cloned().unwrap_or_default();
                plain.insert(key.clone(), value.clone());
                if let Some(entry) = entries.put(Rank(rank), key, value) {
                    told.add(entry);
                }
                if split {
                    let all = entries.iter().collect::<Vec<_>>();
                    let mut late = Entries::default();
                    for entry in all {
                        late.add(entry);
                    }
                    prop_assert_eq!(&late, &entries);
                }
            }
            prop_assert_eq!(&told, &entries);
            for (key, value) in &plain {
                prop_assert_eq!(entries.get(key), Some(Cow::from(value)));
            }
        }
    }
}
