//! What reaches the controller's main thread from the threads around it.

use super::link::Link;
use crossbeam_channel::Sender;
use eyrie_router::RouterEvent;
use eyrie_store::role::StoreEvent;
use eyrie_wire::control::{FromAgent, Role};
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
    /// A role in a process of its own has connected, or has left.
    RoleUp {
        role: Role,
        link: Link,
    },
    RoleGone {
        role: Role,
    },
    /// What a router in a process of its own says.
    Router {
        id: u32,
        generation: u32,
        event: RouterEvent,
    },
    Store {
        id: u32,
        event: StoreEvent,
    },
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
