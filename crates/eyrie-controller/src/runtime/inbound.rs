//! What reaches the controller's main thread from the threads around it, and what of it goes into
//! the journal: a controller that hears the same again comes to the same state.

use super::children::Child;
use super::link::Link;
use super::roles::said::RoleEvent;
use crate::machine::redundancy::JournalCopies;
use crossbeam_channel::Sender;
use eyrie_transport::session::Kind;
use eyrie_wire::control::{FromAgent, Role};
use eyrie_wire::Node;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Something that the job hears.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Heard {
    /// Time has passed.
    Tick,
    /// `peer`: by which address the agent reaches the controller, where it has one.
    AgentUp {
        node: Node,
        peer: Option<IpAddr>,
    },
    Agent {
        node: Node,
        letter: Letter,
        message: FromAgent,
    },
    AgentGone {
        node: Node,
    },
    /// An agent has connected to this controller once more.
    AgentBack {
        node: Node,
    },
    /// These nodes are on the controller's own host.
    Home(Vec<Node>),
    /// Nodes have another controller, there.
    Replaced {
        by: String,
    },
    /// An agent that was declared dead wants to come back; it was refused.
    AgentWoke {
        node: Node,
    },
    /// A line of the launcher of a node, or of all nodes; and its end.
    LauncherSaid {
        node: Option<Node>,
        line: String,
    },
    LauncherGone {
        node: Option<Node>,
    },
    /// A process that the controller has started has ended.
    ChildGone(Child),
    /// The process of a role has ended, or its host is not reached.
    RoleGone {
        role: Role,
    },
    /// What a role says.
    Role {
        role: Role,
        letter: Letter,
        event: RoleEvent,
    },
    /// More standard input, or its end.
    Stdin {
        bytes: Vec<u8>,
        eof: bool,
    },
    /// A user's request.
    User {
        request: String,
    },
    /// The job is to end: a signal, output that is not read.
    Stop {
        code: i32,
        cause: String,
    },
    Note(String),
    /// All ranks are to get this signal.
    Signal(u8),
    /// The job is to be saved and to end.
    Save,
    /// What a router is to save cannot be written.
    RouterNotSaved {
        router: u32,
        reason: String,
    },
    /// What the job needs besides images and routers is saved, in this directory; or cannot be.
    JobSaved(Result<String, String>),
    /// Another controller goes on with the job.
    Resumed,
    /// It does not reach the directory in which the job could be saved.
    ArchiveLost,
    /// Other hosts have so many copies of the journal now.
    JournalCopies(JournalCopies),
}

/// What came with a message over a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Letter {
    /// Its number; 0: none.
    pub number: u64,
    /// How many letters of the controller the other side has heard.
    pub heard: u64,
    pub bytes: usize,
}

impl Letter {
    /// Of a role in this process.
    pub const NONE: Letter = Letter { number: 0, heard: 0, bytes: 0 };

    pub fn kind(self) -> Kind {
        match self.number {
            0 => Kind::Passing,
            number => Kind::Letter(number),
        }
    }
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Peer {
    Agent(Node),
    Role(Role),
}

/// A message to the main thread.
pub enum Inbound {
    Heard(Heard),
    /// An agent has connected, and has heard so many letters of the controller.
    AgentUp {
        node: Node,
        link: Link,
        heard: u64,
    },
    /// So has a role in a process of its own.
    RoleUp {
        role: Role,
        link: Link,
        heard: u64,
    },
    /// A connection to an agent or a role has ended; `silent`: because the other host did not
    /// answer.
    Gone {
        by: Peer,
        link: u64,
        silent: bool,
    },
    /// An agent or a role has heard so many letters of the controller.
    Confirmed {
        by: Peer,
        heard: u64,
    },
    /// A user's request, and where its answer goes.
    User {
        request: String,
        answer: Sender<String>,
    },
    /// So many bytes of the journal are on the host of this node, or why not.
    JournalKept {
        node: Node,
        kept: Result<u64, String>,
    },
    /// What the ranks write cannot be passed on any more.
    OutputFailed,
    Signal(i32),
}
