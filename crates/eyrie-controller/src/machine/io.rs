//! What goes into the state machine and what comes out of it. Plain data; events can be written and
//! read back, since a machine that takes them again gives the same commands. A message of a peer,
//! and one to a peer, is the wire's own type: it must never be copied into a type of this file.

use super::health::equals::NodeTime;
use super::roles::redundancy::JournalCopies;
use super::traffic::MeasuredTraffic;
use super::users::answer::{Answer, RequestId};
use crate::inject::{Fault, Injection};
use crate::record::Record;
use eyrie_interface::proposal::Goal;
use eyrie_interface::request::NewDomain;
use eyrie_interface::{Manner, Way};
use eyrie_router::{RouterCommand, RouterEvent};
use eyrie_store::role::{StoreCommand, StoreEvent};
use eyrie_wire::control::{FromAgent, ImageAt, Role, StandardStream, StartRank, StoreAt, ToAgent};
use eyrie_wire::directory::Directory;
use eyrie_wire::domains::{Domains, LineKey};
use eyrie_wire::{DomainId, ImageId, NodeId, Rank, RankInstance, RouterId, StoreId};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How far a rank is known to have come: to tell a program that crashes again and again at the same
/// place from one that gets on.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Mark {
    /// Last receive sequence number, by the determinants that the routers hold.
    pub rsn: u64,
    /// Bytes of output shown.
    pub output: u64,
}

/// An image and the store that it is fetched from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Source {
    pub image: ImageId,
    pub store: StoreId,
}

impl From<Source> for ImageAt {
    fn from(Source { image, store }: Source) -> ImageAt {
        ImageAt { image, store: StoreAt { store, addr: None } }
    }
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Peer {
    Agent(NodeId),
    Role(Role),
}

/// A message of a peer. Another kind of message reaches its handler through `dispatch.rs`, where
/// the compiler asks for its arm.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FromPeer {
    Agent(NodeId, FromAgent),
    Router(Role, RouterEvent),
    Store(Role, StoreEvent),
}

impl FromPeer {
    /// Who has sent it.
    pub fn peer(&self) -> Peer {
        match self {
            FromPeer::Agent(node, _) => Peer::Agent(*node),
            FromPeer::Router(role, _) | FromPeer::Store(role, _) => Peer::Role(*role),
        }
    }
}

/// A message, and the peers that it goes to. Agents and routers are those that there are when it is
/// sent; the message is encoded once for all of them.
#[derive(Clone, PartialEq, Debug)]
pub enum ToPeer {
    Agent(NodeId, ToAgent),
    /// The agents of all nodes that are up.
    Agents(ToAgent),
    Router(RouterId, RouterCommand),
    Routers(RouterCommand),
    Store(StoreId, StoreCommand),
    Stores(StoreCommand),
}

/// The rank is started, anew or from this image. What else the message says is completed when the
/// handlers are done (`completing.rs`).
pub fn start_rank(instance: RankInstance, from: Option<Source>) -> Box<StartRank> {
    Box::new(StartRank {
        instance,
        image: from.map(ImageAt::from),
        beginning: Vec::new(),
        stdin: instance.rank == Rank(0),
        leftovers: Vec::new(),
        signals: Vec::new(),
    })
}

