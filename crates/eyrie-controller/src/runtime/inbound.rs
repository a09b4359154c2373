//! What reaches the controller's main thread from the threads around it, and what of it goes into
//! the journal: a controller that hears the same again comes to the same state.

use super::children::Child;
use super::link::Link;
use crate::machine::{Event, FromPeer, Peer};
use crossbeam_channel::Sender;
use eyrie_interface::Request;
use eyrie_transport::session::Kind;
use eyrie_wire::control::Role;
use eyrie_wire::NodeId;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A request as users send it: its form in JSON is not one that the journal's encoding can read.
mod as_json {
    use eyrie_interface::Request;
    use serde::{de, ser, Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(request: &Request, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&serde_json::to_string(request).map_err(ser::Error::custom)?)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Request, D::Error> {
        Request::parse(&String::deserialize(d)?).map_err(de::Error::custom)
    }
}

/// Something that the job hears: what the machine takes, and what becomes an event of the machine,
/// or none, only here.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Heard {
    /// No message.
    Event(Event),
    /// A message of a peer, and what came with it.
    From(Letter, FromPeer),
    /// An agent has connected for the first time. `peer`: by which address it reaches the
    /// controller, where it has one. It is told of its job.
    AgentCame {
        node: NodeId,
        peer: Option<IpAddr>,
    },
    /// A line of the launcher of a node, or of all nodes; and its end.
    LauncherSaid {
        node: Option<NodeId>,
        line: String,
    },
    LauncherGone {
        node: Option<NodeId>,
    },
    /// A process that the controller has started has ended.
    ChildGone(Child),
    /// More standard input, or its end.
    Stdin {
        bytes: Vec<u8>,
        eof: bool,
    },
    /// A user's request.
    User {
        #[serde(with = "as_json")]
        request: Request,
    },
}

impl From<Event> for Heard {
    fn from(event: Event) -> Heard {
        Heard::Event(event)
    }
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

/// A message to the main thread.
pub enum Inbound {
    Heard(Heard),
    /// An agent has connected, and has heard so many letters of the controller.
    AgentUp {
        node: NodeId,
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
        request: Request,
        answer: Sender<String>,
    },
    /// So many bytes of the journal are on the host of this node, or why not.
    JournalKept {
        node: NodeId,
        kept: Result<u64, String>,
    },
    /// What the ranks write cannot be passed on any more.
    OutputFailed,
    Signal(i32),
}
