//! `eyrie status`, `inject`, `checkpoint` and `trace`: one JSON request, one JSON answer.

use super::journal;
use crate::machine::answer::Answer;
use anyhow::Context;
use eyrie_interface::answer::{Accepted, Checkpoints, Proposed};
use eyrie_interface::Request;
use eyrie_wire::addr::Addr;
use eyrie_wire::control::Claim;
use serde::de::DeserializeOwned;
use serde::Serialize;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Longest answer in bytes.
const MAX_ANSWER: u64 = 16 << 20;

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

/// Asks a living job and returns its answer.
///
/// # Errors
/// When the job cannot be reached, has ended meanwhile, or refuses: with its reason; and when it
/// answers something else.
pub fn ask<A: DeserializeOwned>(dir: &Path, request: &Request) -> anyhow::Result<A> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let asked = try_to_ask(dir, request, &name);
    // Whatever else failed: its directory goes with the job.
    if asked.is_err() && !dir.exists() {
        anyhow::bail!("job {name} has ended");
    }
    asked
}

fn try_to_ask<A: DeserializeOwned>(dir: &Path, request: &Request, name: &str) -> anyhow::Result<A> {
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
    serde_json::from_value(answer)
        .with_context(|| format!("job {name} does not answer as this version of eyrie would"))
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
        Answer::Accepted => written(&Accepted { ok: true }),
        Answer::Checkpoints(outcomes) => written(&Checkpoints { checkpoints: outcomes.clone() }),
        Answer::Proposal(proposal) => written(&Proposed { proposal: (**proposal).clone() }),
        Answer::Refused(text) => error(text),
    }
}

/// An answer, or the error that it cannot be written.
pub fn written<A: Serialize>(answer: &A) -> String {
    serde_json::to_string(answer).unwrap_or_else(|e| error(&e.to_string()))
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
        let said = || ask::<Accepted>(&dir, &Request::Status).unwrap_err().to_string();
        assert_eq!(said(), "job j has ended");
        std::fs::create_dir(&dir).unwrap();
        assert_eq!(said(), "job j is ending");
    }
}
