//! What the controller knows of roles on nodes. Decides nothing.

use crate::machine::config::Config;
use crate::machine::io::StoreId;
use crate::machine::ranks::entry::RankEntry;
use crate::machine::ranks::Ranks;
use crate::machine::state::{next, RoleEvent, RoleStateName, ROLES};
use eyrie_transport::{Addr, RouterId};
use eyrie_wire::control::Role;
use eyrie_wire::{Node, Rank};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The state of a role with what is known in it ([`RoleStateName`] says what each means). `failed`:
/// starts in a row that have failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum RoleState {
    /// `until`: when it must have said where it listens.
    Starting {
        until: Duration,
        failed: u32,
    },
    Up {
        addr: Addr,
    },
    Down {
        failed: u32,
    },
}

/// An event of the table with what comes with it.
#[derive(Debug)]
pub enum Step {
    Listens {
        addr: Addr,
    },
    /// `failed`: its start has failed.
    Gone {
        failed: bool,
    },
    Replaced {
        until: Duration,
    },
}

impl Step {
    fn event(&self) -> RoleEvent {
        match self {
            Step::Listens { .. } => RoleEvent::Listens,
            Step::Gone { .. } => RoleEvent::Gone,
            Step::Replaced { .. } => RoleEvent::Replaced,
        }
    }
}

/// A router or a store on a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// How many have had its number before.
    pub generation: u32,
    pub node: Node,
    /// The node of the one before.
    pub before: Option<Node>,
    state: RoleState,
}

impl Entry {
    /// The first of its number, whose agent is told to start it.
    pub fn new(node: Node, until: Duration) -> Entry {
        let state = RoleState::Starting { until, failed: 0 };
        Entry { generation: 0, node, before: None, state }
    }

    /// Changes the state as the table says; false, and nothing else, when it has no row for it.
    pub fn advance(&mut self, step: Step) -> bool {
        let Some(name) = next(ROLES, self.name(), step.event()) else { return false };
        let before = self.failed();
        self.state = match (name, step) {
            (RoleStateName::Up, Step::Listens { addr }) => RoleState::Up { addr },
            (RoleStateName::Down, Step::Gone { failed }) => {
                RoleState::Down { failed: before + u32::from(failed) }
            }
            (RoleStateName::Starting, Step::Replaced { until }) => {
                RoleState::Starting { until, failed: before }
            }
            _ => return false,
        };
        true
    }

    /// Another one takes its place on this node, which must listen in time. `listened`: this one
    /// did.
    pub fn replace(&mut self, node: Node, until: Duration, listened: bool) {
        if self.advance(Step::Replaced { until }) {
            self.before = listened.then_some(self.node).or(self.before);
            (self.generation, self.node) = (self.generation + 1, node);
        }
    }

    pub fn name(&self) -> RoleStateName {
        match self.state {
            RoleState::Starting { .. } => RoleStateName::Starting,
            RoleState::Up { .. } => RoleStateName::Up,
            RoleState::Down { .. } => RoleStateName::Down,
        }
    }

    /// Whether it has said where it listens.
    pub fn is_up(&self) -> bool {
        self.addr().is_some()
    }

    /// Where it listens, once it does.
    pub fn addr(&self) -> Option<&Addr> {
        match &self.state {
            RoleState::Up { addr } => Some(addr),
            _ => None,
        }
    }

    /// Starts in a row that have failed.
    pub fn failed(&self) -> u32 {
        match self.state {
            RoleState::Starting { failed, .. } | RoleState::Down { failed } => failed,
            RoleState::Up { .. } => 0,
        }
    }

    /// When something must have happened.
    pub fn until(&self) -> Option<Duration> {
        match self.state {
            RoleState::Starting { until, .. } => Some(until),
            RoleState::Up { .. } => None,
            RoleState::Down { .. } => Some(Duration::ZERO),
        }
    }

