//! The journal of a machine: what it was made for, then each of its events with the time, one JSON object
//! a line. A fresh machine that is given a journal gives the same commands, because a machine knows nothing
//! but its events.

use super::io::{Command, Event};
use super::reactor::{Config, Machine};
use serde::{de::DeserializeOwned, Deserialize, Serialize};
use std::io::{self, BufRead, Write};
use std::time::Duration;

/// One event, and when it was handled (since the job's start).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Entry {
    pub at: Duration,
    pub event: Event,
}

/// A journal that is being written.
pub struct Writer<W> {
    out: W,
}

impl<W: Write> Writer<W> {
    /// Begins the journal of a machine that is made of this configuration.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn begin(out: W, config: &Config) -> io::Result<Writer<W>> {
        let mut writer = Writer { out };
        writer.line(config)?;
        Ok(writer)
    }

    /// Writes an event, before it is handled.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&mut self, entry: &Entry) -> io::Result<()> {
        self.line(entry)
    }

    /// What was written to.
    pub fn into_inner(self) -> W {
        self.out
    }

    fn line(&mut self, value: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, value)?;
        self.out.write_all(b"\n")
    }
}

/// Gives a journal to a fresh machine; returns its commands, in order.
///
/// # Errors
/// Those of `journal`; `InvalidData` for a line that is none of a journal, `UnexpectedEof` without a first.
pub fn replay(journal: impl BufRead) -> io::Result<Vec<Command>> {
    fn parse<T: DeserializeOwned>(line: io::Result<String>) -> io::Result<T> {
        Ok(serde_json::from_str(&line?)?)
    }
    let mut lines = journal.lines();
    let config = lines.next().ok_or(io::ErrorKind::UnexpectedEof)?;
    let mut machine = Machine::new(parse(config)?);
    let mut commands = Vec::new();
    for line in lines {
        let Entry { at, event } = parse(line)?;
        commands.extend(machine.handle(at, event));
    }
    Ok(commands)
}
