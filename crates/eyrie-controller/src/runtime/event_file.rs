//! The event file: one JSON object per line, written as it happens.

use crate::record::Record;
use anyhow::Context;
use serde::Serialize;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

/// A line of the file.
#[derive(Serialize)]
struct Line<'a> {
    /// Number of the line, from 0.
    seq: u64,
    /// Seconds since the job's start.
    time: f64,
    #[serde(flatten)]
    record: &'a Record,
}

/// The event file of a job, or nothing when none is wanted.
pub struct EventFile {
    file: Option<File>,
    seq: u64,
    /// Lines that another controller has written.
    skip: u64,
}

impl EventFile {
    /// # Errors
    /// When the file cannot be made.
    pub fn create(path: Option<&Path>) -> anyhow::Result<EventFile> {
        let file = path
            .map(|p| {
                File::create(p).with_context(|| format!("cannot write events to {}", p.display()))
            })
            .transpose()?;
        Ok(EventFile { file, seq: 0, skip: 0 })
    }

    /// Goes on with the file of another controller, which has handled the same records: its lines
    /// are not written again, and one that it has torn is. Without that file all are written.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn go_on(path: Option<&Path>) -> anyhow::Result<EventFile> {
        let Some(path) = path else { return EventFile::create(None) };
        let went_on = || -> std::io::Result<EventFile> {
            let mut file = File::options().read(true).append(true).create(true).open(path)?;
            let mut text = Vec::new();
            file.read_to_end(&mut text)?;
            let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            file.set_len(whole as u64)?;
            let skip = text.iter().filter(|byte| **byte == b'\n').count() as u64;
            Ok(EventFile { file: Some(file), seq: 0, skip })
        };
        went_on().with_context(|| format!("cannot write events to {}", path.display()))
    }

    /// How many events there were so far.
    pub fn events(&self) -> u64 {
        self.seq
    }

    /// So many events are not heard again: the next one has this number.
    pub fn begin_at(&mut self, seq: u64) {
        self.seq = seq;
    }

    /// Writes an event; after a failure (which is returned once) nothing more.
    pub fn write(&mut self, now: Duration, record: &Record) -> std::io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        if self.seq < self.skip {
            self.seq += 1;
            return Ok(());
        }
        let time = now.as_micros() as f64 / 1e6;
        let mut line = serde_json::to_vec(&Line { seq: self.seq, time, record })?;
        line.push(b'\n');
        self.seq += 1;
        let written = file.write_all(&line);
        if written.is_err() {
            self.file = None;
        }
        written
    }
}
