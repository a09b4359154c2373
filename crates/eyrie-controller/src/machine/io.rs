//! What goes into the state machine and what comes out of it. Plain data; events can be written and
//! read back, since a machine that hears them again gives the same commands.

use super::roles::redundancy::JournalCopies;
use super::users::answer::{Answer, RequestId};
use crate::inject::{Fault, Injection};
use crate::record::Record;
use eyrie_interface::proposal::Goal;
use eyrie_interface::Manner;
use eyrie_transport::{Addr, Directory, RouterId};
use eyrie_wire::control::{CheckpointMode, NodeUsage, RankReport, Role, StandardStream};
use eyrie_wire::entries::Entry;
use eyrie_wire::{ImageId, Node, Rank, RankInstance};
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

/// A store's number: 0 for the first, never used again for another.
pub type StoreId = u32;

/// An image and the store that it is fetched from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Source {
    pub image: ImageId,
    pub store: StoreId,
}

/// An image that is whole and stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Image {
    pub image: ImageId,
    pub clock: u64,
    /// Receive sequence number of the last message in it.
    pub rsn: u64,
    /// Bytes that the rank had observed besides messages.
    pub observed: u64,
    /// Bytes of standard input that the rank had read.
    pub stdin: u64,
    /// Size of the stream in bytes.
    pub bytes: u64,
}

