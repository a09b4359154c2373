//! What goes into the state machine and what comes out of it. Plain data.

use crate::inject::{Injection, Strike};
use crate::record::Record;
use eyrie_wire::control::{CheckpointMode, Ending, StartFault};
use eyrie_wire::{ImageId, Incarnation, Node, Rank};
use std::time::Duration;

/// One life of a rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Life {
    pub rank: Rank,
    pub incarnation: Incarnation,
}

/// How far a rank is known to have come: to tell a program that crashes again and again at the same place from
/// one that gets on.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Mark {
    /// Last position received, by the determinants that the routers hold.
    pub position: u64,
    /// Bytes of output shown.
    pub output: u64,
}

/// An image that is whole and stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Image {
    pub image: ImageId,
    pub clock: u64,
    pub position: u64,
    /// Bytes of standard input that the rank had read.
    pub stdin: u64,
    /// Size of the stream in bytes.
    pub bytes: u64,
}

/// What the controller hears.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Time has passed.
    Tick,
    /// The agent of a node has proven itself.
    AgentUp(Node),
    /// The connection of a node's agent has ended.
    AgentGone(Node),
    /// The agent of a node that was given up wants to come back; it was refused.
    AgentWoke(Node),
    Pulse {
        node: Node,
        n: u64,
    },
    /// The process runs, or goes on from its image.
    Started {
        life: Life,
        fetched: Duration,
        restored: Duration,
    },
    StartFailed {
        life: Life,
        reason: String,
        fault: StartFault,
    },
    ProviderLoaded(Life),
    /// The rank's MPI library does not come through our provider.
    NotOurs {
        life: Life,
        library: String,
    },
    /// The rank's MPI library has not asked which rank of how many it is.
    Alone {
        life: Life,
        library: String,
    },
    PmiPut {
        life: Life,
        key: String,
        value: String,
    },
    PmiBarrier {
        life: Life,
        barrier: u32,
    },
    PmiFinalized(Life),
    PmiAbort {
        life: Life,
        code: i32,
    },
    /// The image of a capture has begun to arrive at the store.
    ImageBegun {
        life: Life,
        image: ImageId,
    },
    /// The rank computes on; this is how long it stood still.
    Captured {
        life: Life,
        image: ImageId,
        pause: Duration,
    },
    /// `passing`: it may well succeed the next time, and nothing need be done.
    CaptureFailed {
        life: Life,
        image: ImageId,
        reason: String,
        passing: bool,
    },
    /// The store has committed an image. It counts when its agent has checked it as well.
    ImageStored {
        life: Life,
        image: Image,
    },
    /// The agent has found all files that the stored image needs.
    ImageUsable {
        life: Life,
        image: ImageId,
    },
    /// The agent has not found a file that the stored image needs.
    ImageUnusable {
        life: Life,
        image: ImageId,
        reason: String,
    },
    /// A file of the newest image is about to be lost: a new one is wanted.
    ImageWanted {
        life: Life,
        reason: String,
    },
    /// The rank cannot go on by its own word.
    Fatal {
        life: Life,
        reason: String,
    },
    Exited {
        life: Life,
        ending: Ending,
        spoke_pmi: bool,
    },
    /// The routers let only this life speak, and have told how far the rank had come.
    Fenced {
        life: Life,
        mark: Mark,
    },
    /// From the home router.
    Connected(Life),
    Disconnected(Life),
    Replayed {
        life: Life,
        messages: u64,
    },
    Refused {
        rank: Option<Rank>,
        incarnation: Incarnation,
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
    /// The log of this rank cannot be kept.
    /// So many bytes of messages were ever logged for the rank.
    LogGrown {
        rank: Rank,
        bytes: u64,
    },
    /// The space for logs comes to an end, and the log of this rank takes most of it.
    LogScarce {
        rank: Rank,
    },
    Unprotected {
        rank: Rank,
        reason: String,
    },
    RouterFailed(String),
    /// From users.
    Inject(Injection),
    /// Checkpoint one rank, or all.
    Checkpoint(Option<Rank>),
    /// Something outside the job ends it: a signal to `eyrie run`, output that nobody takes.
    Stop {
        code: i32,
        cause: String,
    },
}

/// What the controller does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    Start {
        node: Node,
        life: Life,
        image: Option<ImageId>,
    },
    Kill {
        node: Node,
        life: Life,
    },
    Capture {
        node: Node,
        life: Life,
        image: ImageId,
        mode: CheckpointMode,
    },
    /// To every node that is up: new entries, and how many barriers the job has passed.
    Pmi {
        entries: Vec<(String, String)>,
        barriers: u32,
    },
    Pulse {
        node: Node,
        n: u64,
    },
    /// The node was given up: close its connection, and refuse it from now on.
    Disconnect(Node),
    /// At all routers: only this life may speak; gather its determinants, let its home router replay.
    /// Answered by [`Event::Fenced`].
    Fence(Life),
    /// At all routers: forget what the rank's images make needless.
    Discard {
        rank: Rank,
        clock: u64,
        position: u64,
    },
    /// In the store: this image must not be used.
    ForgetImage {
        rank: Rank,
        image: ImageId,
    },
    /// Standard input before this offset is not needed any more.
    ForgetStdin(u64),
    /// An injected failure.
    Strike(Strike),
    /// For the event stream and the user.
    Record(Record),
    /// The job is over: end everything, exit with this code.
    End {
        code: i32,
    },
}
