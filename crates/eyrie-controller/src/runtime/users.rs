//! What commands ask of a running job and get from it: one JSON request and one JSON answer
//! (`eyrie status`, `inject`, `checkpoint`, `trace` and others), or one line after another
//! (`eyrie events`). It never decides what the answer is.

use super::journal;
use crate::machine::answer::Answer;
use anyhow::Context;
use eyrie_interface::answer::{refusal, Accepted, Arranged, Checkpoints, Proposed};
use eyrie_interface::output::Printed;
use eyrie_interface::request::{MAX_LINE, STREAM_HEARTBEAT};
use eyrie_interface::{FirstEvent, Request};
use eyrie_supervision::place;
use eyrie_transport::Stream;
use eyrie_wire::control::Claim;
use eyrie_wire::role_address::Addr;
use serde::de::DeserializeOwned;
use serde::Serialize;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

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
    let name = name_of(dir);
    let asked = try_to_ask(dir, request, &name);
    // Whatever else failed: its directory goes with the job.
    if asked.is_err() && !dir.exists() {
        anyhow::bail!("job {name} has ended");
    }
    asked
}

/// A connection to a job's controller.
pub struct Connected {
    pub stream: Stream,
    /// The name of the job.
    pub name: String,
}

impl Connected {
    /// # Errors
    /// When the job has ended or is ending, or its controller is not here.
    pub fn to(dir: &Path) -> anyhow::Result<Connected> {
        let name = name_of(dir);
        match connect(dir, &name) {
            // Whatever else failed: its directory goes with the job.
            Err(_) if !dir.exists() => anyhow::bail!("job {name} has ended"),
            stream => Ok(Connected { stream: stream?, name }),
        }
    }
}

/// The name of the job with this directory, by which users call it; that of the directory where it
/// does not say.
fn name_of(dir: &Path) -> String {
    let by_mark = place::look(dir.into()).map(|job| job.mark.name);
    by_mark.unwrap_or_else(|| dir.file_name().unwrap_or_default().to_string_lossy().into_owned())
}

fn connect(dir: &Path, name: &str) -> anyhow::Result<Stream> {
    let secret = match eyrie_agent::read_secret(dir) {
        // It goes first, the directory last.
        Err(_) if !dir.join("secret").exists() => anyhow::bail!("job {name} is ending"),
        secret => secret?,
    };
    let socket = Addr::Unix(eyrie_agent::user_socket(dir));
    let connected = eyrie_agent::connect(&socket, &secret, &Claim::User);
    connected.map_err(|e| {
        if !journal::is_in(dir) {
            return e.context(format!("job {name} is ending, or its controller has died"));
        }
        e.context(format!(
            "no controller of job {name} is on this host; if it has died, go on with \
             `eyrie resume {name}`"
        ))
    })
}

