//! Which node a router or a store is best on, and whether it can leave one.

use crate::machine::io::StoreId;
use crate::machine::ranks::entry::RankEntry;
use crate::machine::state::RankStateName;
use crate::machine::view::View;
use eyrie_transport::RouterId;
use eyrie_wire::{Node, Rank};
use std::time::Duration;

/// After so long a host may have room again: a store that is missing is tried there once more.
const ROOM_AGAIN: Duration = Duration::from_secs(60);

impl<'a> View<'a> {
    /// The node that a router is to run on: one without its ranks, rather one without any, rather
    /// one with few routers. None when no node is up.
    pub fn node_for_router(self, id: RouterId) -> Option<Node> {
        let served = self.nodes_served(id);
        self.nodes_up_with_ranks()
            .min_by_key(|(node, ranks)| {
                let routers = self.roles.routers.iter().enumerate();
                let others =
                    routers.clone().filter(|(other, r)| *other as u32 != id && r.node == *node);
                let failed = routers
                    .clone()
                    .any(|(of, r)| of as u32 == id && r.failed() > 0 && r.node == *node);
                let drained = self.nodes[*node].drained;
                let far = self.rank_that_cannot_meet(*node).is_some();
                let served = served[*node as usize];
                (drained, failed, far, served, *ranks > 0, others.count(), *node)
            })
            .map(|(node, _)| node)
    }

    /// The nodes that are up, and how many ranks each has or is to have.
    pub fn nodes_up_with_ranks(self) -> impl Iterator<Item = (Node, u32)> {
        let mut ranks = vec![0; self.nodes.len()];
        for r in self.ranks.living() {
            ranks[r.node as usize] += 1;
        }
        let nodes: Vec<_> = self.nodes.up().map(|node| (node, ranks[node as usize])).collect();
        nodes.into_iter()
    }

    /// For each node whether ranks of this router are there, or are to come back there.
    pub fn nodes_served(self, id: RouterId) -> Vec<bool> {
        let mut served = vec![false; self.nodes.len()];
        let ranks = self.roles.ranks_at(id).map(|rank| &self.ranks[rank]);
        for r in ranks.filter(|r| !r.is(RankStateName::Finished)) {
            served[r.node as usize] = true;
        }
        served
    }

    /// Ranks whose death, with or without their node, cannot be recovered from at present.
    pub fn unprotected_ranks(self) -> impl Iterator<Item = Rank> + 'a {
        let living = self.ranks.living();
        living
            .filter(move |r| {
                let lost = r.log_lost || r.unprotected.is_some();
                lost || self.is_beside(r) || self.roles.is_unheard(r) || self.is_imaged_beside(r)
            })
            .map(|r| r.rank)
    }

    /// Whether a rank's own router is on its host.
    fn is_beside(self, r: &RankEntry) -> bool {
        let home = self.roles.home.get(r.rank as usize);
        let router = home.and_then(|home| self.roles.routers.get(*home as usize));
        router.is_some_and(|router| router.node == r.node)
    }

    /// Whether all images that could bring a rank back are on its own host.
    fn is_imaged_beside(self, r: &RankEntry) -> bool {
        let elsewhere =
            |store: &StoreId| self.roles.stores.get(store).is_none_or(|store| store.node != r.node);
        let mut stores = r.images.iter().flat_map(|kept| &kept.copies.stores);
        r.truncated && !stores.any(elsewhere)
    }

    /// Whether a router shares its host with ranks that it serves, there is a better one, and all
    /// ranks are whole: those that it serves will be imaged once more, and the others must tell the
    /// new router themselves what they told the old one.
    pub fn should_move(self, id: RouterId) -> bool {
        let node = self.roles.routers[id as usize].node;
        let served = self.nodes_served(id);
        let drained = |node: Node| self.nodes[node].drained;
        if !drained(node) && !served[node as usize] {
            return false;
        }
        let whole = |rank: Rank| {
            let r = &self.ranks[rank];
            let runs = r.is(RankStateName::Running) && r.can_be_captured() && !r.exposed;
            r.is(RankStateName::Finished) || runs && r.unprotected.is_none() && !r.log_lost
        };
        let runs = |r: &RankEntry| r.is(RankStateName::Running) || r.is(RankStateName::Finished);
        let can = self.ranks.iter().all(runs) && self.roles.ranks_at(id).all(whole);
        let better = self.node_for_router(id).filter(|_| can);
        let better = better.filter(|better| self.rank_that_cannot_meet(*better).is_none());
        better.is_some_and(
            |better| {
                if drained(node) {
                    !drained(better)
                } else {
                    !served[better as usize]
                }
            },
        )
    }

    /// The node that a store may move to: one that has none, and room.
    pub fn node_for_store(self) -> Option<Node> {
        self.node_with_room(|full| full.is_none())
    }

    /// The node for a store more, also one that had no room some time ago.
    pub fn node_for_missing_store(self) -> Option<Node> {
        // Where all are full, one that may fail is better than none.
        let none_left = self.roles.stores.is_empty();
        let again = |full: Duration| none_left || self.out.now() >= full + ROOM_AGAIN;
        self.node_for_store().or_else(|| self.node_with_room(|full| full.is_none_or(again)))
    }

    fn node_with_room(self, has_room: impl Fn(Option<Duration>) -> bool) -> Option<Node> {
        let has_store = |node| self.roles.stores.values().any(|store| store.node == node);
        let can = |node: Node| {
            let entry = &self.nodes[node];
            !entry.drained && has_room(entry.full) && !has_store(node)
        };
        let free = self.nodes_up_with_ranks().filter(|(node, _)| can(*node));
        let far = |node| self.cannot_meet_store(StoreId::MAX, node).is_some();
        free.min_by_key(|(node, ranks)| (far(*node), *ranks, *node)).map(|(node, _)| node)
    }

    /// A node with ranks that cannot meet this one.
    pub fn rank_that_cannot_meet(self, node: Node) -> Option<Node> {
        let living = self.ranks.living();
        living.map(|r| r.node).find(|of_rank| self.reach.cannot_meet(*of_rank, node))
    }

    /// Whether that is so for a while: a host that was cut off for a moment says it late.
    pub fn lasts(self, one: Node, other: Node) -> bool {
        let since = self.reach.since(one, other);
        since.is_some_and(|since| self.out.now() >= since + self.nodes.heartbeat_interval() * 2)
    }

    /// A node with ranks or another store that cannot meet this store's.
    pub fn cannot_meet_store(self, id: StoreId, node: Node) -> Option<Node> {
        let others = self.roles.stores.iter().filter(|(other, _)| **other != id);
        let other = others.map(|(_, s)| s.node).find(|other| self.reach.cannot_meet(*other, node));
        other.or_else(|| self.rank_that_cannot_meet(node))
    }

    /// Whether all ranks of a router live, and nothing for them is at that router alone.
    pub fn can_lose_log(self, id: RouterId) -> bool {
        let lives =
            |r: &RankEntry| r.is(RankStateName::Finished) || r.on_node().is_some() && !r.exposed;
        self.roles.ranks_at(id).all(|rank| lives(&self.ranks[rank]))
    }
}