    /// The controller itself stood still for so long.
    fn extend(&mut self, gap: Duration) {
        if let RoleState::Starting { until, .. } = &mut self.state {
            *until += gap;
        }
    }
}

/// Routers and stores on nodes; none where they run beside the controller.
#[derive(Default, Debug, Serialize, Deserialize)]
pub struct Roles {
    pub(super) routers: Vec<Entry>,
    /// Those that are not lost.
    pub(super) stores: BTreeMap<StoreId, Entry>,
    pub(super) next_store: StoreId,
    /// Ranks that a router which took over has not heard yet: should one die, it is
    /// not known what it told the lost router.
    pub(super) unheard: BTreeSet<(Rank, RouterId)>,
    /// The home router of each rank.
    pub(super) home: Vec<RouterId>,
    pub(super) epoch: u64,
    /// Starts of stores in a row that have failed.
    pub(super) failed_stores: u32,
}

impl Roles {
    /// None yet. With an `archive` that has the first number.
    pub fn after(archive: bool) -> Roles {
        Roles { next_store: archive.into(), ..Roles::default() }
    }

    pub fn all(&self) -> impl Iterator<Item = &Entry> {
        self.routers.iter().chain(self.stores.values())
    }

    /// The routers, in order of their numbers.
    pub fn routers(&self) -> &[Entry] {
        &self.routers
    }

    /// The stores that are not lost.
    pub fn stores(&self) -> &BTreeMap<StoreId, Entry> {
        &self.stores
    }

