//! Messages between the controller and its agents: postcard in frames of `u32 length` and payload.
//! A length beyond [`MAX_FRAME`] or a payload that does not decode ends the connection.

use crate::{ImageId, Incarnation, Node, Rank};
use serde::{de::DeserializeOwned, Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};

/// Longest payload of a control frame in bytes.
pub const MAX_FRAME: usize = 4 << 20;

/// What a connection to the controller's socket says it is. Sent first, then proven ([`crate::auth`]).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Claim {
    /// The control connection of a node's agent.
    Agent { node: Node, agent_incarnation: Incarnation, pid: u32 },
    /// A connection on which an agent hands the image stream of a rank to the store.
    ImageUpload { rank: Rank, incarnation: Incarnation, image: ImageId },
    /// A connection on which the store hands an image to an agent.
    ImageFetch { rank: Rank, image: ImageId },
    /// `eyrie status`, `inject`, `checkpoint`: one JSON request line, one JSON answer line.
    User,
}

/// How a checkpoint is taken: Eagle's AC and SC.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckpointMode {
    Async,
    Sync,
}

/// What a rank runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Program {
    pub argv: Vec<String>,
    /// The whole environment of the rank, but for what the agent adds (see `eyrie_wire::agent`).
    pub env: BTreeMap<String, String>,
    pub cwd: String,
}

/// A rank to bring to life on a node, anew or from an image.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StartRank {
    pub rank: Rank,
    pub incarnation: Incarnation,
    /// Number of ranks of the job.
    pub size: u32,
    pub program: Program,
    /// Continue from this image, or start the program anew.
    pub image: Option<ImageId>,
    /// What the job's ranks have put so far (PMI key value space).
    pub kvs: Vec<(String, String)>,
    /// How many PMI barriers this rank passes without waiting, because the job has passed them.
    pub barriers_done: u32,
    /// Bytes of (stdin, stdout, stderr) that the rank has behind it at its start: 0 when anew.
    pub stream_offsets: [u64; 3],
}

/// Controller to agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToAgent {
    Start(Box<StartRank>),
    /// Kill a rank with SIGKILL; only this incarnation.
    Kill {
        rank: Rank,
        incarnation: Incarnation,
    },
    Capture {
        rank: Rank,
        incarnation: Incarnation,
        image: ImageId,
        mode: CheckpointMode,
    },
    /// New entries of the PMI key value space, and how many barriers the job has passed.
    Pmi {
        entries: Vec<(String, String)>,
        barriers: u32,
    },
    /// Standard input for a rank from `offset` on.
    Stdin {
        rank: Rank,
        offset: u64,
        bytes: Vec<u8>,
        eof: bool,
    },
    /// Asks for a [`FromAgent::Pulse`].
    Pulse {
        n: u64,
    },
    /// End all ranks and exit.
    Shutdown,
}

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ending {
    Code(i32),
    Signal(i32),
}

/// Standard output or standard error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    Stdout,
    Stderr,
}

/// Agent to controller.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FromAgent {
    /// The process runs; for a start from an image: the image is mapped and the rank goes on.
    Started {
        rank: Rank,
        incarnation: Incarnation,
        pid: u32,
    },
    /// The rank could not be started or restored (no such program, image refused, ...).
    StartFailed {
        rank: Rank,
        incarnation: Incarnation,
        reason: String,
        fatal: bool,
    },
    /// The rank's MPI library has loaded our provider.
    ProviderLoaded {
        rank: Rank,
        incarnation: Incarnation,
    },
    /// What the rank wrote, from `offset` of that stream on, in order.
    Output {
        rank: Rank,
        incarnation: Incarnation,
        stream: Stream,
        offset: u64,
        bytes: Vec<u8>,
    },
    /// Standard input: the agent has room for more from this offset on.
    StdinWanted {
        rank: Rank,
        incarnation: Incarnation,
        offset: u64,
    },
    PmiPut {
        rank: Rank,
        incarnation: Incarnation,
        key: String,
        value: String,
    },
    /// The rank has arrived at its barrier number `barrier` (from 1).
    PmiBarrier {
        rank: Rank,
        incarnation: Incarnation,
        barrier: u32,
    },
    PmiFinalized {
        rank: Rank,
        incarnation: Incarnation,
    },
    PmiAbort {
        rank: Rank,
        incarnation: Incarnation,
        code: i32,
        message: String,
    },
    /// The process was captured; its image is on the way to the store.
    Captured {
        rank: Rank,
        incarnation: Incarnation,
        image: ImageId,
        clock: u64,
        position: u64,
        stream_offsets: [u64; 3],
        pause_us: u64,
    },
    CaptureRefused {
        rank: Rank,
        incarnation: Incarnation,
        image: ImageId,
        reason: String,
    },
    /// The rank cannot go on by its own word (divergence, unreachable router, ...): it ends by itself.
    Fatal {
        rank: Rank,
        incarnation: Incarnation,
        reason: String,
    },
    /// All output of the rank has been sent, then it ended like this.
    Exited {
        rank: Rank,
        incarnation: Incarnation,
        ending: Ending,
    },
    Pulse {
        n: u64,
    },
}

/// Writes one message as a frame.
///
/// # Errors
/// The writer's, and `InvalidData` when the message is longer than [`MAX_FRAME`].
pub fn write_frame<T: Serialize>(out: &mut impl Write, message: &T) -> io::Result<()> {
    let mut bytes = vec![0u8; 4];
    bytes = postcard::to_extend(message, bytes)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
    let len = bytes.len() - 4;
    if len > MAX_FRAME {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "control message too long"));
    }
    bytes[..4].copy_from_slice(&(len as u32).to_le_bytes());
    out.write_all(&bytes)
}

/// Reads one message.
///
/// # Errors
/// The reader's; `InvalidData` for a length beyond the bound or a payload that does not decode.
pub fn read_frame<T: DeserializeOwned>(input: &mut impl Read) -> io::Result<T> {
    let mut len = [0u8; 4];
    input.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > MAX_FRAME {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "control frame too long"));
    }
    let mut bytes = Vec::new();
    // Grows with what really arrives, not with what the length promises.
    input.take(len as u64).read_to_end(&mut bytes)?;
    if bytes.len() < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    postcard::from_bytes(&bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}
