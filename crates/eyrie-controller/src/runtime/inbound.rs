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

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_interface::{FirstEvent, Goal, Manner};
    use eyrie_wire::Rank;
    use std::time::Duration;

    #[test]
    fn a_request_is_in_the_journal_as_a_user_has_sent_it() {
        let manner = Manner::default();
        let goal = Goal::Balance { payback: Duration::from_secs(60) };
        let requests = [
            Request::Status,
            Request::Stop,
            Request::Inject { injection: "kill-rank=1@1.5s".parse().unwrap() },
            Request::Checkpoint { rank: Some(Rank(3)) },
            Request::Migrate { ranks: vec![Rank(1)], to: Some(NodeId(2)), manner },
            Request::Drain { node: NodeId(1) },
            Request::Undrain { node: NodeId(1) },
            Request::Measure { over: Duration::from_millis(1500), goal },
            Request::Rearrange { moves: vec![(Rank(1), NodeId(2))], drains: vec![], manner },
            Request::Trace { rank: Rank(0) },
            Request::Subscribe { from: FirstEvent::At(7) },
            Request::Join { host: "n3".into(), allocation: Some(4711) },
        ];
        for request in requests {
            let heard = Heard::User { request };
            let written = postcard::to_stdvec(&heard).unwrap();
            assert_eq!(postcard::from_bytes(&written), Ok(heard));
        }
    }
}