    /// Routers and stores on nodes, and their nodes; none where they run beside the controller.
    pub fn iter(&self) -> impl Iterator<Item = (Role, Node)> + '_ {
        let routers = self.routers.iter().enumerate().map(|(id, router)| {
            let Entry { generation, node, .. } = *router;
            (Role::Router { id: id as RouterId, generation }, node)
        });
        routers.chain(self.stores.iter().map(|(id, store)| (Role::Store { id: *id }, store.node)))
    }

    /// Those of them that have said where they listen.
    pub fn up(&self) -> impl Iterator<Item = Role> + '_ {
        self.iter().map(|(role, _)| role).filter(|role| match role {
            Role::Router { id, .. } => self.routers[*id as usize].is_up(),
            Role::Store { id } => self.addr_of_store(*id).is_some(),
        })
    }

    /// The roles on this node.
    pub fn on(&self, node: Node) -> impl Iterator<Item = Role> + '_ {
        self.iter().filter(move |(_, on)| *on == node).map(|(role, _)| role)
    }

    /// Where a store on a node listens.
    pub fn addr_of_store(&self, id: StoreId) -> Option<&Addr> {
        self.stores.get(&id)?.addr()
    }

    pub fn node_of_store(&self, id: StoreId) -> Option<Node> {
        self.stores.get(&id).map(|store| store.node)
    }

    /// The home router of each rank.
    pub fn homes(&self) -> &[RouterId] {
        &self.home
    }

    /// Those of a saved job: its routers have saved the logs of these ranks.
    pub fn set_homes(&mut self, home: Vec<RouterId>) {
        self.home = home;
    }

    /// For each rank whether it is at home at this router.
    pub fn at_home(&self, id: RouterId) -> Vec<bool> {
        self.home.iter().map(|home| *home == id).collect()
    }

    /// The ranks that are at home at this router.
    pub fn ranks_at(&self, id: RouterId) -> impl Iterator<Item = Rank> + '_ {
        let home = self.home.iter().enumerate();
        home.filter(move |(_, home)| **home == id).map(|(rank, _)| rank as Rank)
    }

    /// The routers on this node.
    pub fn routers_on(&self, node: Node) -> Vec<RouterId> {
        let routers = self.routers.iter().enumerate();
        routers.filter(|(_, r)| r.node == node).map(|(id, _)| id as RouterId).collect()
    }

    /// Whether it is the last of its kind. Those beside the controller always are.
    pub fn is_current(&self, config: &Config, role: Role) -> bool {
        match role {
            _ if !config.roles_on_nodes => true,
            Role::Router { id, generation } => {
                let entry = self.routers.get(id as usize);
                entry.is_some_and(|entry| entry.generation == generation)
            }
            Role::Store { id } => self.stores.contains_key(&id),
        }
    }

    /// Whether a router that took over has not heard a rank that can still speak.
    pub fn is_unheard(&self, r: &RankEntry) -> bool {
        let speaks = !r.on_node().is_some_and(|on_node| on_node.finalized);
        speaks && self.unheard.range((r.rank, 0)..=(r.rank, RouterId::MAX)).next().is_some()
    }

    /// Whether ranks can be stopped without need: every router has heard all of them.
    pub fn ranks_can_stop(&self, config: &Config, ranks: &Ranks) -> bool {
        let is_whole =
            |r: &RankEntry| !r.log_lost && r.unprotected.is_none() && !self.is_unheard(r);
        !config.roles_on_nodes
            || self.routers.iter().all(|router| router.is_up()) && ranks.living().all(is_whole)
    }

    /// Whether a node has neither ranks whose programs have not ended nor roles.
    pub fn is_free(&self, ranks: &Ranks, node: Node) -> bool {
        ranks.on(node).is_empty() && self.on(node).next().is_none()
    }

    /// How many stores must have an image: as many as promised, or as there are on nodes.
    pub fn promised_copies(&self, config: &Config) -> usize {
        let promised = config.image_copies as usize;
        if config.roles_on_nodes && config.stores > 0 {
            promised.min(self.stores.len()).max(1)
        } else {
            promised
        }
    }

    /// The controller itself stood still for so long.
    pub fn extend(&mut self, gap: Duration) {
        let stores = self.stores.values_mut();
        self.routers.iter_mut().chain(stores).for_each(|role| role.extend(gap));
    }

    /// When a role must have said where it listens.
    pub fn next(&self) -> Option<Duration> {
        self.all().filter_map(Entry::until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(event: RoleEvent) -> Step {
        match event {
            RoleEvent::Listens => Step::Listens { addr: Addr::Unix("/r".into()) },
            RoleEvent::Gone => Step::Gone { failed: true },
            RoleEvent::Replaced => Step::Replaced { until: Duration::from_secs(9) },
        }
    }

    /// One that has come to this state by rows of the table.
    fn role_in(state: RoleStateName) -> Entry {
        let way: &[RoleEvent] = match state {
            RoleStateName::Starting => &[],
            RoleStateName::Up => &[RoleEvent::Listens],
            RoleStateName::Down => &[RoleEvent::Gone],
        };
        let mut role = Entry::new(0, Duration::from_secs(1));
        way.iter().for_each(|event| assert!(role.advance(step(*event)), "{state:?}: {event:?}"));
        role
    }

    #[test]
    fn a_role_changes_its_state_by_every_row_of_the_table_and_by_nothing_else() {
        for state in [RoleStateName::Starting, RoleStateName::Up, RoleStateName::Down] {
            for event in [RoleEvent::Listens, RoleEvent::Gone, RoleEvent::Replaced] {
                let mut role = role_in(state);
                let wanted = next(ROLES, state, event);
                assert_eq!(role.advance(step(event)), wanted.is_some(), "{state:?}: {event:?}");
                assert_eq!(role.name(), wanted.unwrap_or(state));
            }
        }
    }

    #[test]
    fn starts_that_fail_in_a_row_are_counted_until_one_listens() {
        let mut role = Entry::new(0, Duration::ZERO);
        for failed in 1..4 {
            role.advance(Step::Gone { failed: true });
            role.replace(failed, Duration::ZERO, false);
            assert_eq!((role.failed(), role.generation, role.before), (failed, failed, None));
        }
        role.advance(step(RoleEvent::Listens));
        role.advance(Step::Gone { failed: false });
        role.replace(9, Duration::ZERO, true);
        assert_eq!((role.failed(), role.node, role.before), (0, 9, Some(3)));
    }
}
