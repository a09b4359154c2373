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
pub struct Replay {
    pub determinants: Vec<Determinant>,
    pub observed: Vec<ObservedPart>,
}

impl Replay {
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

/// What routers hold of the ranks that are being fenced.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Gathered {
    ranks: BTreeMap<Rank, (RankInstance, Replay)>,
    /// What ranks observed at their beginning, as it was last known.
    beginnings: BTreeMap<Rank, Vec<u8>>,
}

impl Gathered {
    /// A router says what it holds of a rank that is being fenced. What belongs to an older
    /// incarnation is of no use any more.
    pub fn add(&mut self, instance: RankInstance, mut replay: Replay) {
        let (of, all) = self.ranks.entry(instance.rank).or_insert((instance, Replay::default()));
        if of.incarnation < instance.incarnation {
            (*of, *all) = (instance, Replay::default());
        }
        if *of == instance {
            all.determinants.append(&mut replay.determinants);
            all.observed.append(&mut replay.observed);
        }
    }

    /// Takes what routers hold of this incarnation.
    pub fn take(&mut self, instance: RankInstance) -> Replay {
        let of_it = self.ranks.get(&instance.rank).is_some_and(|(of, _)| *of == instance);
        let taken = of_it.then(|| self.ranks.remove(&instance.rank)).flatten();
        let replay = taken.map_or_else(Replay::default, |(_, all)| all);
        self.beginnings.insert(instance.rank, replay.beginning());
        replay
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
        let replay = Replay { observed, ..Replay::default() };
        assert_eq!(replay.beginning(), b"abcde");
        // An image has taken the place of the beginning.
        let replay = Replay { observed: vec![part(3, b"de")], ..Replay::default() };
        assert!(replay.beginning().is_empty());
    }

    #[test]
    fn only_what_was_told_for_the_newest_incarnation_is_gathered() {
        let instance = |incarnation| RankInstance { rank: Rank(3), incarnation };
        let part = |from| ObservedPart { from, clock: 1, bytes: vec![1] };
        let replay = |clocks: &[u64]| Replay {
            determinants: clocks.iter().map(|c| Determinant { clock: *c, rsn: *c }).collect(),
            observed: clocks.iter().map(|c| part(*c)).collect(),
        };
        let mut gathered = Gathered::default();
        gathered.add(instance(Incarnation(2)), replay(&[1]));
        // It died again.
        gathered.add(instance(Incarnation(3)), replay(&[2]));
        gathered.add(instance(Incarnation(2)), replay(&[9]));
        gathered.add(instance(Incarnation(3)), replay(&[1]));
        assert_eq!(gathered.take(instance(Incarnation(2))), Replay::default());
        assert_eq!(gathered.take(instance(Incarnation(3))), replay(&[2, 1]));
        assert_eq!(gathered.take(instance(Incarnation(3))), Replay::default());
    }
}
