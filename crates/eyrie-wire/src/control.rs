//! Messages between the controller and its agents: plain data. `eyrie-transport` frames them.

use crate::directory::Directory;
use crate::entries::Entry;
use crate::facts::Facts;
use crate::health::{Finding, Monitoring, NodeFigures};
use crate::role_address::{Addr, Bind};
use crate::{data, DomainId, ImageId, Incarnation, NodeId, Rank, RankInstance, RouterId, StoreId};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::time::Duration;

/// What a connection to the controller's socket claims to be. The claim is sent first and then
/// proven ([`crate::auth`]).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Claim {
    /// The control connection of a node's agent.
    Agent { node: NodeId, pid: u32 },
    /// A connection on which an agent sends the image stream of a rank to the store.
    ImageUpload { instance: RankInstance, image: ImageId },
    /// A connection on which the store sends an image to an agent. `since`: an image that is
    /// already in place, so that only what is newer must be sent; 0: none.
    ImageFetch { rank: Rank, image: ImageId, since: ImageId },
    /// A connection on which a store sends a copy of an image to another store.
    ImageCopy { rank: Rank, image: ImageId },
    /// The control connection of a role in a process of its own.
    Role(Role),
    /// To the controller: a connection on which a router sends everything that it holds, because
    /// the job is being saved.
    RouterSave { id: RouterId },
    /// To the controller: a connection on which a router receives what a router with its number
    /// held when the job was saved.
    RouterSaved { id: RouterId },
    /// To the controller, from an agent that has lost its connection: asks whether its node was
    /// declared dead. Nothing follows.
    Lost { node: NodeId },
    /// To an agent that has lost its controller: another controller continues the job, and listens
    /// at this address.
    Controller { addr: Addr },
    /// To an agent: asks whether it has a controller. An agent without one refuses it; nothing
    /// follows.
    Attached,
    /// A stream of a rank to a router.
    Rank { instance: RankInstance, stream: data::StreamKind },
    /// To the gateway of another domain: a connection for the delivery streams of several ranks.
    Trunk,
    /// To the gateway of another domain: a connection for the letters of their controllers.
    Letters { from: DomainId },
    /// The connection of a rank to the keeper of its host's ledgers ([`crate::keeper`]).
    Ledger { instance: RankInstance },
    /// `eyrie status`, `inject`, `checkpoint`: one JSON request line, one JSON answer line.
    User,
}

/// The kinds of role, in the order in which a job starts them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum RoleKind {
    Router,
    Store,
}

impl RoleKind {
    pub const ALL: [RoleKind; 2] = [RoleKind::Router, RoleKind::Store];

    /// Its word in messages, which is also the command of `eyrie` that such a process runs.
    pub fn name(self) -> &'static str {
        match self {
            RoleKind::Router => "router",
            RoleKind::Store => "store",
        }
    }
}

/// A role in a process of its own. `generation`: how many processes have had this number before;
/// only the last one is valid. The number of a lost store is not used again, so that its generation
/// is always 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Role {
    pub kind: RoleKind,
    pub id: u32,
    pub generation: u32,
}

impl Role {
    /// The first one with its number.
    pub fn first(kind: RoleKind, id: u32) -> Role {
        Role { kind, id, generation: 0 }
    }

    /// The arguments of the command that starts a process of this role.
    pub fn args(self) -> Vec<String> {
        let Role { kind, id, generation } = self;
        let (id, generation) = (id.to_string(), generation.to_string());
        [kind.name(), "--id", &id, "--generation", &generation].map(String::from).into()
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.kind.name(), self.id)
    }
}

/// How a checkpoint is taken: Eagle's AC and SC.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum CheckpointMode {
    /// A child of the rank writes the image
    #[default]
    Async,
    /// The rank waits until its image is written
    Sync,
}

/// What a rank runs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Program {
    /// The file to execute; `argv[0]` is what the user wrote.
    pub exe: OsString,
    pub argv: Vec<OsString>,
    /// The environment of every rank; the agent adds what differs by rank.
    pub env: Vec<(OsString, OsString)>,
    pub cwd: OsString,
}

