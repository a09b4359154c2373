//! What goes into the state machine and what comes out of it. Plain data.

use crate::inject::{Injection, Strike};
use crate::record::Record;
use eyrie_wire::control::{CheckpointMode, RankReport};
use eyrie_wire::{ImageId, Node, Rank, RankInstance};

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
    /// The answer to [`Command::Heartbeat`].
    Heartbeat {
        node: Node,
        n: u64,
    },
    /// What an agent says of a rank.
    Rank(RankInstance, RankReport),
    /// The image of a capture has begun to arrive at the store.
    ImageBegun {
        instance: RankInstance,
        image: ImageId,
    },
    /// The store could not take an image in, and its agent cannot be told.
    ImageFailed {
        instance: RankInstance,
        image: ImageId,
        reason: String,
    },
    /// The store has committed an image. It counts when its agent has checked it as well.
    ImageStored {
        instance: RankInstance,
        image: Image,
    },
    /// The routers let only this incarnation speak, and have told how far the rank had come.
    Fenced {
        instance: RankInstance,
        mark: Mark,
    },
    /// From the home router.
    Connected(RankInstance),
    Disconnected(RankInstance),
    Replayed {
        instance: RankInstance,
        messages: u64,
    },
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
    /// The log of this rank cannot be kept.
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
        instance: RankInstance,
        image: Option<ImageId>,
    },
    Kill {
        node: Node,
        instance: RankInstance,
    },
    Capture {
        node: Node,
        instance: RankInstance,
        image: ImageId,
        mode: CheckpointMode,
    },
    /// To every node that is up: new entries, and how many barriers the job has passed.
    Pmi {
        entries: Vec<(String, String)>,
        barriers: u32,
    },
    /// Asks the agent for a sign of life: [`Event::Heartbeat`].
    Heartbeat {
        node: Node,
        n: u64,
    },
    /// The node was given up: close its connection, and refuse it from now on.
    Disconnect(Node),
    /// At all routers: only this incarnation may speak; gather its determinants, let its home router replay.
    /// Answered by [`Event::Fenced`].
    Fence(RankInstance),
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
