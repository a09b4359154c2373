//! What follows elsewhere from what a handler has found. A handler changes what it borrows and puts
//! the rest here; the machine gives each consequence to those that it concerns, which is the one
//! place that knows all of them. Plain data.

use crate::machine::io::Mark;
use crate::machine::ranks::capture::Capture;
use crate::machine::ranks::phases::Death;
use crate::machine::state::NodeEvent;
use crate::machine::users::answer::RequestId;
use eyrie_wire::domains::DomainSays;
use eyrie_wire::{DomainId, ImageId, NodeId, Rank, RankInstance, RouterId, StoreId};
use std::time::Duration;

/// A node that is to be declared dead, and for how long it has not been heard.
#[derive(PartialEq, Debug)]
pub struct LostNode {
    pub node: NodeId,
    pub event: NodeEvent,
    pub cause: String,
    pub unheard: Duration,
}

impl LostNode {
    /// One whose agent is gone, or counts as gone.
    pub fn gone(node: NodeId, cause: String) -> LostNode {
        LostNode { node, event: NodeEvent::AgentGone, cause, unheard: Duration::ZERO }
    }
}

/// Something that follows. Those of one handler are taken in order; what follows from one of them
/// is taken before the next.
#[derive(Debug)]
pub enum Consequence {
    /// These nodes are to be declared dead.
    NodesLost(Vec<LostNode>),
    /// The present incarnation of the rank is dead. `unheard`: how long ago the last sign of it
    /// was, if that is known.
    RankLost { rank: Rank, death: Death, cause: String, unheard: Option<Duration> },
    /// The routers were told to refuse it.
    RankFailed(Rank),
    /// A router lets only this incarnation speak.
    RouterFenced { router: RouterId, instance: RankInstance, rsn: u64 },
    /// All routers do.
    RankFenced { instance: RankInstance, mark: Mark },
    /// These ranks are fenced, and are to come back, each once.
    RanksReturn(Vec<RankInstance>),
    /// The rank could not be restored where it was to go.
    RankNotRestored(Rank),
    /// The rank does not move.
    MoveFails { rank: Rank, why: String },
    /// A move has ended while a plan of moves is carried out.
    PlannedMoveOver,
    /// The rank has caught up.
    RankArrived(Rank),
    /// The program of the rank has ended by itself.
    RankFinished(Rank),
    /// A node is not well, and something is to be done about it.
    NodeUnwell(NodeId),
    /// The image of the rank's checkpoint begins to arrive.
    CaptureBegun(Rank),
    /// An image of the rank counts.
    ImageCounted { rank: Rank, capture: Capture },
    /// The rank was not imaged. `passing`: for a reason that passes soon. `again`: when the next
    /// image is to be tried, if one is needed.
    ImageFailed { rank: Rank, cause: String, passing: bool, again: Duration },
    /// An image could not be copied to the archive.
    NotArchived { instance: RankInstance, image: ImageId, cause: String },
    /// A store more can be used.
    StoreUp(StoreId),
    /// A store on a node is gone, and what it had with it.
    StoreLost(StoreId),
    /// The store that the job would be saved in is gone.
    ArchiveLost,
    /// The job is to be saved.
    Save,
    /// The programs of all ranks here have ended by themselves.
    AllFinished,
    /// All ranks of this domain run in another one.
    RanksElsewhere,
    /// This domain, which shows the job, has no ranks, and is to end when that one shows it.
    DomainLeaves { to: DomainId, request: Option<RequestId> },
    /// Another domain shows the job from now on.
    ShownElsewhere,
    /// A router of this domain is gone, and another one takes over.
    RouterLost,
    /// The gateway to other domains is gone, and the lines to them with it.
    GatewayLost,
    /// This domain is told this, or all others are.
    Tell { to: Option<DomainId>, says: Box<DomainSays> },
    /// All others are told at which barrier the ranks here have arrived, if they are not yet.
    TellArrival,
    /// Another domain has said something of ranks that go from one to another, or of what they
    /// print.
    DomainSaid { domain: DomainId, says: DomainSays },
    /// Ranks have other primary routers.
    PrimariesChanged,
    /// Images may be in too few stores.
    CopiesWanted,
}
