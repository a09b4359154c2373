//! The router: gives each message for its ranks a place in one total order, logs it, then delivers it;
//! holds determinants. A message must never reach a rank before it is logged.

use crossbeam_channel::Sender;
use eyrie_wire::auth::Secret;
use eyrie_wire::data::Determinant;
use eyrie_wire::{Incarnation, Rank};
use std::path::PathBuf;

/// What a router needs to know.
pub struct Config {
    /// This router's number, below `routers`. Rank r is at home at router r mod `routers`.
    pub id: u32,
    pub routers: u32,
    /// Ranks of the job.
    pub ranks: u32,
    /// Where ranks connect: `DIR/router-ID.sock`.
    pub socket: PathBuf,
    /// Where the log goes beyond `memory_limit`.
    pub spill_dir: PathBuf,
    pub secret: Secret,
    /// Bytes of log held in memory.
    pub memory_limit: u64,
}

/// What the controller hears from a router.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RouterEvent {
    /// A rank's incarnation has proven itself and is connected to its home router.
    Connected { rank: Rank, incarnation: Incarnation },
    /// The connection of a rank to its home router ended (it will come back, or it died).
    Disconnected { rank: Rank, incarnation: Incarnation },
    /// The rank has caught up with its last determinant; `messages` were delivered again.
    Replayed { rank: Rank, incarnation: Incarnation, messages: u64 },
    /// An older incarnation (or somebody else) tried to speak and was refused.
    Refused { rank: Option<Rank>, incarnation: Incarnation, reason: String },
    /// A message sent again differs in its envelope from the logged one: the job must end.
    Divergence { rank: Rank, reason: String },
    /// A message sent again differs in content only: reported once per rank.
    ContentDiffers { rank: Rank, reason: String },
    /// The log cannot be kept (disk full): this rank cannot be recovered until its next image.
    Unprotected { rank: Rank, reason: String },
    /// The router cannot go on.
    Fatal { reason: String },
}

/// Figures of a router at one moment.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Stats {
    pub memory_bytes: u64,
    pub disk_bytes: u64,
    /// Messages and bytes logged since the start.
    pub messages: u64,
    pub bytes: u64,
    /// Logged bytes kept at present, per rank (zero for ranks at home elsewhere).
    pub log_bytes: Vec<u64>,
}

/// A running router: a thread of its own. Dropping it stops it.
pub struct Router {}

impl Router {
    /// Binds the socket and starts.
    ///
    /// # Errors
    /// When the socket cannot be bound or the spill directory cannot be written.
    pub fn start(_config: Config, _events: Sender<RouterEvent>) -> std::io::Result<Router> {
        unimplemented!()
    }

    /// From now on only `incarnation` of `rank` may speak; connections of older ones are closed.
    /// Returns the determinants of the rank that this router holds. To be called at every router before
    /// [`Router::recover`], and for incarnation 1 not at all.
    pub fn fence(&self, _rank: Rank, _incarnation: Incarnation) -> Vec<Determinant> {
        unimplemented!()
    }

    /// At the rank's home router: lets `incarnation` in, with the determinants of all routers (any order,
    /// repeats allowed) to replay.
    pub fn recover(&self, _rank: Rank, _incarnation: Incarnation, _determinants: Vec<Determinant>) {
        unimplemented!()
    }

    /// An image of `rank` counts: forget its messages up to `position` and its determinants up to
    /// `clock`. To be called at every router.
    pub fn discard(&self, _rank: Rank, _clock: u64, _position: u64) {
        unimplemented!()
    }

    /// Breaks the connections of a rank, as a network failure would.
    pub fn break_connections(&self, _rank: Rank) {
        unimplemented!()
    }

    pub fn stats(&self) -> Stats {
        unimplemented!()
    }
}