/// What the controller hears.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Event {
    /// Time has passed.
    Tick,
    /// The agent of a node has proven itself.
    AgentUp(Node),
    /// A host is to join the running job, as its next node: its agent is being started.
    Joining {
        host: String,
    },
    /// The connection of a node's agent has ended, from its side.
    AgentGone(Node),
    /// The agent of a node has another connection to this controller.
    AgentBack(Node),
    /// A node reaches another one again, or not any more.
    Reached {
        from: Node,
        to: Node,
        reached: bool,
    },
    /// These nodes are on the controller's own host.
    Home(Vec<Node>),
    /// Nodes have another controller.
    Replaced {
        by: String,
    },
    /// The agent of a node that was declared dead wants to come back; it was refused.
    AgentWoke(Node),
    /// The answer to [`Command::Heartbeat`].
    Heartbeat {
        node: Node,
        n: u64,
    },
    /// What an agent says of a rank.
    Rank(RankInstance, RankReport),
    /// The answer to [`Command::Prepare`]: so many bytes had to come, or why it is not in place.
    Prepared {
        node: Node,
        instance: RankInstance,
        image: ImageId,
        result: Result<u64, String>,
    },
    /// Bytes that a rank wrote, from `offset` of that stream on, have arrived. They come beside the
    /// event; [`Command::Show`] says what becomes of them.
    Output {
        instance: RankInstance,
        stream: StandardStream,
        offset: u64,
        bytes: u64,
    },
    /// Something that an agent, or a part of the controller, wants to be known.
    Note(String),
    /// The image of a capture has begun to arrive at the store.
    ImageBegun {
        instance: RankInstance,
        image: ImageId,
    },
    /// A store could not take an image in, and its agent cannot be told; or could not copy it.
    ImageFailed {
        store: StoreId,
        instance: RankInstance,
        image: ImageId,
        reason: String,
    },
    /// A store has committed an image, from its agent or from another store. It counts when as many
    /// stores have it as are promised, and its agent has checked it as well.
    ImageStored {
        store: StoreId,
        instance: RankInstance,
        image: Image,
    },
    /// A router lets only this incarnation speak. `rsn` is the highest receive sequence number in
    /// the determinants of the rank that it holds, 0 without any.
    Fenced {
        router: RouterId,
        instance: RankInstance,
        rsn: u64,
    },
    /// From the home router.
    Connected(RankInstance),
    Disconnected(RankInstance),
    Replayed {
        instance: RankInstance,
        messages: u64,
    },
    /// An older incarnation of a rank, or a stranger, was refused.
    Refused {
        instance: Option<RankInstance>,
        reason: String,
    },
    Divergence {
        rank: Rank,
        reason: String,
    },
    ContentDiffers {
        rank: Rank,
        reason: String,
    },
    /// So many bytes of messages were ever logged for the rank.
    LogGrown {
        rank: Rank,
        bytes: u64,
    },
    /// The space for logs comes to an end, and the log of this rank takes most of it.
    LogScarce {
        rank: Rank,
    },
    /// The log of this rank cannot be kept.
    Unprotected {
        rank: Rank,
        reason: String,
    },
    RouterFailed(String),
    /// A store more can be used.
    StoreUp {
        store: StoreId,
    },
    /// A store is gone, and what it had with it.
    StoreLost {
        store: StoreId,
    },
    /// The disk of a store is full: it could not take an image in.
    StoreFull {
        store: StoreId,
        reason: String,
    },
    /// A role on a node listens.
    RoleUp {
        role: Role,
        addr: Addr,
    },
    /// The process of a role on a node is gone, or could not be started.
    RoleLost {
        role: Role,
        cause: String,
    },
    /// The rank has told its new router what it has of the messages that the lost one held.
    Adopted {
        role: Role,
        instance: RankInstance,
    },
    /// A router that took over from a lost one fences a rank that it has never heard.
    Unheard {
        role: Role,
        instance: RankInstance,
    },
    /// It has heard the rank now.
    Heard {
        role: Role,
        instance: RankInstance,
    },
    /// Messages to the rank lie at its router alone, with which they would be lost; or no longer
    /// do.
    Exposed {
        rank: Rank,
        exposed: bool,
    },
    /// A user asks for a failure. Answered by [`Command::Answer`], as the next.
    Inject {
        request: RequestId,
        injection: Injection,
    },
    /// A user asks for a checkpoint of one rank, or of all.
    Checkpoint {
        request: RequestId,
        rank: Option<Rank>,
    },
    /// A user asks for what a rank did last.
    Trace {
        request: RequestId,
        rank: Rank,
    },
    /// The controller has died, and another one goes on: time has stood still meanwhile.
    Resumed,
    /// Other hosts have so many copies of the journal now.
    JournalCopies(JournalCopies),
    /// Ranks are to go to this node, or to where the placement says; a user who waits for it is
    /// answered.
    Migrate {
        request: Option<RequestId>,
        ranks: Vec<Rank>,
        to: Option<Node>,
        manner: Manner,
    },
    /// All ranks and roles are to leave this node.
    Drain {
        request: Option<RequestId>,
        node: Node,
    },
    /// A user asks which ranks should move, by what is measured over this time.
    Measure {
        request: RequestId,
        over: Duration,
        goal: Goal,
    },
    /// The answer to [`Command::Measure`].
    Measured {
        node: Node,
        n: u64,
        used: NodeUsage,
    },
    /// Ranks are to go to these nodes, all at once; and these nodes are to be drained.
    Rearrange {
        request: Option<RequestId>,
        moves: Vec<(Rank, Node)>,
        drains: Vec<Node>,
        manner: Manner,
    },
    /// The node is about to be taken away. `leaves`: its agent waits for [`Command::Release`], at
    /// most for its grace.
    Notice {
        node: Node,
        cause: String,
        leaves: bool,
    },
    /// They may come there again.
    Undrain {
        request: RequestId,
        node: Node,
    },
    /// The job is to be saved and to end; a user who waits for it is answered.
    Save {
        request: Option<RequestId>,
    },
    /// A router has saved all that it holds, in so many bytes; or cannot.
    RouterSaved {
        router: RouterId,
        saved: Result<u64, String>,
    },
    /// What the job needs besides images and routers is saved, in this directory; or cannot be.
    JobSaved(Result<String, String>),
    /// All ranks are to get this signal.
    Signal(u8),
    /// Something outside the job ends it: a signal to `eyrie run`, output that is not read.
    Stop {
        code: i32,
        cause: String,
    },
}

