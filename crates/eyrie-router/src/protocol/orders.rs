//! The commands of the controller to a router, and the events of a router to the controller.

use eyrie_transport::role::Said;
use eyrie_wire::control::StoreAt;
use eyrie_wire::data::{Determinant, ObservedPart};
use eyrie_wire::directory::Directory;
use eyrie_wire::domains::{Domains, Letter};
use eyrie_wire::role_address::Addr;
use eyrie_wire::traffic::PairSent;
use eyrie_wire::{DomainId, Rank, RankInstance};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// A command of the controller to a router.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RouterCommand {
    /// From now on only this incarnation of the rank may connect. Connections of older ones are
    /// closed. Answered by [`RouterEvent::Fenced`].
    Fence(RankInstance),
    /// To the rank's primary router, after all routers have fenced: admits the incarnation, with
    /// the determinants of all routers and the rank's observations (any order, repeats allowed) to
    /// replay.
    Recover { instance: RankInstance, determinants: Vec<Determinant>, observed: Vec<ObservedPart> },
    /// An image of the rank counts. Truncates messages up to `rsn`, determinants up to `clock`, and
    /// observations before that clock or before the byte `observed`.
    Truncate { rank: Rank, clock: u64, rsn: u64, observed: u64 },
    /// From now on this is the primary router of these ranks as well, after it has fenced them.
    /// They go on from images that have all that they ever received, and say what that is.
    Serve(Vec<Rank>),
    /// From now on other routers are the primary ones of these ranks: what is here for them is
    /// dropped, and their senders send it there.
    Leave(Vec<Rank>),
    /// Breaks the connections of a rank, as a network failure would.
    BreakConnections(Rank),
    /// Writes all that the router holds to a place from which another one goes on
    /// ([`crate::Config::saved`]). No rank sends any more. Answered by [`RouterEvent::Saved`].
    Save(SavedAt),
    /// Asks for figures. Answered by [`RouterEvent::Stats`].
    Stats,
    /// Asks what ranks have sent each other. Answered by [`RouterEvent::Traffic`].
    Traffic,
    /// To a gateway: where the routers of its domain are.
    Directory(Directory),
    /// To a gateway: where the stores of its domain are, and the domain that may fetch images from
    /// them: that to which the ranks go. `None`: no domain may.
    Stores { stores: Vec<StoreAt>, to: Option<DomainId> },
    /// To a gateway: ranks have gone from one domain to another, or a domain has come or ended.
    Domains(Domains),
    /// To a gateway: all ranks of its domain have left it, after they were fenced. They keep what
    /// they have sent and is not safe, and send it by the gateway of the domain that they go to: it
    /// is dropped here. Who sends here next may begin with any message.
    ForgetSenders,
    /// To a gateway: fetch no messages of other domains any more, or fetch them again. Answered by
    /// [`RouterEvent::Fetches`].
    Fetch(bool),
    /// To a gateway: a letter to the controller of another domain. It is lost while there is no
    /// line to that domain.
    ToDomain { domain: DomainId, letter: Letter },
}

/// The place where all that a router holds is saved.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SavedAt {
    File(PathBuf),
    /// The controller, which listens there.
    Controller(Addr),
}

/// Figures of a router at one moment.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stats {
    pub memory_bytes: u64,
    pub disk_bytes: u64,
    /// Messages and bytes logged since the start.
    pub messages: u64,
    pub bytes: u64,
    /// Logged bytes kept at present, for each rank (zero for ranks with another primary router).
    pub log_bytes: Vec<u64>,
}

/// Figures of the line from a gateway to another domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LineFigures {
    pub domain: DomainId,
    /// The shortest time to and fro of the last minutes, as TCP measures it.
    pub round_trip: Option<Duration>,
    /// Bytes that came from there since the gateway began; in the last whole second; and in the
    /// second in which most came.
    pub received: u64,
    pub last_second: u64,
    pub most_in_a_second: u64,
}

/// An event that a router reports to the controller.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RouterEvent {
    /// Ranks can connect here from now on. This is the first event.
    Listening(Addr),
    /// Only this incarnation may connect now. The rank's determinants and observations that this
    /// router holds.
    Fenced { instance: RankInstance, determinants: Vec<Determinant>, observed: Vec<ObservedPart> },
    /// A rank's incarnation has proven itself and is connected to its primary router.
    Connected(RankInstance),
    /// The connection of a rank to its primary router ended (it will come back, or it died).
    Disconnected(RankInstance),
    /// The rank has replayed its last determinant; `messages` were delivered again.
    Replayed { instance: RankInstance, messages: u64 },
    /// An older incarnation (or another process) tried to connect and was refused.
    Refused { instance: Option<RankInstance>, reason: String },
    /// A message sent again differs in its envelope from the logged one. The job must end.
    Divergence { rank: Rank, reason: String },
    /// A message sent again differs in content only: reported once per recovery.
    ContentDiffers { rank: Rank, reason: String },
    /// Bytes logged for this rank since the start; reported whenever they have grown by a step.
    LogGrown { rank: Rank, bytes: u64 },
    /// The disk's share is nearly used up: an image of this rank would free most.
    LogScarce { rank: Rank },
    /// No space is left. Senders wait until images free some.
    HeldBack { reason: String },
    /// So many bytes more than the memory for logs may be used: ranks wait for room, and no rank
    /// can give it.
    BoundExceeded { bytes: u64 },
    /// The log cannot be kept. This rank cannot be recovered until its next image.
    Unprotected { rank: Rank, reason: String },
    /// This router has taken over from a lost one, and the rank has said what it has. Its log goes
    /// on behind `rsn`. Only the rank has what comes before: it cannot be recovered until its next
    /// image.
    Adopted { instance: RankInstance, rsn: u64 },
    /// This router has taken over from a lost one, and the fenced rank died before it reported to
    /// it. What the rank reported to the lost router, and when, is lost, unless its primary router
    /// knows it. Sent before [`RouterEvent::Fenced`].
    Unheard { instance: RankInstance },
    /// This router has taken over from a lost one, and the rank has reported to it now: if the rank
    /// dies, this router knows what it had reported.
    Heard { instance: RankInstance },
    /// So much is pending for this rank that its senders no longer keep all of it: these messages
    /// are lost if this router is.
    Exposed { rank: Rank },
    /// A rank that was exposed has received those messages.
    Covered { rank: Rank },
    /// All is saved, with its length in bytes; or why it cannot be.
    Saved(Result<u64, String>),
    /// Figures of the router at present.
    Stats(Stats),
    /// Figures of a gateway's lines, before its [`RouterEvent::Stats`].
    Lines(Vec<LineFigures>),
    /// What ranks have sent each other since the job began, as far as this router knows; pairs
    /// that it knows nothing of are left out.
    Traffic(Vec<PairSent>),
    /// A gateway has a line to another domain from now on, or has none any more.
    Line { domain: DomainId, up: bool },
    /// A gateway fetches no messages any more, and all that it had fetched is safe in its domain;
    /// or it fetches them again.
    Fetches(bool),
    /// A gateway gives images of other domains' ranks here to the stores of its own.
    ImagesAt(Addr),
    /// A letter of the controller of another domain.
    FromDomain { domain: DomainId, letter: Letter },
    /// The router cannot go on.
    Fatal { reason: String },
}

impl Said for RouterEvent {
    /// Figures are asked for again by who needs them.
    fn is_passing(&self) -> bool {
        matches!(self, RouterEvent::Stats(_) | RouterEvent::Traffic(_) | RouterEvent::Lines(_))
    }
}
