//! Fences under way: a rank may come back when every router lets only its newest incarnation speak, and
//! then its home router needs the determinants that all of them hold.

use eyrie_transport::RouterId;
use eyrie_wire::data::Determinant;
use eyrie_wire::{Rank, RankInstance};
use std::collections::{BTreeMap, BTreeSet};

/// Fences that not all routers have confirmed.
#[derive(Debug, Default)]
pub struct Fences(BTreeMap<Rank, Fence>);

#[derive(Debug)]
struct Fence {
    instance: RankInstance,
    waiting: BTreeSet<RouterId>,
    determinants: Vec<Determinant>,
}

impl Fences {
    /// All routers are told. An older fence of the same rank is forgotten.
    pub fn begin(&mut self, instance: RankInstance, routers: usize) {
        let waiting = (0..routers as RouterId).collect();
        let fence = Fence { instance, waiting, determinants: Vec::new() };
        self.0.insert(instance.rank, fence);
    }

    /// A router has fenced and tells what it holds. Returns what all of them hold when it was the last.
    pub fn confirmed(
        &mut self,
        router: RouterId,
        instance: RankInstance,
        mut list: Vec<Determinant>,
    ) -> Option<Vec<Determinant>> {
        let fence = self.0.get_mut(&instance.rank).filter(|f| f.instance == instance)?;
        if fence.waiting.remove(&router) {
            fence.determinants.append(&mut list);
        }
        if !fence.waiting.is_empty() {
            return None;
        }
        self.0.remove(&instance.rank).map(|f| f.determinants)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_stands_when_all_routers_have_confirmed_it() {
        let instance = |incarnation| RankInstance { rank: 3, incarnation };
        let d = |clock| Determinant { clock, rsn: clock };
        let mut fences = Fences::default();
        fences.begin(instance(2), 2);
        assert_eq!(fences.confirmed(0, instance(2), vec![d(1)]), None);
        assert_eq!(fences.confirmed(0, instance(2), vec![d(9)]), None, "twice");
        // It died again: only the newer incarnation counts.
        fences.begin(instance(3), 2);
        assert_eq!(fences.confirmed(1, instance(2), vec![d(9)]), None);
        assert_eq!(fences.confirmed(1, instance(3), vec![d(2)]), None);
        assert_eq!(fences.confirmed(0, instance(3), vec![d(1)]), Some(vec![d(2), d(1)]));
        assert_eq!(fences.confirmed(0, instance(3), vec![d(1)]), None);
    }
}
