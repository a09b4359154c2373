//! What the controller asks of a router, and what it hears from it.

use eyrie_transport::Addr;
use eyrie_wire::data::{Determinant, ObservedPart};
use eyrie_wire::{Rank, RankInstance};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What the controller asks of a router.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RouterCommand {
    /// From now on only this incarnation of the rank may speak; connections of older ones are
    /// closed. Answered by [`RouterEvent::Fenced`].
    Fence(RankInstance),
    /// At the rank's home router, after all routers have fenced: lets the incarnation in, with the
    /// determinants of all routers and what the rank observed (any order, repeats allowed) to
    /// replay.
    Recover { instance: RankInstance, determinants: Vec<Determinant>, observed: Vec<ObservedPart> },
    /// An image of the rank counts: messages up to `rsn`, determinants up to `clock`, and
    /// what was observed before that or before the byte `observed`, are truncated.
    Truncate { rank: Rank, clock: u64, rsn: u64, observed: u64 },
    /// Breaks the connections of a rank, as a network failure would.
    BreakConnections(Rank),
    /// Writes all that the router holds there, from where another one goes on
    /// ([`crate::Config::saved`]). No rank speaks any more. Answered by [`RouterEvent::Saved`].
    Save(SavedAt),
    /// Asks for figures. Answered by [`RouterEvent::Stats`].
    Stats,
}

/// Where all that a router holds is saved.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SavedAt {
    File(PathBuf),
    /// Where the controller is, which listens there.
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
    /// Logged bytes kept at present, for each rank (zero for ranks at home elsewhere).
    pub log_bytes: Vec<u64>,
}

/// What the controller hears from a router.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RouterEvent {
    /// Ranks can connect here from now on: the first event of all.
    Listening(Addr),
    /// Only this incarnation may speak now; these are the rank's determinants that this router
    /// holds, and what the rank observed.
    Fenced { instance: RankInstance, determinants: Vec<Determinant>, observed: Vec<ObservedPart> },
    /// A rank's incarnation has proven itself and is connected to its home router.
    Connected(RankInstance),
    /// The connection of a rank to its home router ended (it will come back, or it died).
    Disconnected(RankInstance),
    /// The rank has followed its last determinant; `messages` were delivered again.
    Replayed { instance: RankInstance, messages: u64 },
    /// An older incarnation (or somebody else) tried to speak and was refused.
    Refused { instance: Option<RankInstance>, reason: String },
    /// A message sent again differs in its envelope from the logged one: the job must end.
    Divergence { rank: Rank, reason: String },
    /// A message sent again differs in content only: reported once per recovery.
    ContentDiffers { rank: Rank, reason: String },
    /// So many bytes were ever logged for this rank; told each time that it has grown by some.
    LogGrown { rank: Rank, bytes: u64 },
    /// The disk's share is nearly used up: an image of this rank would free most.
    LogScarce { rank: Rank },
    /// No space is left: senders wait until images free some.
    HeldBack { reason: String },
    /// The log cannot be kept: this rank cannot be recovered until its next image.
    Unprotected { rank: Rank, reason: String },
    /// This router has taken over from a lost one, and has learnt from the rank what it has: its
    /// log goes on behind `rsn`. What comes before is only in the rank: it cannot be recovered
    /// until its next image.
    Adopted { instance: RankInstance, rsn: u64 },
    /// This router has taken over from a lost one and has not heard the fenced rank before it died:
    /// what it told the lost router, and when, is known to nobody but perhaps its home router. Told
    /// before [`RouterEvent::Fenced`].
    Unheard { instance: RankInstance },
    /// This router has taken over from a lost one and has heard the rank now: should that die, what
    /// it told is known here.
    Heard { instance: RankInstance },
    /// So much waits to be received by this rank that its senders were told to keep no more of it:
    /// these messages are lost with this router.
    Exposed { rank: Rank },
    /// A rank that was exposed has received those messages.
    Covered { rank: Rank },
    /// All is saved, in so many bytes; or why it cannot be.
    Saved(Result<u64, String>),
    /// Figures of this moment.
    Stats(Stats),
    /// The router cannot go on.
    Fatal { reason: String },
}
