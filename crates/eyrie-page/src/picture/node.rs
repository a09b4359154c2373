//! A node in the picture.

use super::health::{HealthPicture, NodeSample};
use eyrie_wire::NodeId;
use serde::Serialize;

/// What is known of a node's agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    #[default]
    Expected,
    Up,
    /// Declared dead.
    Lost,
    /// Its agent has ended, and nothing was lost with it.
    Left,
}

/// A node.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct NodePicture {
    pub node: NodeId,
    /// The name of its host, where nodes have some.
    pub host: Option<String>,
    pub state: NodeState,
    /// No rank comes there: it is drained, or being drained.
    pub drained: bool,
    /// Why it is about to be taken away.
    pub notice: Option<String>,
    /// The roles that run there.
    pub roles: Vec<String>,
    /// Its host has a whole copy of the journal.
    pub journal: bool,
    pub health: HealthPicture,
    pub sample: Option<NodeSample>,
    /// When the last event was about it, in seconds of the job's time.
    #[serde(skip)]
    pub heard: f64,
}

impl NodePicture {
    pub fn new(node: NodeId) -> NodePicture {
        NodePicture {
            node,
            host: None,
            state: NodeState::default(),
            drained: false,
            notice: None,
            roles: Vec::new(),
            journal: false,
            health: HealthPicture::default(),
            sample: None,
            heard: 0.0,
        }
    }
}