/// A store, and where it listens. Without an address it cannot be reached.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StoreAt {
    pub store: StoreId,
    pub addr: Option<Addr>,
}

impl StoreAt {
    /// Where it listens.
    ///
    /// # Errors
    /// A text for users, when that is not known.
    pub fn reached_at(&self) -> Result<&Addr, String> {
        let unknown = || format!("it is not known where store {} listens", self.store);
        self.addr.as_ref().ok_or_else(unknown)
    }
}

/// An image, and a store that has it or is to have it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ImageAt {
    pub image: ImageId,
    pub store: StoreAt,
}

/// A rank to start on a node, anew or from an image. What all ranks have in common is in
/// [`JobOnHost`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StartRank {
    pub instance: RankInstance,
    /// Continue from this image, or start the program anew.
    pub image: Option<ImageAt>,
    /// What a program that is started anew has observed before, from its beginning on
    /// ([`crate::data::ObservedPart`]).
    pub beginning: Vec<u8>,
    /// Whether the rank gets the job's standard input ([`ToAgent::Stdin`]); others read /dev/null.
    pub stdin: bool,
    /// Files in /dev/shm that earlier incarnations left. They must be removed first.
    pub leftovers: Vec<String>,
    /// The signals that were sent to all ranks of the job until now.
    pub signals: Vec<u8>,
}

/// What an agent says about an image. Precedes the stream on an upload, is kept by the store, and
/// precedes the stream again on a fetch.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ImageMeta {
    pub incarnation: Incarnation,
    /// The provider's clock at the capture, and the receive sequence number of the last message.
    pub clock: u64,
    pub rsn: u64,
    /// Bytes that the rank had observed besides messages.
    pub observed: u64,
    /// Bytes of (stdin, stdout, stderr) that the rank had read or written.
    pub stream_offsets: [u64; 3],
    /// PMI barriers the rank had passed.
    pub barriers: u32,
    /// Its files in /dev/shm.
    pub shared: Vec<String>,
    /// Bytes of the mapped files whose content the image has; `None`: it needs these files.
    pub file_bytes: Option<u64>,
}

/// The controller's answer on an image connection, after the handshake.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ImageAnswer {
    /// A fetch: the stream follows, and ends with the connection.
    Stream(ImageMeta),
    /// An upload: the image is whole, verified and stored.
    Stored,
    /// `full_wanted`: the image builds on one that this store does not have whole, but the store
    /// would accept a full one.
    Refused { reason: String, full_wanted: bool },
}

/// What an agent receives about its job in the first message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobOnHost {
    /// The job's name.
    pub name: String,
    /// The job's directory, the same on each host. It is created if it does not exist.
    pub dir: OsString,
    /// Files that ranks find in it, by name, and where they are.
    pub provided: Vec<(String, OsString)>,
    /// The files are copied there, not linked, because the hosts do not share them.
    pub copied: bool,
    /// Name of the PMI key value space: of this job only, the same for each incarnation of a rank.
    pub kvsname: String,
    pub ranks: u32,
    pub program: Program,
    /// Images have the content of the program and its libraries: the host may lack these.
    pub self_contained: bool,
    /// The host is to be compared with others, because there is more than one.
    pub compared: bool,
    /// How long the host waits for another controller when it has lost this one.
    pub orphans: Option<Orphans>,
    pub notices: Notices,
    /// How the host and its ranks are watched, if they are.
    pub monitoring: Option<Monitoring>,
}

/// How an agent learns that its host will be taken away. SIGTERM says so as well.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Notices {
    /// A file that is created then.
    pub file: Option<OsString>,
    /// A shell command that succeeds then.
    pub command: Option<OsString>,
    /// How long an agent that received SIGTERM stays, so that its ranks can leave before it ends.
    pub grace: Duration,
}

