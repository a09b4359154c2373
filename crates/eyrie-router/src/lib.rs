//! The router: gives each message for its ranks a place in one total order, logs it, then delivers it;
//! holds determinants. A message must never reach a rank before it is logged.

mod conn;
mod engine;
mod log;
mod segments;
mod spill;
mod verify;

use crossbeam_channel::Sender;
use engine::{Command, Engine, Mailbox};
use eyrie_wire::auth::Secret;
use eyrie_wire::data::Determinant;
use eyrie_wire::{Incarnation, Rank};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

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

/// How long the handle waits for the loop's answer: the loop never waits for anybody, so this is generous.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// A running router: a thread of its own. Dropping it stops it.
pub struct Router {
    mailbox: Arc<Mailbox>,
    thread: Option<JoinHandle<()>>,
}

impl Router {
    /// Binds the socket and starts.
    ///
    /// # Errors
    /// When the socket cannot be bound or the spill directory cannot be written.
    pub fn start(config: Config, events: Sender<RouterEvent>) -> io::Result<Router> {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let wake = rustix::event::eventfd(0, flags)?;
        let mailbox = Arc::new(Mailbox { commands: Mutex::new(Vec::new()), wake });
        let name = format!("router-{}", config.id);
        let engine = Engine::new(config, events, mailbox.clone())?;
        let thread = std::thread::Builder::new().name(name).spawn(move || engine.run())?;
        Ok(Router { mailbox, thread: Some(thread) })
    }

    fn command(&self, command: Command) {
        self.mailbox.commands.lock().unwrap().push(command);
        // The counter cannot overflow: the loop empties it.
        let _ = rustix::io::write(&self.mailbox.wake, &1u64.to_ne_bytes());
    }

    /// From now on only `incarnation` of `rank` may speak; connections of older ones are closed.
    /// Returns the determinants of the rank that this router holds. To be called at every router before
    /// [`Router::recover`], and for incarnation 1 not at all.
    pub fn fence(&self, rank: Rank, incarnation: Incarnation) -> Vec<Determinant> {
        let (reply, answer) = crossbeam_channel::bounded(1);
        self.command(Command::Fence(rank, incarnation, reply));
        // Going on without the determinants would compute nonsense.
        answer.recv_timeout(ANSWER_TIMEOUT).expect("the router answers within 30 s")
    }

    /// At the rank's home router: lets `incarnation` in, with the determinants of all routers (any order,
    /// repeats allowed) to replay.
    pub fn recover(&self, rank: Rank, incarnation: Incarnation, determinants: Vec<Determinant>) {
        self.command(Command::Recover(rank, incarnation, determinants));
    }

    /// An image of `rank` counts: forget its messages up to `position` and its determinants up to
    /// `clock`. To be called at every router.
    pub fn discard(&self, rank: Rank, clock: u64, position: u64) {
        self.command(Command::Discard(rank, clock, position));
    }

    /// Breaks the connections of a rank, as a network failure would.
    pub fn break_connections(&self, rank: Rank) {
        self.command(Command::BreakConnections(rank));
    }

    /// Figures of this moment; zeros when the router has stopped.
    pub fn stats(&self) -> Stats {
        let (reply, answer) = crossbeam_channel::bounded(1);
        self.command(Command::Stats(reply));
        answer.recv_timeout(ANSWER_TIMEOUT).unwrap_or_default()
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.command(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
