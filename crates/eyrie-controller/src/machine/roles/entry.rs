//! What the controller knows of one role on a node: its state, which carries what holds only in it.
//! The state changes by the table of [`crate::machine::state`] and by nothing else.

use crate::machine::state::{next, RoleEvent, RoleStateName, ROLES};
use eyrie_wire::role_address::Addr;
use eyrie_wire::NodeId;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The state of a role with what is known in it ([`RoleStateName`] says what each means). `failed`:
/// starts in a row that have failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum RoleState {
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
enum Step {
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
pub struct RoleEntry {
    /// How many have had its number before.
    generation: u32,
    node: NodeId,
    /// The node of the last one before it that listened.
    before: Option<NodeId>,
    /// Where it listens, or the last one before it did.
    last: Option<Addr>,
    state: RoleState,
}

impl RoleEntry {
    /// The first of its number, whose agent is told to start it.
    pub fn new(node: NodeId, until: Duration) -> RoleEntry {
        let state = RoleState::Starting { until, failed: 0 };
        RoleEntry { generation: 0, node, before: None, last: None, state }
    }

    /// How many have had its number before.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The node of the last one before it that listened.
    pub fn before(&self) -> Option<NodeId> {
        self.before
    }

    /// It says where it listens.
    pub fn listen(&mut self, addr: Addr) {
        self.last = Some(addr.clone());
        self.advance(Step::Listens { addr });
    }

    /// It is gone. `by_itself`: its node is still there, so that one which has never listened could
    /// not be started. Returns whether it listened.
    pub fn lose(&mut self, by_itself: bool) -> bool {
        let listened = self.is_up();
        self.advance(Step::Gone { failed: by_itself && !listened });
        self.before = listened.then_some(self.node).or(self.before);
        listened
    }

    /// Changes the state as the table says; false, and nothing else, when it has no row for it.
    fn advance(&mut self, step: Step) -> bool {
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

    /// Another one takes its place on this node, which must listen in time.
    pub fn replace(&mut self, node: NodeId, until: Duration) {
        if self.advance(Step::Replaced { until }) {
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

    pub fn is(&self, name: RoleStateName) -> bool {
        self.name() == name
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

    /// Where it listens, or the last one before it did.
    pub fn last_addr(&self) -> Option<&Addr> {
        self.last.as_ref()
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
    pub fn extend(&mut self, gap: Duration) {
        if let RoleState::Starting { until, .. } = &mut self.state {
            *until += gap;
        }
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
    fn role_in(state: RoleStateName) -> RoleEntry {
        let way: &[RoleEvent] = match state {
            RoleStateName::Starting => &[],
            RoleStateName::Up => &[RoleEvent::Listens],
            RoleStateName::Down => &[RoleEvent::Gone],
        };
        let mut role = RoleEntry::new(NodeId(0), Duration::from_secs(1));
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
        let mut role = RoleEntry::new(NodeId(0), Duration::ZERO);
        for failed in 1..4 {
            assert!(!role.lose(true));
            role.replace(NodeId(failed), Duration::ZERO);
            assert_eq!((role.failed(), role.generation, role.before), (failed, failed, None));
        }
        assert!(
            !role.lose(false) && role.failed() == 3,
            "its node is lost: that is no failed start"
        );
        role.replace(NodeId(4), Duration::ZERO);
        role.listen(Addr::Unix("/r".into()));
        assert!(role.lose(true));
        role.replace(NodeId(9), Duration::ZERO);
        assert_eq!((role.failed(), role.node, role.before), (0, NodeId(9), Some(NodeId(4))));
    }
}