/// What an agent does when it has lost its controller.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Orphans {
    /// Without another controller it ends after this time.
    pub timeout: Duration,
    /// The job can be saved: a host with a copy of the journal then saves it, and the others wait
    /// for it.
    pub save: bool,
    /// A controller that asks for heartbeats and has sent nothing for so long may be replaced.
    pub heartbeat_timeout: Duration,
    /// Where the agent listens for another controller.
    pub listen: Bind,
}

/// Controller to agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToAgent {
    /// The first message; answered by [`FromAgent::Joined`].
    Join(Box<JobOnHost>),
    Start(Box<StartRank>),
    /// The environment of every rank is this instead of the one that came with the job: what was
    /// to be found out of all hosts first is in it. Before the first [`ToAgent::Start`].
    Environment(Vec<(OsString, OsString)>),
    /// Start the process of a role on this host. It connects to the controller by itself.
    /// [`FromAgent::RoleEnded`] reports its end.
    StartRole(Role),
    /// Kill the process of a role.
    StopRole(Role),
    /// Kill a rank with SIGKILL; only this incarnation.
    Kill(RankInstance),
    /// Capture a rank and send the image to this store. `hold`: it stands still from then on until
    /// it is killed, or until [`ToAgent::GoOn`]. `self_contained`: the image has the content of the
    /// program and its libraries.
    Capture {
        instance: RankInstance,
        image: ImageAt,
        mode: CheckpointMode,
        hold: bool,
        self_contained: bool,
    },
    /// All ranks get this signal, the `n`th of the job (from 0).
    Signal {
        n: u64,
        signal: u8,
    },
    /// A rank that stands still for its move does not move.
    GoOn {
        instance: RankInstance,
        image: ImageId,
    },
    /// Make a rank stand still for this share of the time, in percent; 0: no longer.
    Slow {
        instance: RankInstance,
        share: u8,
    },
    /// A rank will move here as this incarnation. Have its memory in place, as it is in this image,
    /// until [`ToAgent::Start`] or a later image. Answered by [`FromAgent::Prepared`].
    Prepare(Box<StartRank>),
    /// The rank does not move here.
    Unprepare(RankInstance),
    /// New entries of the PMI key value space, and how many barriers the job has passed.
    Pmi {
        entries: Vec<Entry>,
        barriers: u32,
    },
    /// Standard input for a rank from `offset` on.
    Stdin {
        instance: RankInstance,
        offset: u64,
        bytes: Vec<u8>,
        eof: bool,
    },
    /// Output of the rank up to this offset was written to its destination: there is room for more.
    OutputShown {
        instance: RankInstance,
        stream: StandardStream,
        offset: u64,
    },
    /// Where the parts of the job are: before the first rank starts here and whenever it changes.
    /// The agent passes it to all ranks on this node, including those that are started later. A
    /// directory with a lower epoch than the last is ignored.
    Directory(Directory),
    /// Asks for a [`FromAgent::Heartbeat`] with the same number.
    Heartbeat {
        n: u64,
    },
    /// A part of the controller's journal, to be kept on this host; answered by
    /// [`FromAgent::JournalKept`]. `at` is its position in bytes, which never goes back: a shorter
    /// file that replaces the journal begins where that had ended. `begins`: a copy begins with
    /// this part. `whole`: the copy is complete from then on, up to the end that the journal had
    /// then.
    Journal {
        at: u64,
        bytes: Vec<u8>,
        begins: bool,
        whole: bool,
    },
    /// Asks how much of the processors the ranks here and other processes use from now on. Answered
    /// by [`FromAgent::Measured`] with the same number.
    Measure {
        n: u64,
        over: Duration,
    },
    /// Connect to these hosts, given by their nodes and addresses, again and again from now on.
    /// [`FromAgent::Reached`] reports a host that was not reached for `within`.
    Watch {
        hosts: Vec<(NodeId, Addr)>,
        within: Duration,
    },
    /// Sample the node when a tick says so: ask for ticks at this UDP port of the host of the
    /// controller.
    Conduct {
        port: u16,
    },
    /// Asks for what a rank did last. Answered by [`FromAgent::Trace`] with the same number.
    Trace {
        request: u64,
        instance: RankInstance,
    },
    /// An injected failure: the agent stops its ranks and itself with SIGSTOP. When it is
    /// continued, it continues its ranks.
    Freeze,
    /// An injected failure: the agent kills itself, and its ranks die with it.
    Die,
    /// End all ranks and exit.
    Shutdown,
}

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ending {
    Code(i32),
    Signal(i32),
}

