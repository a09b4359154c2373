//! What every kind of role must know of a place: which nodes are up, which ranks a loss there would
//! concern, and which nodes reach each other.

use super::Roles;
use crate::machine::nodes::reach::Reach;
use crate::machine::nodes::Nodes;
use crate::machine::ranks::entry::RankEntry;
use crate::machine::ranks::Ranks;
use eyrie_wire::control::RoleKind;
use eyrie_wire::{NodeId, Rank, StoreId};
use std::time::Duration;

/// What decides where roles can be.
#[derive(Clone, Copy)]
pub struct Places<'a> {
    pub now: Duration,
    pub nodes: &'a Nodes,
    pub reach: &'a Reach,
    pub ranks: &'a Ranks,
    pub roles: &'a Roles,
}

impl<'a> Places<'a> {
    /// The nodes that are up, and how many ranks each has or is to have.
    pub fn nodes_up_with_ranks(self) -> impl Iterator<Item = (NodeId, u32)> {
        let mut ranks = vec![0; self.nodes.len()];
        for r in self.ranks.living() {
            ranks[r.node().index()] += 1;
        }
        let nodes: Vec<_> = self.nodes.up().map(|node| (node, ranks[node.index()])).collect();
        nodes.into_iter()
    }

    /// Ranks whose death, with or without their node, cannot be recovered from at present.
    pub fn unprotected_ranks(self) -> impl Iterator<Item = Rank> + 'a {
        let living = self.ranks.living();
        living
            .filter(move |r| {
                !r.log().is_whole()
                    || self.is_beside(r)
                    || self.roles.is_unheard(r)
                    || self.is_imaged_beside(r)
            })
            .map(RankEntry::rank)
    }

    /// Whether a rank's primary router is on its host.
    fn is_beside(self, r: &RankEntry) -> bool {
        let primary = self.roles.primary_of(r.rank());
        let router = primary.and_then(|primary| self.roles.node(RoleKind::Router, primary.0));
        router == Some(r.node())
    }

    /// Whether all images that could bring a rank back are on its own host.
    fn is_imaged_beside(self, r: &RankEntry) -> bool {
        let elsewhere =
            |store: &StoreId| self.roles.node(RoleKind::Store, store.0) != Some(r.node());
        let mut stores = r.images().iter().flat_map(|kept| kept.copies.stores());
        r.log().is_truncated() && !stores.any(|store| elsewhere(&store))
    }

    /// A node with ranks that cannot meet this one.
    pub fn rank_that_cannot_meet(self, node: NodeId) -> Option<NodeId> {
        let living = self.ranks.living();
        living.map(RankEntry::node).find(|of_rank| self.reach.cannot_meet(*of_rank, node))
    }

    /// Whether that is so for a while: a host that was cut off for a moment says it late.
    pub fn lasts(self, one: NodeId, other: NodeId) -> bool {
        let since = self.reach.since(one, other);
        since.is_some_and(|since| self.now >= since + self.nodes.heartbeat_interval() * 2)
    }
}