/// What the controller does.
#[derive(Clone, PartialEq, Debug)]
pub enum Command {
    /// Start a rank: its program anew, or from an image that a store has.
    Start {
        node: Node,
        instance: RankInstance,
        from: Option<Source>,
    },
    Kill {
        node: Node,
        instance: RankInstance,
    },
    /// Starts a role on a node: [`Event::RoleUp`] or [`Event::RoleLost`] follows. `takes_over`: in
    /// the place of a lost one.
    StartRole {
        node: Node,
        role: Role,
        takes_over: bool,
    },
    StopRole {
        node: Node,
        role: Role,
    },
    /// Who is where now, for all ranks.
    Directory(Directory),
    /// Capture a rank; the agent hands the image to this store.
    Capture {
        node: Node,
        instance: RankInstance,
        image: ImageId,
        store: StoreId,
        mode: CheckpointMode,
        /// It is to stand still from then on, until it is killed or [`Command::GoOn`].
        hold: bool,
    },
    /// On every node that is up: all ranks get this signal, the `n`th of the job (from 0).
    Signal {
        n: u64,
        signal: u8,
    },
    /// The rank stands still for its move, and stays.
    GoOn {
        node: Node,
        instance: RankInstance,
        image: ImageId,
    },
    /// The rank is to stand still for this share of time, in percent; 0: it is not slowed any more.
    Slow {
        node: Node,
        instance: RankInstance,
        share: u8,
    },
    /// The rank is about to come to the node as this incarnation: its memory is to be in place, as
    /// it is in this image. Answered by [`Event::Prepared`].
    Prepare {
        node: Node,
        instance: RankInstance,
        from: Source,
    },
    /// It does not come.
    Unprepare {
        node: Node,
        instance: RankInstance,
    },
    /// To this node, or every node that is up: new entries, and how many barriers the job has
    /// passed.
    Pmi {
        node: Option<Node>,
        entries: Vec<Entry>,
        barriers: u32,
    },
    /// The agent is to measure what its ranks use; answered by [`Event::Measured`].
    Measure {
        node: Node,
        n: u64,
        over: Duration,
    },
    /// Asks the agent for a heartbeat; answered by [`Event::Heartbeat`].
    Heartbeat {
        node: Node,
        n: u64,
    },
    /// Nothing needs the node any more, or can be done for it: its agent may end.
    Release(Node),
    /// The agents of these nodes, and no others, are looked for where they listen: one that waits
    /// for a controller comes back, and one that has another says so ([`Event::Replaced`]).
    Seek(Vec<Node>),
    /// The node was declared dead: close its connection, and refuse it from now on.
    Disconnect(Node),
    /// At all routers: only this incarnation may speak. Each answers with [`Event::Fenced`].
    Fence(RankInstance),
    /// At the home router, after all have fenced: let the incarnation in, with the determinants
    /// that all routers have told.
    Recover(RankInstance),
    /// At all routers: what the rank's images make needless is truncated.
    Truncate {
        rank: Rank,
        clock: u64,
        rsn: u64,
        observed: u64,
    },
    /// In this store: copy an image from another. Answered by [`Event::ImageStored`] or
    /// [`Event::ImageFailed`] of the store that copies.
    CopyImage {
        store: StoreId,
        from: StoreId,
        instance: RankInstance,
        image: ImageId,
    },
    /// In this store: the image must not be used any more.
    DiscardImage {
        store: StoreId,
        rank: Rank,
        image: ImageId,
    },
    /// The rank has room for standard input from this offset on.
    SendStdin {
        node: Node,
        instance: RankInstance,
        offset: u64,
    },
    /// Standard input before this offset is not needed any more.
    TruncateStdin(u64),
    /// The bytes of this [`Event::Output`] without the first `known` of them are to be shown; then
    /// the agent is told that all up to offset `end` is.
    Show {
        instance: RankInstance,
        stream: StandardStream,
        known: u64,
        end: u64,
    },
    /// Asks the rank's agent for what the rank did last: the answer goes to the user as it comes.
    Trace {
        node: Node,
        request: RequestId,
        instance: RankInstance,
    },
    /// An injected failure.
    Inject(Fault),
    /// For the event stream and the user.
    Record(Record),
    /// All routers are to save what they hold. Each answers with [`Event::RouterSaved`].
    SaveRouters,
    /// What is needed to go on with the job is to be saved. Answered by [`Event::JobSaved`].
    SaveJob,
    /// What a user asked for has come to its end.
    Answer {
        request: RequestId,
        answer: Answer,
    },
    /// The job is over: end everything, exit with this code.
    End {
        code: i32,
    },
}
