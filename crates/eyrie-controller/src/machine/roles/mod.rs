//! Roles on nodes: where they are, and what is kept twice by them. Decides nothing itself; its
//! handlers do ([`hosting::Hosting`]).

pub mod entry;
pub mod gateway;
pub mod hosting;
pub mod kind;
pub mod missing;
pub mod places;
pub mod reach;
pub mod redundancy;
pub mod registry;
pub mod router_process;
pub mod routers;
pub mod stores;
#[cfg(test)]
pub mod trial;
pub mod why;

use super::config::Config;
use super::ranks::entry::RankEntry;
use super::ranks::Ranks;
use super::state::RoleStateName;
use entry::RoleEntry;
use eyrie_wire::control::{Role, RoleKind};
use eyrie_wire::role_address::Addr;
use eyrie_wire::{NodeId, Rank, RouterId, StoreId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The roles on nodes; none where they run beside the controller.
#[derive(Default, Debug, Serialize, Deserialize)]
pub struct Roles {
    /// Those that are not lost for good, by kind and number.
    entries: BTreeMap<(RoleKind, u32), RoleEntry>,
    next_store: StoreId,
    /// Ranks that a router which took over has not heard yet: should one die, it is
    /// not known what it told the lost router.
    unheard: BTreeSet<(Rank, RouterId)>,
    /// The primary router of each rank.
    primaries: Vec<RouterId>,
    /// The number of the gateway to other domains.
    gateway: Option<RouterId>,
    epoch: u64,
    /// Starts of stores in a row that have failed.
    failed_stores: u32,
}

impl Roles {
    /// None yet. With an archive that has the first number of a store.
    pub fn of_job(config: &Config) -> Roles {
        let gateway = config.gateway_router();
        Roles { next_store: StoreId(config.archive.into()), gateway, ..Roles::default() }
    }

    /// Those of a kind, in order of their numbers.
    pub fn of(&self, kind: RoleKind) -> impl DoubleEndedIterator<Item = (u32, &RoleEntry)> {
        let numbers = (kind, 0)..=(kind, u32::MAX);
        self.entries.range(numbers).map(|((_, id), entry)| (*id, entry))
    }

    /// The routers of this domain's ranks: all but the gateway.
    pub fn home_routers(&self) -> impl Iterator<Item = (u32, &RoleEntry)> {
        self.of(RoleKind::Router).filter(|(id, _)| !self.is_gateway(RouterId(*id)))
    }

    /// How many there are of a kind.
    pub fn count(&self, kind: RoleKind) -> usize {
        self.of(kind).count()
    }

    /// One of a kind, unless it is lost for good.
    pub fn get(&self, kind: RoleKind, id: u32) -> Option<&RoleEntry> {
        self.entries.get(&(kind, id))
    }

    pub fn get_mut(&mut self, kind: RoleKind, id: u32) -> Option<&mut RoleEntry> {
        self.entries.get_mut(&(kind, id))
    }

    /// The first of its number, which is started on this node and must listen in time.
    pub fn add(&mut self, kind: RoleKind, id: u32, node: NodeId, until: Duration) {
        self.entries.insert((kind, id), RoleEntry::new(node, until));
    }

    /// As [`Roles::add`], a store with a number that none had before.
    pub fn add_store(&mut self, node: NodeId, until: Duration) -> StoreId {
        let id = self.next_store;
        self.next_store = id.next();
        self.add(RoleKind::Store, id.0, node, until);
        id
    }

    /// It is lost for good.
    pub fn remove(&mut self, kind: RoleKind, id: u32) -> Option<RoleEntry> {
        self.entries.remove(&(kind, id))
    }

    /// The last store could not be started. Returns how often that was so in a row.
    pub fn note_failed_store(&mut self) -> u32 {
        self.failed_stores += 1;
        self.failed_stores
    }

    /// A store listens.
    pub fn forget_failed_stores(&mut self) {
        self.failed_stores = 0;
    }

    /// The number of the directory that is made now.
    pub fn next_epoch(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch
    }

    /// A router takes over that has heard none of these ranks.
    pub fn not_heard(&mut self, router: RouterId, ranks: impl IntoIterator<Item = Rank>) {
        self.unheard.extend(ranks.into_iter().map(|rank| (rank, router)));
    }

    /// A router that took over has heard the rank.
    pub fn hear(&mut self, router: RouterId, rank: Rank) {
        self.unheard.remove(&(rank, router));
    }

    /// All roles, by kind and number.
    fn all(&self) -> impl Iterator<Item = (Role, &RoleEntry)> {
        self.entries.iter().map(|(&(kind, id), entry)| {
            let generation = entry.generation();
            (Role { kind, id, generation }, entry)
        })
    }

    /// Whether none was started.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether each has said where it listens.
    pub fn are_up(&self) -> bool {
        self.entries.values().all(RoleEntry::is_up)
    }

    /// The roles on nodes, and their nodes; none where they run beside the controller.
    pub fn iter(&self) -> impl Iterator<Item = (Role, NodeId)> + '_ {
        self.all().map(|(role, entry)| (role, entry.node()))
    }

    /// Those of them that have said where they listen.
    pub fn up(&self) -> impl Iterator<Item = Role> + '_ {
        self.all().filter(|(_, entry)| entry.is_up()).map(|(role, _)| role)
    }

    /// The roles on this node.
    pub fn on(&self, node: NodeId) -> impl Iterator<Item = Role> + '_ {
        self.iter().filter(move |(_, on)| *on == node).map(|(role, _)| role)
    }

    /// The numbers of those of a kind on this node.
    pub fn of_kind_on(&self, kind: RoleKind, node: NodeId) -> Vec<u32> {
        self.of(kind).filter(|(_, entry)| entry.node() == node).map(|(id, _)| id).collect()
    }

    /// Where a role on a node listens.
    pub fn addr(&self, kind: RoleKind, id: u32) -> Option<&Addr> {
        self.get(kind, id)?.addr()
    }

    /// The node of a role.
    pub fn node(&self, kind: RoleKind, id: u32) -> Option<NodeId> {
        self.get(kind, id).map(RoleEntry::node)
    }

    /// The primary router of each rank.
    pub fn primaries(&self) -> &[RouterId] {
        &self.primaries
    }

    /// The primary router of a rank, where routers are on nodes.
    pub fn primary_of(&self, rank: Rank) -> Option<RouterId> {
        self.primaries.get(rank.index()).copied()
    }

    /// The ranks get their primary routers. In a saved job these have saved the logs of the ranks.
    pub fn set_primaries(&mut self, primaries: Vec<RouterId>) {
        self.primaries = primaries;
    }

    /// The rank gets another primary router.
    pub fn set_primary(&mut self, rank: Rank, router: RouterId) {
        if let Some(primary) = self.primaries.get_mut(rank.index()) {
            *primary = router;
        }
    }

    /// For each rank whether this router is its primary one.
    pub fn is_primary_of(&self, id: RouterId) -> Vec<bool> {
        self.primaries.iter().map(|primary| *primary == id).collect()
    }

    /// The ranks whose primary router this is.
    pub fn ranks_at(&self, id: RouterId) -> impl Iterator<Item = Rank> + '_ {
        let primaries = self.primaries.iter().enumerate();
        primaries.filter(move |(_, primary)| **primary == id).map(|(rank, _)| Rank(rank as u32))
    }

    /// Whether this router is the gateway to other domains.
    pub fn is_gateway(&self, id: RouterId) -> bool {
        self.gateway == Some(id)
    }

    /// The gateway to other domains, and its number; `None` before it is started.
    pub fn gateway(&self) -> Option<(RouterId, &RoleEntry)> {
        let id = self.gateway?;
        Some((id, self.get(RoleKind::Router, id.0)?))
    }

    /// The routers that must let only the present incarnation of a rank speak, before that comes
    /// back: all but a gateway that is gone, since the next one is told at its start.
    pub fn that_fence(&self, config: &Config) -> Vec<RouterId> {
        let is_there = |(_, gateway): &(RouterId, &RoleEntry)| !gateway.is(RoleStateName::Down);
        let gateway = self.gateway().filter(is_there).map(|(id, _)| id);
        RouterId::first(config.routers).chain(gateway).collect()
    }

    /// Whether it is the last of its number. Those beside the controller always are.
    pub fn is_current(&self, config: &Config, role: Role) -> bool {
        let entry = self.get(role.kind, role.id);
        !config.roles_on_nodes || entry.is_some_and(|entry| entry.generation() == role.generation)
    }

    /// Whether a router that took over has not heard a rank that can still speak.
    pub fn is_unheard(&self, r: &RankEntry) -> bool {
        let speaks = !r.on_node().is_some_and(|on_node| on_node.has_finalized());
        speaks
            && self
                .unheard
                .range((r.rank(), RouterId(0))..=(r.rank(), RouterId(u32::MAX)))
                .next()
                .is_some()
    }

    /// Whether ranks can be stopped without need: every router has heard all of them.
    pub fn ranks_can_stop(&self, config: &Config, ranks: &Ranks) -> bool {
        let is_whole = |r: &RankEntry| r.log().is_whole() && !self.is_unheard(r);
        !config.roles_on_nodes
            || self.home_routers().all(|(_, router)| router.is_up()) && ranks.living().all(is_whole)
    }

    /// Whether a node has neither ranks whose programs have not ended nor roles.
    pub fn is_free(&self, ranks: &Ranks, node: NodeId) -> bool {
        ranks.on(node).is_empty() && self.on(node).next().is_none()
    }

    /// How many stores must have an image: as many as promised, or as there are on nodes.
    pub fn promised_copies(&self, config: &Config) -> usize {
        let promised = config.image_copies as usize;
        if config.roles_on_nodes && config.stores > 0 {
            promised.min(self.count(RoleKind::Store)).max(1)
        } else {
            promised
        }
    }

    /// The controller itself stood still for so long.
    pub fn extend(&mut self, gap: Duration) {
        self.entries.values_mut().for_each(|role| role.extend(gap));
    }

    /// When a role must have said where it listens.
    pub fn next(&self) -> Option<Duration> {
        self.entries.values().filter_map(RoleEntry::until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_a_store_is_never_given_twice() {
        let mut roles = Roles::of_job(&Config { archive: true, ..Config::of_one_rank() });
        let until = Duration::from_secs(1);
        let first = roles.add_store(NodeId(3), until);
        assert_eq!(
            (first, roles.node(RoleKind::Store, first.0)),
            (StoreId(1), Some(NodeId(3))),
            "0 is the archive's"
        );
        assert!(roles.remove(RoleKind::Store, first.0).is_some());
        assert_eq!(
            (roles.add_store(NodeId(3), until), roles.count(RoleKind::Store)),
            (StoreId(2), 1)
        );
        assert!(roles.remove(RoleKind::Store, first.0).is_none());
    }

    #[test]
    fn a_router_that_took_over_knows_a_rank_when_it_has_heard_it() {
        let mut roles = Roles::default();
        let rank = RankEntry::new(Rank(1), NodeId(0));
        roles.not_heard(RouterId(7), Rank::first(3));
        roles.not_heard(RouterId(8), Rank::first(3));
        roles.hear(RouterId(7), Rank(1));
        assert!(roles.is_unheard(&rank), "router 8 has not");
        roles.hear(RouterId(8), Rank(1));
        assert!(!roles.is_unheard(&rank) && roles.is_unheard(&RankEntry::new(Rank(2), NodeId(0))));
    }
}
