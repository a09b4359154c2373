//! What routers tell of a rank when they fence it: its home router needs the determinants that all
//! of them hold. They can be many, so that the machine is told of their number only.

use eyrie_wire::data::Determinant;
use eyrie_wire::{Rank, RankInstance};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Determinants of the ranks that are being fenced.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Gathered(BTreeMap<Rank, (RankInstance, Vec<Determinant>)>);

impl Gathered {
    /// All routers are told to fence. What belongs to an older incarnation is of no use any more.
    pub fn begin(&mut self, instance: RankInstance) {
        self.0.insert(instance.rank, (instance, Vec::new()));
    }

    /// A router has told what it holds.
    pub fn add(&mut self, instance: RankInstance, mut list: Vec<Determinant>) {
        if let Some((_, all)) = self.0.get_mut(&instance.rank).filter(|(of, _)| *of == instance) {
            all.append(&mut list);
        }
    }

    /// Takes what was told for this incarnation.
    pub fn take(&mut self, instance: RankInstance) -> Vec<Determinant> {
        let of_it = self.0.get(&instance.rank).is_some_and(|(of, _)| *of == instance);
        let taken = of_it.then(|| self.0.remove(&instance.rank)).flatten();
        taken.map_or(Vec::new(), |(_, all)| all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_told_for_the_newest_incarnation_is_gathered() {
        let instance = |incarnation| RankInstance { rank: 3, incarnation };
        let d = |clock| Determinant { clock, rsn: clock };
        let mut gathered = Gathered::default();
        gathered.begin(instance(2));
        gathered.add(instance(2), vec![d(1)]);
        // It died again.
        gathered.begin(instance(3));
        gathered.add(instance(2), vec![d(9)]);
        gathered.add(instance(3), vec![d(2)]);
        gathered.add(instance(3), vec![d(1)]);
        assert_eq!(gathered.take(instance(2)), vec![]);
        assert_eq!(gathered.take(instance(3)), vec![d(2), d(1)]);
        assert_eq!(gathered.take(instance(3)), vec![]);
    }
}