fn try_to_ask<A: DeserializeOwned>(dir: &Path, request: &Request, name: &str) -> anyhow::Result<A> {
    let mut stream = connect(dir, name)?;
    stream.set_timeout(Some(request.patience()))?;
    writeln!(stream, "{}", serde_json::to_string(request)?)?;
    let mut line = String::new();
    let read = BufReader::new(stream).take(MAX_LINE).read_line(&mut line);
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

/// The events of a job, as its controller sends them.
pub struct Subscription {
    input: BufReader<Stream>,
    /// The name of the job.
    name: String,
    /// Number of the next event, where it is known.
    next: Option<u64>,
}

impl Subscription {
    /// Subscribes to the events from this one on. None that happens after the return is missed.
    ///
    /// # Errors
    /// When the job cannot be reached, or refuses.
    pub fn begin(dir: &Path, from: FirstEvent) -> anyhow::Result<Subscription> {
        let Connected { mut stream, name } = Connected::to(dir)?;
        stream.set_timeout(Some(3 * STREAM_HEARTBEAT))?;
        writeln!(stream, "{}", serde_json::to_string(&Request::Subscribe { from })?)?;
        let next = match from {
            FirstEvent::At(seq) => Some(seq),
            FirstEvent::New | FirstEvent::Oldest => None,
        };
        let mut begun = Subscription { input: BufReader::new(stream), name, next };
        match begun.line()? {
            None => Ok(begun),
            Some(_) => {
                anyhow::bail!("job {} does not answer as this version of eyrie would", begun.name)
            }
        }
    }

    /// Gives each line to `hear`, until the job has ended or `hear` returns false.
    ///
    /// # Errors
    /// Those of `hear`; when the controller breaks off: with the number to go on from.
    pub fn hear(
        mut self,
        hear: &mut dyn FnMut(&str) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        loop {
            let Some((line, value)) = self.line()? else { continue };
            self.next = value.get("seq").and_then(serde_json::Value::as_u64).map(|seq| seq + 1);
            let is_last = value.get("event").is_some_and(|event| event == "job_ended");
            if !hear(&line)? || is_last {
                return Ok(());
            }
        }
    }

    /// The next line; `None`: it is empty.
    fn line(&mut self) -> anyhow::Result<Option<(String, serde_json::Value)>> {
        let mut line = String::new();
        let read = self.input.by_ref().take(MAX_LINE).read_line(&mut line);
        if !matches!(read, Ok(1..)) || !line.ends_with('\n') {
            let go_on =
                self.next.map_or(String::new(), |next| format!("; go on with --from {next}"));
            anyhow::bail!(
                "the events of job {} break off: its controller has died, or they were read too \
                 slowly{go_on}",
                self.name
            );
        }
        line.truncate(line.trim_end().len());
        if line.is_empty() {
            return Ok(None);
        }
        let value: serde_json::Value =
            serde_json::from_str(&line).context("a line of the events cannot be read")?;
        if let Some(error) = value.get("error").and_then(|e| e.as_str()) {
            anyhow::bail!("{error}");
        }
        Ok(Some((line, value)))
    }
}

/// Gives what the ranks of a job print to `hear`, from the last lines on, until the job ends.
///
/// # Errors
/// When the job cannot be reached, or refuses, or its controller dies.
pub fn hear_output(dir: &Path, hear: &mut dyn FnMut(Printed)) -> anyhow::Result<()> {
    let Connected { mut stream, name } = Connected::to(dir)?;
    stream.set_timeout(Some(3 * STREAM_HEARTBEAT))?;
    writeln!(stream, "{}", serde_json::to_string(&Request::Output)?)?;
    let mut input = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if input.by_ref().take(MAX_LINE).read_line(&mut line)? == 0 {
            return Ok(());
        }
        if line.trim_end().is_empty() {
            continue;
        }
        hear(serde_json::from_str(&line).with_context(|| {
            format!("job {name} does not answer as this version of eyrie would")
        })?);
    }
}

/// An answer of the machine as users get it.
pub fn in_json(answer: &Answer) -> String {
    match answer {
        Answer::Accepted => written(&Accepted { ok: true }),
        Answer::Checkpoints(outcomes) => written(&Checkpoints { checkpoints: outcomes.clone() }),
        Answer::Proposal(proposal) => written(&Proposed { proposal: (**proposal).clone() }),
        Answer::Arrangement(found) => written(&Arranged { arrangement: (**found).clone() }),
        Answer::Refused(text) => refusal(text),
    }
}

/// An answer, or the error that it cannot be written.
pub fn written<A: Serialize>(answer: &A) -> String {
    serde_json::to_string(answer).unwrap_or_else(|e| refusal(&e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::jobdir::JobDir;

    #[test]
    fn a_job_that_ends_just_now_is_said_to() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("j");
        let said = || ask::<Accepted>(&dir, &Request::Status).unwrap_err().to_string();
        assert_eq!(said(), "job j has ended");
        std::fs::create_dir(&dir).unwrap();
        assert_eq!(said(), "job j is ending");
    }

    #[test]
    fn a_job_is_called_as_its_user_has_named_it() {
        let base = tempfile::tempdir().unwrap();
        let (dir, _) = JobDir::create(base.path(), "melt", 1, "eyrie_k", 1).unwrap();
        let said = ask::<Accepted>(dir.path(), &Request::Status).unwrap_err().to_string();
        assert_eq!(said, "job melt is ending, or its controller has died");
    }
}
