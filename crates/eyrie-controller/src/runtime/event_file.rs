//! The event file: one JSON object per line, written when the journal has what it follows from, and
//! never before. Where the user has named none, it is in the job's directory, and turned over: it
//! never ends or delays a job, also when the disk is full.

use super::subscribers::{seq_of, Published};
use crate::record::{Line, Record};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A line that is to be written.
struct Held {
    /// Where the journal has what it follows from.
    position: u64,
    seq: u64,
    line: Vec<u8>,
}

/// A new file, or an old one that is emptied, for lines that are always put at its end: what turns
/// logs over by copying and emptying them (copytruncate) must not leave a hole.
pub fn appended(path: &Path) -> io::Result<File> {
    // Not `truncate`, which the standard library refuses beside `append`.
    let emptied = rustix::fs::OFlags::TRUNC.bits() as i32;
    File::options().append(true).create(true).custom_flags(emptied).open(path)
}

/// What a snapshot of the job has of its events.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SavedEvents {
    /// Number of the first line that may not have been written.
    first: u64,
    /// It and those behind it.
    lines: Vec<Vec<u8>>,
}

/// The event file that no user has named, in the job's directory.
const OWN: &str = "events";
/// The one before it.
const OWN_BEFORE: &str = "events.1";
/// A new one begins before it becomes larger, in bytes.
const OWN_MOST: u64 = 16 << 20;

/// The event file of a job.
pub struct EventFile {
    /// `None` once nothing more is written.
    file: Option<File>,
    /// Where it is, if no user has named it.
    own: Option<PathBuf>,
    /// Its size in bytes.
    size: u64,
    published: Published,
    /// Number of the next line.
    seq: u64,
    /// Lines that another controller has written.
    skip: u64,
    /// Lines that wait for the journal: a controller that goes on without what they follow from
    /// comes to others, and would take these for its own.
    held: VecDeque<Held>,
}

impl EventFile {
    /// A new file: the one that the user has named, or one in the job's directory.
    ///
    /// # Errors
    /// When the file that the user has named cannot be made.
    pub fn create(named: Option<&Path>, dir: &Path) -> anyhow::Result<EventFile> {
        EventFile::begin(named, dir, |path| Ok((appended(path)?, 0)))
    }

    /// `open` returns the file, and the number of the line that follows those in it.
    fn begin(
        named: Option<&Path>,
        dir: &Path,
        open: impl FnOnce(&Path) -> io::Result<(File, u64)>,
    ) -> anyhow::Result<EventFile> {
        let mut events = EventFile {
            file: None,
            own: named.is_none().then(|| dir.to_path_buf()),
            size: 0,
            published: Published::default(),
            seq: 0,
            skip: 0,
            held: VecDeque::new(),
        };
        let path = named.map_or_else(|| dir.join(OWN), Path::to_path_buf);
        let begun = open(&path).and_then(|(file, skip)| events.write_to(file, skip));
        let begun = events.unless_own(begun);
        begun.with_context(|| format!("cannot write events to {}", path.display()))?;
        Ok(events)
    }

    fn write_to(&mut self, file: File, skip: u64) -> io::Result<()> {
        let before = self.own.as_ref().and_then(|dir| File::open(dir.join(OWN_BEFORE)).ok());
        before.map_or(Ok(()), |before| self.published.open(&before))?;
        self.published.open(&file)?;
        self.published.wrote(skip);
        (self.size, self.skip) = (file.metadata()?.len(), skip);
        self.file = Some(file);
        Ok(())
    }

    /// After an error nothing more is written. It is told, unless no user has named the file: then
    /// only those who ask for the events have to know.
    fn unless_own(&mut self, done: io::Result<()>) -> io::Result<()> {
        let Err(e) = done else { return Ok(()) };
        self.published.fail(format!("the events of the job cannot be written: {e}"));
        self.close();
        match self.own {
            Some(_) => Ok(()),
            None => Err(e),
        }
    }

