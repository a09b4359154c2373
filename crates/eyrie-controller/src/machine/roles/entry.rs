//! What the controller knows of roles on nodes. Decides nothing.

use crate::machine::config::Config;
use crate::machine::io::StoreId;
use crate::machine::ranks::entry::RankEntry;
use crate::machine::ranks::Ranks;
use crate::machine::state::{next, RoleEvent, RoleStateName, ROLES};
use eyrie_transport::{Addr, RouterId};
use eyrie_wire::control::{Role, RoleKind};
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

/// A role on a node.
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

/// The roles on nodes; none where they run beside the controller.
#[derive(Default, Debug, Serialize, Deserialize)]
pub struct Roles {
    /// Those that are not lost for good, by kind and number.
    pub(super) entries: BTreeMap<(RoleKind, u32), Entry>,
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

    /// Those of a kind, in order of their numbers.
    pub fn of(&self, kind: RoleKind) -> impl DoubleEndedIterator<Item = (u32, &Entry)> {
        let numbers = (kind, 0)..=(kind, u32::MAX);
        self.entries.range(numbers).map(|((_, id), entry)| (*id, entry))
    }

    /// How many there are of a kind.
    pub fn count(&self, kind: RoleKind) -> usize {
        self.of(kind).count()
    }

    /// One of a kind, unless it is lost for good.
    pub fn get(&self, kind: RoleKind, id: u32) -> Option<&Entry> {
        self.entries.get(&(kind, id))
    }

    pub(super) fn get_mut(&mut self, kind: RoleKind, id: u32) -> Option<&mut Entry> {
        self.entries.get_mut(&(kind, id))
    }

    /// All roles, by kind and number.
    fn all(&self) -> impl Iterator<Item = (Role, &Entry)> {
        self.entries.iter().map(|(&(kind, id), entry)| {
            let generation = entry.generation;
            (Role { kind, id, generation }, entry)
        })
    }

    /// Whether none was started.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether each has said where it listens.
    pub fn are_up(&self) -> bool {
        self.entries.values().all(Entry::is_up)
    }

    /// The roles on nodes, and their nodes; none where they run beside the controller.
    pub fn iter(&self) -> impl Iterator<Item = (Role, Node)> + '_ {
        self.all().map(|(role, entry)| (role, entry.node))
    }

    /// Those of them that have said where they listen.
    pub fn up(&self) -> impl Iterator<Item = Role> + '_ {
        self.all().filter(|(_, entry)| entry.is_up()).map(|(role, _)| role)
    }

    /// The roles on this node.
    pub fn on(&self, node: Node) -> impl Iterator<Item = Role> + '_ {
        self.iter().filter(move |(_, on)| *on == node).map(|(role, _)| role)
    }

    /// The numbers of those of a kind on this node.
    pub fn of_kind_on(&self, kind: RoleKind, node: Node) -> Vec<u32> {
        self.of(kind).filter(|(_, entry)| entry.node == node).map(|(id, _)| id).collect()
    }

    /// Where a role on a node listens.
    pub fn addr(&self, kind: RoleKind, id: u32) -> Option<&Addr> {
        self.get(kind, id)?.addr()
    }

    /// The node of a role.
    pub fn node(&self, kind: RoleKind, id: u32) -> Option<Node> {
        self.get(kind, id).map(|entry| entry.node)
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

    /// Whether it is the last of its number. Those beside the controller always are.
    pub fn is_current(&self, config: &Config, role: Role) -> bool {
        let entry = self.get(role.kind, role.id);
        !config.roles_on_nodes || entry.is_some_and(|entry| entry.generation == role.generation)
    }

    /// Whether a router that took over has not heard a rank that can still speak.
    pub fn is_unheard(&self, r: &RankEntry) -> bool {
        let speaks = !r.on_node().is_some_and(|on_node| on_node.has_finalized());
        speaks && self.unheard.range((r.rank(), 0)..=(r.rank(), RouterId::MAX)).next().is_some()
    }

    /// Whether ranks can be stopped without need: every router has heard all of them.
    pub fn ranks_can_stop(&self, config: &Config, ranks: &Ranks) -> bool {
        let is_whole = |r: &RankEntry| r.log().is_whole() && !self.is_unheard(r);
        !config.roles_on_nodes
            || self.of(RoleKind::Router).all(|(_, router)| router.is_up())
                && ranks.living().all(is_whole)
    }

    /// Whether a node has neither ranks whose programs have not ended nor roles.
    pub fn is_free(&self, ranks: &Ranks, node: Node) -> bool {
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
        self.entries.values().filter_map(Entry::until).min()
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