/// What is at fault when a rank could not be started or restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StartFault {
    /// The image: it cannot be restored.
    Image,
    /// Something on this node or at this moment (a broken stream, too little memory). Another
    /// attempt may succeed.
    Attempt,
    /// A signal killed the process before it was the rank again.
    Killed(i32),
}

/// Standard output or standard error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StandardStream {
    Stdout,
    Stderr,
}

/// A record of a rank's trace ([`crate::page`]) in words.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TraceRecord {
    /// How old it was when the trace was read, in microseconds.
    pub age_us: u64,
    /// The rank's clock then.
    pub clock: u64,
    pub text: String,
}

impl std::fmt::Display for TraceRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ago_ms = self.age_us as f64 / 1e3;
        write!(f, "{ago_ms:>12.3} ms ago  clock {:<9} {}", self.clock, self.text)
    }
}

/// Agent to controller.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FromAgent {
    /// The host is ready for ranks. Its facts, to be compared with those of other hosts, if they
    /// were asked for. Or the reason why it cannot take part.
    Joined(Result<Option<Box<Facts>>, String>),
    /// A report about a rank on this node.
    Rank(RankInstance, RankReport),
    /// What the rank wrote, from `offset` of that stream on, in order.
    Output { instance: RankInstance, stream: StandardStream, offset: u64, bytes: Vec<u8> },
    /// A file in /dev/shm that the rank's MPI library made and that its death would leave behind.
    Shared { rank: Rank, path: String },
    /// Something that the user should know.
    Note { text: String },
    /// What the rank did last, oldest first; empty if it does not run here. `request`: the number
    /// of the [`ToAgent::Trace`] that asked for it; `None`: the rank ends by an error of its own.
    Trace { request: Option<u64>, instance: RankInstance, records: Vec<TraceRecord> },
    /// The memory of a rank that will move here as this incarnation is in place, as it is in this
    /// image, for which so many bytes had to be sent; or why not. In that case another
    /// [`ToAgent::Prepare`] begins anew.
    Prepared { instance: RankInstance, image: ImageId, result: Result<u64, String> },
    /// A host that was reached before is no longer reached, or is reached again.
    Reached { node: NodeId, reached: bool },
    /// The answer to [`ToAgent::Heartbeat`].
    Heartbeat { n: u64 },
    /// The answer to [`ToAgent::Measure`].
    Measured { n: u64, used: NodeUsage },
    /// What was sampled of the node and its ranks. Of no use to another controller.
    Sampled(Box<NodeFigures>),
    /// A health rule has found something, or finds it no longer.
    Found(Finding),
    /// Where another controller can connect to this agent when it has lost its own.
    Reachable { addr: Addr },
    /// The journal is on this host up to this position; or why no more of it will be.
    JournalKept(Result<u64, String>),
    /// The process of a role has ended, or could not be started.
    RoleEnded { role: Role, cause: String },
    /// The host will be taken away. `leaves`: its agent ends as soon as nothing needs it any more
    /// or it is told to, at the latest after its grace time.
    Notice { cause: String, leaves: bool },
}

/// What was used of a node's processors between two moments.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeUsage {
    /// The time between them.
    pub over: Duration,
    /// Identifies the running kernel: nodes with the same one may share processors.
    pub kernel: String,
    /// The processors that ranks here may run on, and how many of them at a time.
    pub processors: Vec<u32>,
    pub limit: u32,
    /// Processor time that all processes together have used of them.
    pub busy: Duration,
    pub ranks: Vec<RankUsage>,
}