    /// The number of the first line that no other controller has written.
    pub fn first(&self) -> u64 {
        self.skip
    }

    /// What subscribers see of it.
    pub fn published(&self) -> Published {
        self.published.clone()
    }

    /// Goes on with the file of another controller, which has handled the same records: its lines
    /// are not written again, and one that it has torn is. Without that file all are written.
    ///
    /// # Errors
    /// When the file that the user has named cannot be read or written.
    pub fn go_on(named: Option<&Path>, dir: &Path) -> anyhow::Result<EventFile> {
        EventFile::begin(named, dir, |path| {
            let mut file = File::options().read(true).append(true).create(true).open(path)?;
            let mut text = Vec::new();
            file.read_to_end(&mut text)?;
            let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            file.set_len(whole as u64)?;
            // A new file has just begun, perhaps.
            if whole == 0 && named.is_none() {
                text = std::fs::read(dir.join(OWN_BEFORE)).unwrap_or_default();
                return Ok((file, next_seq(&text)));
            }
            Ok((file, next_seq(&text[..whole])))
        })
    }

    /// Nothing more is written, of what waits neither.
    pub fn close(&mut self) {
        self.file = None;
        self.held.clear();
        self.published.close();
    }

    /// The lines that a snapshot must have.
    pub fn saved(&self) -> SavedEvents {
        let lines: Vec<_> = self.held.iter().map(|held| held.line.clone()).collect();
        SavedEvents { first: self.seq - lines.len() as u64, lines }
    }

    /// Goes on from a snapshot: its lines are written, and the events before it are not heard
    /// again.
    ///
    /// # Errors
    /// As [`EventFile::let_out`].
    pub fn go_on_from(&mut self, saved: SavedEvents) -> io::Result<()> {
        self.seq = saved.first;
        self.published.wrote(saved.first);
        for line in saved.lines {
            self.hold(0, line);
        }
        self.let_out(0)
    }

    /// Has an event written once the journal is safe up to this position.
    ///
    /// # Errors
    /// When it cannot be put into a line.
    pub fn add(&mut self, now: Duration, record: &Record, position: u64) -> io::Result<()> {
        if self.file.is_none() {
            // The number of an event is the same for every controller.
            self.seq += 1;
            return Ok(());
        }
        let time = now.as_micros() as f64 / 1e6;
        let mut line = serde_json::to_vec(&Line { seq: self.seq, time, record })?;
        line.push(b'\n');
        self.hold(position, line);
        Ok(())
    }

    fn hold(&mut self, position: u64, line: Vec<u8>) {
        self.held.push_back(Held { position, seq: self.seq, line });
        self.seq += 1;
    }

    /// Writes the lines that wait for no more than this position; after a failure (which is
    /// returned once) nothing more.
    ///
    /// # Errors
    /// Those of a file that the user has named.
    pub fn let_out(&mut self, durable: u64) -> io::Result<()> {
        let is_due = |held: &Held| held.position <= durable;
        while self.file.is_some() && self.held.front().is_some_and(is_due) {
            let Some(Held { seq, line, .. }) = self.held.pop_front() else { break };
            if seq >= self.skip {
                let written = self.write(seq, &line);
                self.unless_own(written)?;
            }
            self.published.wrote(seq + 1);
        }
        Ok(())
    }

    fn write(&mut self, seq: u64, line: &[u8]) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let size = self.size + line.len() as u64;
        match &self.own {
            Some(dir) if size > OWN_MOST && self.size > 0 => {
                std::fs::rename(dir.join(OWN), dir.join(OWN_BEFORE))?;
                *file = appended(&dir.join(OWN))?;
                self.published.open(file)?;
                self.size = line.len() as u64;
            }
            _ => self.size = size,
        }
        self.published.write(seq + 1, || file.write_all(line))
    }
}

impl Drop for EventFile {
    fn drop(&mut self) {
        self.published.close();
    }
}

