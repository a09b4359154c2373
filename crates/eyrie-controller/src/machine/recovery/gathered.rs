//! What routers tell of a rank when they fence it: its primary router needs the determinants that
//! all of them hold, and what the rank observed. They are moved through here and never copied: they
//! can be many.

use eyrie_router::BEGINNING;
use eyrie_wire::data::{Determinant, ObservedPart};
use eyrie_wire::{Rank, RankInstance};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All that a rank needs to replay besides messages.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Told {
    pub determinants: Vec<Determinant>,
    pub observed: Vec<ObservedPart>,
}

impl Told {
    /// What the rank observed from its beginning on, as far as it is known: a rank that is started
    /// anew needs it before it can ask its router.
    fn beginning(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for part in ObservedPart::merge(self.observed.clone()) {
            let known = (bytes.len() as u64).checked_sub(part.from);
            let Some(rest) = known.and_then(|known| part.bytes.get(known as usize..)) else {
                break;
            };
            bytes.extend_from_slice(rest);
        }
        bytes.truncate(BEGINNING as usize);
        bytes
    }
}

/// What was told of the ranks that are being fenced.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Gathered {
    ranks: BTreeMap<Rank, (RankInstance, Told)>,
    /// What ranks observed at their beginning, as it was last known.
    beginnings: BTreeMap<Rank, Vec<u8>>,
}

impl Gathered {
    /// A router has told what it holds of a rank that is being fenced. What belongs to an older
    /// incarnation is of no use any more.
    pub fn add(&mut self, instance: RankInstance, mut told: Told) {
        let (of, all) = self.ranks.entry(instance.rank).or_insert((instance, Told::default()));
        if of.incarnation < instance.incarnation {
            (*of, *all) = (instance, Told::default());
        }
        if *of == instance {
            all.determinants.append(&mut told.determinants);
            all.observed.append(&mut told.observed);
        }
    }

    /// Takes what was told for this incarnation.
    pub fn take(&mut self, instance: RankInstance) -> Told {
        let of_it = self.ranks.get(&instance.rank).is_some_and(|(of, _)| *of == instance);
        let taken = of_it.then(|| self.ranks.remove(&instance.rank)).flatten();
        let told = taken.map_or_else(Told::default, |(_, all)| all);
        self.beginnings.insert(instance.rank, told.beginning());
        told
    }

    /// What a rank that is started anew observes first.
    pub fn beginning(&self, rank: Rank) -> Vec<u8> {
        self.beginnings.get(&rank).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::Incarnation;

    #[test]
    fn the_beginning_is_what_is_known_without_a_gap() {
        let part = |from, bytes: &[u8]| ObservedPart { from, clock: 1, bytes: bytes.to_vec() };
        let observed = vec![part(3, b"de"), part(0, b"abc"), part(6, b"x"), part(3, b"de")];
        let told = Told { observed, ..Told::default() };
        assert_eq!(told.beginning(), b"abcde");
        // An image has taken the place of the beginning.
        let told = Told { observed: vec![part(3, b"de")], ..Told::default() };
        assert!(told.beginning().is_empty());
    }

    #[test]
    fn only_what_was_told_for_the_newest_incarnation_is_gathered() {
        let instance = |incarnation| RankInstance { rank: Rank(3), incarnation };
        let part = |from| ObservedPart { from, clock: 1, bytes: vec![1] };
        let told = |clocks: &[u64]| Told {
            determinants: clocks.iter().map(|c| Determinant { clock: *c, rsn: *c }).collect(),
            observed: clocks.iter().map(|c| part(*c)).collect(),
        };
        let mut gathered = Gathered::default();
        gathered.add(instance(Incarnation(2)), told(&[1]));
        // It died again.
        gathered.add(instance(Incarnation(3)), told(&[2]));
        gathered.add(instance(Incarnation(2)), told(&[9]));
        gathered.add(instance(Incarnation(3)), told(&[1]));
        assert_eq!(gathered.take(instance(Incarnation(2))), Told::default());
        assert_eq!(gathered.take(instance(Incarnation(3))), told(&[2, 1]));
        assert_eq!(gathered.take(instance(Incarnation(3))), Told::default());
    }
}