/// What the controller hears.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Event {
    /// Time has passed.
    Tick,
    /// A message has arrived.
    From(FromPeer),
    /// A host is to join the running job, as its next node: its agent is being started.
    Joining { host: String },
    /// The agent of a node has not come, and will not.
    NoAgent { node: NodeId, cause: String },
    /// The connection of a node's agent has ended, from its side.
    AgentGone(NodeId),
    /// The agent of a node has another connection to this controller.
    AgentBack(NodeId),
    /// These nodes are on the controller's own host.
    NodesHere(Vec<NodeId>),
    /// Nodes have another controller.
    Replaced { by: String },
    /// The agent of a node that was declared dead wants to come back; it was refused.
    AgentWoke(NodeId),
    /// Something that a part of the controller wants to be known.
    Note(String),
    /// A line of Eyrie's own, which another domain shows.
    Line { is_error: bool, text: String },
    /// So many bytes of all that has come from another domain, to be shown here, were written.
    Shown { domain: DomainId, bytes: u64 },
    /// The files in which this domain is to show what is printed are open: the path of the one with
    /// standard output; or why not.
    OutputOpened(Result<String, String>),
    /// Standard input has ended here, after so many bytes.
    InputEnds { bytes: u64 },
    /// An `eyrie run` sees what becomes of this domain's controller.
    Watched,
    /// It sees that no more.
    Unwatched,
    /// A store is gone, and what it had with it.
    StoreLost { store: StoreId },
    /// The process of a role on a node is gone, or could not be started.
    RoleLost { role: Role, cause: String },
    /// A user asks for a failure. Answered by [`Command::Answer`], as the next.
    Inject { request: RequestId, injection: Injection },
    /// A user asks for a checkpoint of one rank, or of all.
    Checkpoint { request: RequestId, rank: Option<Rank> },
    /// A user asks for what a rank did last.
    Trace { request: RequestId, rank: Rank },
    /// The controller has died, and another one goes on: time has stood still meanwhile.
    Resumed,
    /// Other hosts have so many copies of the journal now.
    JournalCopies(JournalCopies),
    /// Ranks are to go to this node, or to where the placement says; a user who waits for it is
    /// answered.
    Migrate { request: Option<RequestId>, ranks: Vec<Rank>, to: Option<NodeId>, manner: Manner },
    /// All ranks and roles are to leave this node.
    Drain { request: Option<RequestId>, node: NodeId },
    /// A user asks which ranks should move, by what is measured over this time.
    Measure { request: RequestId, over: Duration, goal: Goal },
    /// A user asks where ranks should be on the network, with so much time left to run.
    Propose { request: RequestId, left: Duration },
    /// Ranks are to go to these nodes, in an order in which each has room; and these nodes are to
    /// be drained. `whole`: all of them or none.
    Rearrange {
        request: Option<RequestId>,
        moves: Vec<(Rank, NodeId)>,
        drains: Vec<NodeId>,
        whole: bool,
        manner: Manner,
    },
    /// All ranks of this domain are to go to the one of this name; `None`: they are to stay.
    /// `leave`: the domain is to end then, also where it shows the job.
    MigrateDomain { request: RequestId, to: Option<String>, way: Way, leave: bool },
    /// Another domain is to join the job. `keys`: one that it is to have in common with each
    /// domain, by their numbers.
    JoinDomain { request: RequestId, new: NewDomain, keys: Vec<LineKey> },
    /// The controller of another domain is gone, and is not brought back.
    DomainLost { domain: DomainId, code: i32, cause: String },
    /// Ranks may come to a drained node again.
    Undrain { request: RequestId, node: NodeId },
    /// The job is to be saved and to end; a user who waits for it is answered.
    Save { request: Option<RequestId> },
    /// The file in which a router saves what it holds cannot be written.
    RouterNotSaved { router: RouterId, reason: String },
    /// What the job needs besides images and routers is saved, in this directory; or cannot be.
    JobSaved(Result<String, String>),
    /// What ranks have sent each other lately, as it was measured.
    Traffic(MeasuredTraffic),
    /// How long the ranks of some nodes took lately for the same work as others.
    Compared(Vec<NodeTime>),
    /// All ranks are to get this signal.
    Signal(u8),
    /// Something outside the job ends it: a signal to `eyrie run`, output that is not read.
    Stop { code: i32, cause: String },
}

/// What the controller does.
#[derive(Clone, PartialEq, Debug)]
pub enum Command {
    /// Sends a message.
    Send(ToPeer),
    /// Has a role started on a node: it says where it listens, or [`Event::RoleLost`] follows.
    /// `takes_over`: in the place of a lost one. No message alone: the runtime begins the session
    /// with the role, whose first message is its configuration, before it tells the agent.
    StartRole { node: NodeId, role: Role, takes_over: bool },
    /// Where all roles are now, for all ranks. No message alone: each node, also one that comes
    /// later, gets it with the roles on its own host.
    Directory(Directory),
    /// The agents of these nodes, and no others, are looked for where they listen: one that waits
    /// for a controller comes back, and one that has another says so ([`Event::Replaced`]).
    Seek(Vec<NodeId>),
    /// The node was declared dead: close its connection, and refuse it from now on.
    Disconnect(NodeId),
    /// The rank has room for standard input from this offset on. The input is not in the machine.
    SendStdin { node: NodeId, instance: RankInstance, offset: u64 },
    /// Standard input before this offset is not needed any more.
    TruncateStdin(u64),
    /// These bytes of a rank are new and are to be shown; then its agent is told that all up to
    /// offset `end` is.
    Show { node: NodeId, instance: RankInstance, stream: StandardStream, bytes: Vec<u8>, end: u64 },
    /// These bytes are to be shown. `from`: they have come from another domain, and end so many
    /// bytes behind the beginning of all that have; [`Event::Shown`] follows when many were
    /// written.
    Print { from: Option<(DomainId, u64)>, stream: StandardStream, bytes: Vec<u8> },
    /// A line of another domain's Eyrie is to be shown.
    Line { is_error: bool, text: String },
    /// The files are to be opened in which output can be shown after the command that has started
    /// the job. Answered by [`Event::OutputOpened`].
    OpenOutput,
    /// All that is shown from now on goes into them.
    TakeOutput,
    /// The controller of a domain that joins is to be started. The domains as it is to know them.
    /// What becomes of it is told by itself, or [`Event::DomainLost`] follows.
    StartDomain(Box<(Domains, NewDomain)>),
    /// An injected failure.
    Inject(Fault),
    /// For the event stream and the user.
    Record(Record),
    /// All routers are to save what they hold, each in a file of its own. Each answers with
    /// [`RouterEvent::Saved`].
    SaveRouters,
    /// What is needed to go on with the job is to be saved. Answered by [`Event::JobSaved`].
    SaveJob,
    /// What a user asked for has come to its end.
    Answer { request: RequestId, answer: Answer },
    /// The job is over: end everything, exit with this code.
    End { code: i32 },
}
