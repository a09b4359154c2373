//! `eyrie status`, `inject`, `checkpoint` and `trace`: one JSON request, one JSON answer.

use super::journal;
use crate::machine::answer::Answer;
use crate::machine::proposal::Goal;
use crate::machine::redundancy::Missing;
use crate::machine::Manner;
use crate::record::Summary;
use anyhow::Context;
use eyrie_transport::{Addr, RouterId};
use eyrie_wire::control::Claim;
use eyrie_wire::{ImageId, Node, Rank, RankInstance};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Longest answer in bytes.
const MAX_ANSWER: u64 = 16 << 20;
/// How long a job may take for an answer: at once, but for images, which take as long as storing
/// them does.
const PATIENCE: Duration = Duration::from_secs(10);
const IMAGE_PATIENCE: Duration = Duration::from_secs(3600);
const JOIN_PATIENCE: Duration = Duration::from_secs(60);

/// How many users have asked whose answers are not written yet.
#[derive(Clone, Debug, Default)]
pub struct Unanswered(Arc<(Mutex<usize>, Condvar)>);

/// A user who has asked, until this is dropped.
pub struct Asking(Unanswered);

impl Unanswered {
    /// A user asks.
    pub fn begin(&self) -> Asking {
        self.count(1);
        Asking(self.clone())
    }

    /// Waits until there are none, but not longer than `within`.
    pub fn wait(&self, within: Duration) {
        let (number, changed) = &*self.0;
        let number = number.lock().unwrap_or_else(PoisonError::into_inner);
        drop(changed.wait_timeout_while(number, within, |number| *number > 0));
    }

    fn count(&self, change: isize) {
        let (number, changed) = &*self.0;
        let mut number = number.lock().unwrap_or_else(PoisonError::into_inner);
        *number = number.saturating_add_signed(change);
        changed.notify_all();
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.count(-1);
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    Status,
    Inject {
        spec: String,
    },
    Checkpoint {
        rank: Option<Rank>,
    },
    /// Save the job and end it.
    Stop,
    /// `to`: where; else where the placement says.
    Migrate {
        ranks: Vec<Rank>,
        to: Option<Node>,
        manner: Manner,
    },
    Drain {
        node: Node,
    },
    Undrain {
        node: Node,
    },
    /// Which ranks should move, by what is measured over this time.
    Measure {
        over: Duration,
        goal: Goal,
    },
    /// These ranks to these nodes, all at once; and these nodes are drained.
    Rearrange {
        moves: Vec<(Rank, Node)>,
        drains: Vec<Node>,
        manner: Manner,
    },
    Trace {
        rank: Rank,
    },
    /// `allocation`: another job of Slurm that the host belongs to.
    Join {
        host: String,
        allocation: Option<u64>,
    },
}

impl Request {
    /// How long to wait for the answer.
    pub fn patience(&self) -> Duration {
        match self {
            Request::Checkpoint { .. }
            | Request::Stop
            | Request::Migrate { .. }
            | Request::Drain { .. }
            | Request::Rearrange { .. } => IMAGE_PATIENCE,
            // And its agents may take as long again.
            Request::Measure { over, .. } => 2 * PATIENCE + *over,
            Request::Join { .. } => JOIN_PATIENCE,
            Request::Status
            | Request::Inject { .. }
            | Request::Trace { .. }
            | Request::Undrain { .. } => PATIENCE,
        }
    }
}

#[derive(Debug, Serialize)]
pub struct RankStatus {
    #[serde(flatten)]
    pub instance: RankInstance,
    pub node: Node,
    pub state: String,
    /// Its newest image that counts.
    pub image: Option<ImageStatus>,
    /// It has had no newer one for longer than three intervals.
    pub overdue: Option<OverdueStatus>,
}

/// For how many seconds a rank has had no new image, and why.
#[derive(Debug, Serialize)]
pub struct OverdueStatus {
    pub seconds: f64,
    pub cause: String,
}

#[derive(Debug, Serialize)]
pub struct ImageStatus {
    pub number: ImageId,
    /// How many stores have it.
    pub copies: usize,
}

/// What a router holds.
#[derive(Debug, Serialize)]
pub struct LogStatus {
    pub router: RouterId,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
}

#[derive(Debug, Serialize)]
pub struct RoleStatus {
    pub role: String,
    pub node: Node,
}

/// A rank on its way to another node.
#[derive(Debug, Serialize)]
pub struct MoveStatus {
    pub rank: Rank,
    /// Where it is going, as far as that is known.
    pub to: Option<Node>,
    /// How often its memory was put in place there.
    pub rounds: u32,
    /// What the last round brought, and the seconds that it took: so long it would stand still if
    /// that was the last.
    pub bytes: u64,
    pub took: f64,
    /// The share of time for which it is made to stand still, in percent.
    pub slowed: u8,
}

/// The answer to [`Request::Status`].
#[derive(Debug, Serialize)]
pub struct Status {
    pub job: String,
    pub program: String,
    pub nodes_up: Vec<bool>,
    /// Nodes that are drained, or being drained.
    pub drained: Vec<Node>,
    /// Names of the hosts that the nodes are; empty on one machine.
    pub hosts: Vec<String>,
    pub ranks: Vec<RankStatus>,
    pub moves: Vec<MoveStatus>,
    /// Roles that run on nodes.
    pub roles: Vec<RoleStatus>,
    /// Nodes whose hosts have a whole copy of the journal: `eyrie resume` works there.
    pub journal: Vec<Node>,
    /// For how many seconds the controller has stood aside, because no node on another host
    /// answers.
    pub cut_off: Option<f64>,
    /// Ranks that cannot be recovered at present.
    pub unprotected: Vec<Rank>,
    /// What was promised to be kept twice, and is not at present.
    pub copies_missing: Vec<Missing>,
    pub logs: Vec<LogStatus>,
    pub log_memory_bytes: u64,
    pub log_disk_bytes: u64,
    pub messages: u64,
    pub store_bytes: u64,
    pub summary: Summary,
}

/// Asks a living job and returns its answer.
///
/// # Errors
/// When the job cannot be reached, has ended meanwhile, or refuses: with its reason.
pub fn ask(dir: &Path, request: &Request) -> anyhow::Result<serde_json::Value> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let asked = try_to_ask(dir, request, &name);
    // Whatever else failed: its directory goes with the job.
    if asked.is_err() && !dir.exists() {
        anyhow::bail!("job {name} has ended");
    }
    asked
}