/// What one incarnation of a rank has used.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RankUsage {
    pub instance: RankInstance,
    /// Processor time of all its threads, and the part of it in which it asked for messages and
    /// found none.
    pub used: Duration,
    pub polled: Duration,
    /// Bytes of memory without a file behind it.
    pub memory: u64,
}

/// An MPI library as ranks have loaded it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Library {
    pub name: String,
    /// Empty if it is not known.
    pub version: String,
    /// Whether Eyrie is tested with this version.
    pub tested: bool,
    /// The thread level, by the name that MPI gives it.
    pub threads: String,
}

/// What an agent reports about one incarnation of a rank. It reaches the controller's state machine
/// unchanged. Another report takes three edits: its variant here, the place in the agent that sends
/// it, and its arm in `Machine::rank_reported` of eyrie-controller (src/machine/dispatch.rs), which
/// the compiler asks for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RankReport {
    /// The process runs. For a start from an image: the image is mapped and the rank continues.
    Started {
        /// How long the image took to arrive, and then to be mapped; 0 when started anew.
        fetched: Duration,
        restored: Duration,
    },
    /// The rank could not be started or restored (no such program, image refused, ...).
    StartFailed {
        reason: String,
        fault: StartFault,
    },
    /// The MPI library has started without our provider. `library` is the path of the library that
    /// is loaded, `remedy` says what to do about it.
    NotOurs {
        library: String,
        remedy: String,
    },
    /// The rank's MPI library has loaded our provider but has not asked, through PMI, for its rank
    /// and the number of ranks: it would compute alone. It waits in its start for an answer that it
    /// does not get.
    Alone {
        library: String,
        remedy: String,
    },
    /// The rank's MPI library has loaded our provider.
    ProviderLoaded,
    /// MPI_Init is over in this rank: which MPI library it is, and the thread level that it gave.
    Library(Library),
    /// Standard input: the agent has room for more from this offset on. Sent once at the start,
    /// then after each piece that the rank has received.
    StdinWanted {
        offset: u64,
    },
    PmiPut {
        key: String,
        value: String,
    },
    /// The rank has arrived at its barrier number `barrier` (from 1).
    PmiBarrier {
        barrier: u32,
    },
    PmiFinalized,
    PmiAbort {
        code: i32,
    },
    /// The process was captured and computes after having stood still for `pause`. Its image is on
    /// the way to the store.
    Captured {
        image: ImageId,
        pause: Duration,
    },
    /// `passing`: the next capture may well succeed, and nothing needs to be done.
    CaptureFailed {
        image: ImageId,
        reason: String,
        passing: bool,
    },
    /// The image is stored, and afterwards all files that it needs were found: it may count.
    /// `output` is the number of bytes of (stdout, stderr) that the rank had written.
    ImageUsable {
        image: ImageId,
        output: [u64; 2],
    },
    /// The image is stored, but a file that it needs is lost to other nodes: it must not count.
    ImageUnusable {
        image: ImageId,
        reason: String,
    },
    /// A file that the newest image needs has another name now, or none: a new image is needed
    /// soon.
    ImageWanted {
        reason: String,
    },
    /// The rank has reported that it cannot continue (divergence, unreachable router, ...). It ends
    /// by itself.
    Fatal {
        reason: String,
    },
    /// The rank ended like this, after all its output was sent.
    Exited {
        ending: Ending,
        stage: MpiStage,
    },
}

/// Whether the sender of this signal wants a program to end, unless the program handles the signal.
pub fn is_to_end(signal: i32) -> bool {
    matches!(signal, libc::SIGHUP | libc::SIGINT | libc::SIGQUIT | libc::SIGTERM)
}

/// The state of a rank's use of MPI when it ended.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum MpiStage {
    /// It never used PMI.
    Before,
    /// It had begun to use MPI and had not finished.
    Within,
    /// It had finished with MPI (MPI_Finalize, or MPI_Session_finalize of its last session). It may
    /// then have ended by itself or executed another program.
    After,
}
