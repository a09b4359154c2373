//! What the controller knows of one node: its state, which carries what holds only in it. The state
//! changes by the table of [`crate::machine::state`] and by nothing else.

use crate::machine::state::{next, NodeEvent, NodeStateName, NODES};
use eyrie_wire::Node;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The heartbeats of a node that is up: one is asked for when the last was answered.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The last one that was asked for, and when the last answer came.
    pub asked: u64,
    pub asked_at: Duration,
    pub heard_at: Duration,
    pub answered: bool,
}

/// The state of a node with what is known in it ([`NodeStateName`] says what each means).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum NodeState {
    Expected,
    Up(Heartbeat),
    Dead,
}

impl NodeState {
    pub fn name(&self) -> NodeStateName {
        match self {
            NodeState::Expected => NodeStateName::Expected,
            NodeState::Up(_) => NodeStateName::Up,
            NodeState::Dead => NodeStateName::Dead,
        }
    }
}

/// One node.
#[derive(Debug, Serialize, Deserialize)]
pub struct NodeEntry {
    pub state: NodeState,
    /// Started without ranks and has had none.
    pub free_spare: bool,
    pub stands_for: Option<Node>,
    /// Nothing is to be there: ranks leave it, and none comes.
    pub drained: bool,
    /// Since when a store could not work there: its disk is full.
    pub full: Option<Duration>,
    /// Its agent ends as soon as it is told to.
    pub leaves: bool,
}

impl NodeEntry {
    pub fn new(spare: bool) -> NodeEntry {
        NodeEntry {
            state: NodeState::Expected,
            free_spare: spare,
            stands_for: None,
            drained: false,
            full: None,
            leaves: false,
        }
    }

    /// Nothing is to come to the node any more.
    pub fn close(&mut self) {
        (self.drained, self.free_spare) = (true, false);
    }

    pub fn is_up(&self) -> bool {
        matches!(self.state, NodeState::Up(_))
    }

    pub fn heartbeat_mut(&mut self) -> Option<&mut Heartbeat> {
        match &mut self.state {
            NodeState::Up(heartbeat) => Some(heartbeat),
            _ => None,
        }
    }

    /// Changes the state as the table says; false, and nothing else, when it has no row for it.
    pub fn advance(&mut self, event: NodeEvent, now: Duration) -> bool {
        let Some(name) = next(NODES, self.state.name(), event) else { return false };
        self.state = match name {
            NodeStateName::Expected => NodeState::Expected,
            NodeStateName::Up => {
                NodeState::Up(Heartbeat { asked: 0, asked_at: now, heard_at: now, answered: true })
            }
            NodeStateName::Dead => NodeState::Dead,
        };
        true
    }
}