fn try_to_ask(dir: &Path, request: &Request, name: &str) -> anyhow::Result<serde_json::Value> {
    let secret = match eyrie_agent::read_secret(dir) {
        // It goes first, the directory last.
        Err(_) if !dir.join("secret").exists() => anyhow::bail!("job {name} is ending"),
        secret => secret?,
    };
    let socket = Addr::Unix(eyrie_agent::user_socket(dir));
    let connected = eyrie_agent::connect(&socket, &secret, &Claim::User);
    let mut stream = connected.map_err(|e| {
        if !journal::is_in(dir) {
            return e.context(format!("job {name} is ending, or its controller has died"));
        }
        e.context(format!(
            "no controller of job {name} is on this host; if it has died, go on with \
             `eyrie resume {name}`"
        ))
    })?;
    stream.set_timeout(Some(request.patience()))?;
    writeln!(stream, "{}", serde_json::to_string(request)?)?;
    let mut line = String::new();
    let read = BufReader::new(stream).take(MAX_ANSWER).read_line(&mut line);
    match read.as_ref().map_err(std::io::Error::kind) {
        Err(ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            let patience = eyrie_units::time(request.patience());
            anyhow::bail!("job {name} has not answered within {patience}")
        }
        Ok(0) | Err(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {
            anyhow::bail!("job {name} has ended before it answered")
        }
        _ => {}
    }
    read?;
    let answer: serde_json::Value =
        serde_json::from_str(&line).context("the answer of the job is cut off")?;
    if let Some(error) = answer.get("error").and_then(|e| e.as_str()) {
        anyhow::bail!("{error}");
    }
    Ok(answer)
}

/// Reads a request.
///
/// # Errors
/// A text for the user.
pub fn parse(request: &str) -> Result<Request, String> {
    serde_json::from_str(request).map_err(|e| format!("not understood: {e}"))
}

/// An answer of the machine as users get it.
pub fn in_json(answer: &Answer) -> String {
    match answer {
        Answer::Accepted => serde_json::json!({ "ok": true }).to_string(),
        Answer::Checkpoints(outcomes) => serde_json::json!({ "checkpoints": outcomes }).to_string(),
        Answer::Proposal(proposal) => serde_json::json!({ "proposal": proposal }).to_string(),
        Answer::Refused(text) => error(text),
    }
}

/// An answer that is an error.
pub fn error(text: &str) -> String {
    serde_json::json!({ "error": text }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_ends_just_now_is_said_to() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("j");
        let said = || ask(&dir, &Request::Status).unwrap_err().to_string();
        assert_eq!(said(), "job j has ended");
        std::fs::create_dir(&dir).unwrap();
        assert_eq!(said(), "job j is ending");
    }
}