/// The number of the line that follows these, of which the first ones may have been taken away, and
/// the last ones be damaged.
fn next_seq(text: &[u8]) -> u64 {
    let lines = text.split_inclusive(|byte| *byte == b'\n').rev();
    let known =
        lines.enumerate().find_map(|(behind, line)| Some(seq_of(line)? + 1 + behind as u64));
    known.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_interface::FirstEvent;

    fn note(text: &str) -> Record {
        Record::Note { text: text.into() }
    }

    fn texts(path: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(path).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let lines: Vec<serde_json::Value> = lines.collect();
        for (seq, line) in lines.iter().enumerate() {
            assert_eq!(line["seq"], seq);
        }
        lines.iter().map(|line| line["text"].as_str().unwrap().to_string()).collect()
    }

    /// The first controller was killed before the journal had all that it had heard.
    #[test]
    fn an_event_waits_for_the_journal() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events");
        let mut first = EventFile::create(Some(&path), dir.path()).unwrap();
        for (text, position) in [("started", 10), ("moved", 20), ("lost", 30)] {
            first.add(Duration::ZERO, &note(text), position).unwrap();
        }
        first.let_out(20).unwrap();
        assert_eq!(texts(&path), ["started", "moved"]);
        let mut second = EventFile::go_on(Some(&path), dir.path()).unwrap();
        for text in ["started", "moved", "resumed"] {
            second.add(Duration::ZERO, &note(text), 0).unwrap();
        }
        second.let_out(0).unwrap();
        assert_eq!(texts(&path), ["started", "moved", "resumed"]);
    }

    /// Whether they were written after it was taken, or not.
    #[test]
    fn events_that_wait_are_in_a_snapshot() {
        for durable in [10, 20, 30] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("events");
            let mut first = EventFile::create(Some(&path), dir.path()).unwrap();
            for (text, position) in [("started", 10), ("moved", 20), ("lost", 30)] {
                first.add(Duration::ZERO, &note(text), position).unwrap();
            }
            first.let_out(10).unwrap();
            let saved = first.saved();
            first.let_out(durable).unwrap();
            let mut second = EventFile::go_on(Some(&path), dir.path()).unwrap();
            second.go_on_from(saved).unwrap();
            second.add(Duration::ZERO, &note("resumed"), 0).unwrap();
            second.let_out(0).unwrap();
            assert_eq!(texts(&path), ["started", "moved", "lost", "resumed"]);
        }
    }

    /// Another controller writes what waits.
    #[test]
    fn what_waits_when_the_file_is_closed_was_never_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events");
        let mut first = EventFile::create(Some(&path), dir.path()).unwrap();
        for (text, position) in [("started", 10), ("lost", 20)] {
            first.add(Duration::ZERO, &note(text), position).unwrap();
        }
        first.let_out(10).unwrap();
        first.close();
        first.let_out(u64::MAX).unwrap();
        first.add(Duration::ZERO, &note("lost"), 0).unwrap();
        first.let_out(u64::MAX).unwrap();
        assert_eq!(texts(&path), ["started"]);
        assert_eq!(first.published().written(), 1);
        assert_eq!(first.saved(), SavedEvents { first: 3, lines: vec![] });
    }

    /// Its subscribers wait for what it will write, not for what was written before.
    #[test]
    fn a_file_that_goes_on_is_written_up_to_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events");
        let mut first = EventFile::create(Some(&path), dir.path()).unwrap();
        for text in ["started", "moved"] {
            first.add(Duration::ZERO, &note(text), 0).unwrap();
        }
        first.let_out(0).unwrap();
        let second = EventFile::go_on(Some(&path), dir.path()).unwrap();
        assert_eq!(second.published().written(), 2);
        // On another host, which has no file.
        let elsewhere = tempfile::tempdir().unwrap();
        let mut third = EventFile::go_on(None, elsewhere.path()).unwrap();
        third.go_on_from(first.saved()).unwrap();
        assert_eq!(third.published().written(), 2);
    }

    /// As logrotate does with copytruncate.
    #[test]
    fn a_file_that_was_emptied_has_no_hole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events");
        std::fs::write(&path, "of an earlier job\n").unwrap();
        let mut first = EventFile::create(Some(&path), dir.path()).unwrap();
        let say = |file: &mut EventFile, text| {
            file.add(Duration::ZERO, &note(text), 0).unwrap();
            file.let_out(0).unwrap();
        };
        for text in ["one", "two"] {
            say(&mut first, text);
        }
        assert_eq!(texts(&path), ["one", "two"]);
        File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
        say(&mut first, "three");
        let left = std::fs::read(&path).unwrap();
        assert!(left.starts_with(b"{\"seq\":2,"), "{left:?}");
        // Another controller writes only what is missing.
        let mut second = EventFile::go_on(Some(&path), dir.path()).unwrap();
        for text in ["one", "two", "three", "resumed"] {
            say(&mut second, text);
        }
        let all = std::fs::read_to_string(&path).unwrap();
        assert_eq!((all.lines().count(), all.contains("\"seq\":3,")), (2, true), "{all}");
    }

    /// The disk or the directory is full.
    #[test]
    fn a_file_that_no_user_has_named_fails_in_silence() {
        let dir = tempfile::tempdir().unwrap();
        let full = |_: &Path| Ok((File::options().write(true).open("/dev/full")?, 0));
        let mut file = EventFile::begin(None, dir.path(), full).unwrap();
        file.add(Duration::ZERO, &note("lost"), 0).unwrap();
        file.let_out(0).unwrap();
        assert_eq!(file.published().written(), 0);
        let mut named = EventFile::begin(Some(dir.path()), dir.path(), full).unwrap();
        named.add(Duration::ZERO, &note("lost"), 0).unwrap();
        assert!(named.let_out(0).is_err());
        // A directory with its name stands for one that takes no file.
        std::fs::create_dir(dir.path().join(OWN)).unwrap();
        assert!(EventFile::create(Some(&dir.path().join(OWN)), dir.path()).is_err());
        for begin in [EventFile::create, EventFile::go_on] {
            let mut file = begin(None, dir.path()).unwrap();
            file.add(Duration::ZERO, &note("lost"), 0).unwrap();
            file.let_out(0).unwrap();
            let mut out = Vec::new();
            file.published().stream(FirstEvent::New, &mut out).unwrap();
            let out = String::from_utf8(out).unwrap();
            assert!(out.contains("cannot be written: Is a directory"), "{out}");
        }
    }

    /// It was killed after it had turned the file over.
    #[test]
    fn a_new_file_goes_on_with_the_numbers_of_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = EventFile::create(None, dir.path()).unwrap();
        for text in ["started", "moved"] {
            first.add(Duration::ZERO, &note(text), 0).unwrap();
        }
        first.let_out(0).unwrap();
        std::fs::rename(dir.path().join(OWN), dir.path().join(OWN_BEFORE)).unwrap();
        let mut second = EventFile::go_on(None, dir.path()).unwrap();
        for text in ["started", "moved", "resumed"] {
            second.add(Duration::ZERO, &note(text), 0).unwrap();
        }
        second.let_out(0).unwrap();
        let left = std::fs::read_to_string(dir.path().join(OWN)).unwrap();
        assert!(left.starts_with("{\"seq\":2,") && left.lines().count() == 1, "{left}");
    }

    #[test]
    fn a_damaged_line_counts() {
        let lines = b"{\"seq\":7,\"event\":\"note\"}\n{\"seq\":8}\n";
        assert_eq!((next_seq(b""), next_seq(lines)), (0, 9));
        let mut damaged = lines.to_vec();
        damaged[28] ^= 1;
        assert_eq!(next_seq(&damaged), 9);
    }
}
