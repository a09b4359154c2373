//! The nodes of a cluster: their slots and their state. [`crate::assign`], [`crate::balance`] and
//! the planner ask the same of a node. Data only: nothing is decided here.

/// A node of a running job, by its index in the list of nodes: the number of the controller's
/// `eyrie_wire::NodeId`. Where that node is in a network is a [`eyrie_topology::NetworkNode`].
pub type JobNode = u32;

/// The nodes of a job, and where its ranks are.
#[derive(Debug, Clone, Copy)]
pub struct JobNodes<'a> {
    pub nodes: &'a [Node],
    /// By rank: the node that it is on, or on the way to; of a displaced one the node that it was
    /// on. `None`: it has ended, or is no rank of these nodes.
    pub at: &'a [Option<JobNode>],
}

/// Whether ranks can be on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeState {
    /// It is up, and ranks may come to it.
    Open,
    /// No rank comes to it: it is drained, or belongs to another job.
    Closed,
    /// It has failed.
    Failed,
}

/// A node of a running job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    pub state: NodeState,
    /// How many ranks it has room for. Balancing keeps to it. A displaced rank goes over it where
    /// no other node has room.
    pub slots: u32,
    /// How many ranks are on it, or on the way to it.
    pub ranks: u32,
    /// It started without ranks, and has had none.
    pub is_free_spare: bool,
    /// The node that it replaces.
    pub replaces: Option<JobNode>,
}

impl Node {
    /// A node without ranks that ranks may come to.
    pub fn open(slots: u32) -> Node {
        Node { state: NodeState::Open, slots, ranks: 0, is_free_spare: false, replaces: None }
    }

    pub fn is_open(&self) -> bool {
        self.state == NodeState::Open
    }

    /// How many more ranks it has room for.
    pub fn room(&self) -> u32 {
        self.slots.saturating_sub(self.ranks)
    }
}
