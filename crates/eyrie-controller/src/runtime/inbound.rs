//! What reaches the controller's main thread from the threads around it.

use super::link::Link;
use crossbeam_channel::Sender;
use eyrie_store::role::StoreEvent;
use eyrie_transport::RouterId;
use eyrie_wire::control::FromAgent;
use eyrie_wire::Node;

/// A message to the main thread.
pub enum Inbound {
    AgentUp {
        node: Node,
        link: Link,
    },
    Agent {
        node: Node,
        message: FromAgent,
    },
    AgentGone {
        node: Node,
    },
    /// An agent that was declared dead wants to come back; it was refused.
    AgentWoke {
        node: Node,
    },
    /// A line of whoever starts the agent of a node, or of all nodes; and its end.
    LauncherSaid {
        node: Option<Node>,
        line: String,
    },
    LauncherGone {
        node: Option<Node>,
    },
    /// A router in a process of its own has connected, or has left.
    RouterUp {
        id: RouterId,
        link: Link,
    },
    RouterGone {
        id: RouterId,
    },
    /// The store in a process of its own has connected, or has left.
    StoreUp {
        link: Link,
    },
    StoreGone,
    Store(StoreEvent),
    /// More standard input has been read, or its end.
    Stdin,
    /// A user's request, and where its answer goes.
    User {
        request: String,
        answer: Sender<String>,
    },
    /// What the ranks write cannot be passed on any more.
    OutputFailed,
    Signal(i32),
    Note(String),
}
