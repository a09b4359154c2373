//! The lines of the event file for those who subscribe to them, from any of them on. A subscriber
//! has a thread that reads the file: one that reads slowly holds up neither the job nor others, and
//! nothing is kept for it in memory.

use eyrie_interface::answer::refusal;
use eyrie_interface::request::{FirstEvent, MAX_LINE, STREAM_HEARTBEAT};
use serde::Deserialize;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a subscriber may take to read what is sent to it.
pub const SUBSCRIBER_PATIENCE: Duration = Duration::from_secs(30);

/// How far the event file is written.
#[derive(Debug, Default)]
struct Written {
    /// The file; `None` before there is one.
    file: Option<File>,
    /// The one before it, where a new one has begun.
    before: Option<File>,
    /// How many have begun.
    begun: u64,
    /// Number of the next line that will be written.
    next: u64,
    /// Nothing more is written.
    closed: bool,
    /// Why, where that is a failure.
    failure: Option<String>,
}

impl Written {
    /// The file, or the one before it, to be read from its start.
    fn tail(&self, file: &Option<File>, number: u64) -> io::Result<Tail> {
        let why = self.failure.as_deref().unwrap_or("there is no event file");
        let file = file.as_ref().ok_or_else(|| io::Error::other(why))?;
        // The file itself, also when it has another name by now.
        let file = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("--events names no file that can be read"));
        }
        Ok(Tail { input: BufReader::new(file), at: 0, number })
    }

    fn newest(&self) -> io::Result<Tail> {
        self.tail(&self.file, self.begun)
    }

    fn before(&self) -> io::Result<Tail> {
        self.tail(&self.before, self.begun - 1)
    }
}

/// What subscribers see of the event file.
#[derive(Clone, Debug, Default)]
pub struct Published(Arc<(Mutex<Written>, Condvar)>);

/// What a subscriber that has all lines waits for.
#[derive(PartialEq, Eq, Debug)]
enum Waited {
    More,
    Closed,
    /// Nothing has happened for [`STREAM_HEARTBEAT`].
    Idle,
}

impl Published {
    /// The file in which the lines to come are. Those before it may be in the one before.
    pub fn open(&self, file: &File) -> io::Result<()> {
        let file = file.try_clone()?;
        let mut written = self.lock();
        written.before = written.file.replace(file);
        written.begun += 1;
        Ok(())
    }

    /// All lines before this one are written, unless the file was closed before.
    pub fn wrote(&self, next: u64) {
        // Without a failure there is none to return.
        let _ = self.write(next, || Ok(()));
    }

    /// Writes what is before this line. One who asks for the lines to come sees all of it in the
    /// file, or nothing.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn write(&self, next: u64, write: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut written = self.lock();
        write()?;
        if !written.closed {
            written.next = next.max(written.next);
            self.0 .1.notify_all();
        }
        Ok(())
    }

    /// The number of the next line that will be written.
    #[cfg(test)]
    pub fn written(&self) -> u64 {
        self.lock().next
    }

    /// No line follows.
    pub fn close(&self) {
        self.lock().closed = true;
        self.0 .1.notify_all();
    }

    /// No line follows, for this reason: subscribers are told.
    pub fn fail(&self, why: String) {
        self.lock().failure = Some(why);
        self.close();
    }

    fn lock(&self) -> MutexGuard<'_, Written> {
        self.0 .0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the line with this number.
    fn wait(&self, next: u64) -> Waited {
        let nothing = |written: &mut Written| written.next <= next && !written.closed;
        let waited = self.0 .1.wait_timeout_while(self.lock(), STREAM_HEARTBEAT, nothing);
        let (written, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match *written {
            Written { next: there, .. } if there > next => Waited::More,
            Written { closed: true, .. } => Waited::Closed,
            _ => Waited::Idle,
        }
    }

    /// Where a subscriber begins to read, and the number of the line that it wants.
    fn begin(&self, from: FirstEvent) -> io::Result<(Tail, u64)> {
        let written = self.lock();
        let mut tail = written.newest()?;
        let next = match from {
            FirstEvent::New => {
                let end = tail.input.get_ref().metadata()?.len();
                tail.go_to(end)?;
                return Ok((tail, written.next));
            }
            FirstEvent::Oldest => 0,
            FirstEvent::At(seq) => seq,
        };
        if written.before.is_some() {
            let before = written.before()?;
            drop(written);
            if tail.line(0)?.is_none_or(|(first, _)| first > next) {
                return Ok((before, next));
            }
            tail.go_to(0)?;
        }
        Ok((tail, next))
    }

    /// The file that follows one that was read; `None`: that is the newest.
    fn after(&self, tail: &Tail) -> io::Result<Option<Tail>> {
        let written = self.lock();
        match written.begun - tail.number {
            0 => Ok(None),
            1 => written.newest().map(Some),
            // Those between are gone.
            _ => written.before().map(Some),
        }
    }

    /// Sends the lines from this one on until none follows; an empty one first.
    ///
    /// # Errors
    /// When the subscriber has left, or takes longer than its stream allows.
    pub fn stream(&self, from: FirstEvent, out: &mut impl Write) -> io::Result<()> {
        let (mut tail, mut next) = match self.begin(from) {
            Ok(begun) => begun,
            Err(e) => return writeln!(out, "{}", refusal(&format!("no events to read: {e}"))),
        };
        writeln!(out)?;
        // Until it has the oldest line that is kept, the subscriber misses none.
        let mut begun = from != FirstEvent::Oldest;
        loop {
            let there = self.lock().next;
            while let Some((seq, line)) = tail.line(next)? {
                if seq > next && begun {
                    return gone(out, next, seq);
                }
                out.write_all(&line)?;
                (next, begun) = (seq + 1, true);
            }
            if there > next {
                // It was written before this file was read: it is in another one, or gone.
                match self.after(&tail)? {
                    Some(newer) => tail = newer,
                    None if begun => return gone(out, next, there),
                    None => next = there,
                }
                continue;
            }
            match self.wait(next) {
                Waited::More => {}
                Waited::Closed => {
                    let failure = self.lock().failure.clone();
                    return failure.map_or(Ok(()), |why| writeln!(out, "{}", refusal(&why)));
                }
                Waited::Idle => writeln!(out)?,
            }
        }
    }
}

/// Cuts a subscriber off that would miss lines.
fn gone(out: &mut impl Write, next: u64, there: u64) -> io::Result<()> {
    let text = format!(
        "events {next} to {} are not in the event file any more: ask again from {there} on \
         (`eyrie run --events FILE` keeps all events)",
        there - 1
    );
    writeln!(out, "{}", refusal(&text))
}

/// The event file as it is read. Others may empty it meanwhile.
struct Tail {
    input: BufReader<File>,
    /// Where the next line begins.
    at: u64,
    /// How many files had begun with this one.
    number: u64,
}

impl Tail {
    /// The first whole line with this number or a higher one, behind those that were read; and its
    /// number. `None`: it is not there yet.
    fn line(&mut self, least: u64) -> io::Result<Option<(u64, Vec<u8>)>> {
        let mut again = true;
        loop {
            if self.input.get_ref().metadata()?.len() < self.at {
                self.go_to(0)?;
            }
            let mut line = Vec::new();
            self.input.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
            if line.last() != Some(&b'\n') {
                self.go_to(self.at)?;
                return Ok(None);
            }
            self.at += line.len() as u64;
            match seq_of(&line) {
                Some(seq) if seq >= least => return Ok(Some((seq, line))),
                Some(_) => {}
                // It was emptied and has grown again: this was the middle of a line.
                None if again => {
                    again = false;
                    self.go_to(0)?;
                }
                // A damaged line.
                None => {}
            }
        }
    }

    fn go_to(&mut self, at: u64) -> io::Result<()> {
        self.at = at;
        self.input.seek(SeekFrom::Start(at)).map(drop)
    }
}

/// The number of a line.
pub fn seq_of(line: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    struct Seq {
        seq: u64,
    }
    serde_json::from_slice(line).ok().map(|Seq { seq }| seq)
}

#[cfg(test)]
mod tests {
    use super::super::event_file::EventFile;
    use super::*;
    use crate::record::Record;
    use FirstEvent::{At, New, Oldest};

    fn note(file: &mut EventFile, text: &str) {
        file.add(Duration::ZERO, &Record::Note { text: text.into() }, 0).unwrap();
        file.let_out(0).unwrap();
    }

    fn streamed(published: &Published, from: FirstEvent) -> Vec<serde_json::Value> {
        let mut out = Vec::new();
        published.stream(from, &mut out).unwrap();
        out.split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect()
    }

    fn seqs(lines: &[serde_json::Value]) -> Vec<u64> {
        lines.iter().filter_map(|line| line["seq"].as_u64()).collect()
    }

    #[test]
    fn a_subscriber_gets_each_line_once_from_where_it_asks_and_what_is_written_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = EventFile::create(None, dir.path()).unwrap();
        for text in ["one", "two", "three"] {
            note(&mut file, text);
        }
        let published = file.published();
        let reader = std::thread::spawn(move || {
            [At(1), At(4)].map(|from| seqs(&streamed(&published, from)))
        });
        for text in ["four", "five", "six"] {
            note(&mut file, text);
        }
        drop(file);
        assert_eq!(reader.join().unwrap(), [vec![1, 2, 3, 4, 5], vec![4, 5]]);
    }

    #[test]
    fn lines_that_are_gone_are_named_and_the_next_can_be_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("named");
        let mut file = EventFile::create(Some(&path), dir.path()).unwrap();
        for text in ["one", "two"] {
            note(&mut file, text);
        }
        File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
        note(&mut file, "three");
        let published = file.published();
        drop(file);
        let refused = streamed(&published, At(0));
        let text = refused[0]["error"].as_str().unwrap();
        assert!(text.starts_with("events 0 to 1 are not in the event file any more"), "{text}");
        assert_eq!(seqs(&streamed(&published, At(2))), [2]);
        assert_eq!(seqs(&streamed(&published, Oldest)), [2]);
    }

    /// A line of 1 MiB.
    fn long_note(file: &mut EventFile) {
        note(file, &"x".repeat(1 << 20));
    }

    #[test]
    fn a_file_that_no_user_has_named_keeps_the_last_events_within_bounds() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = EventFile::create(None, dir.path()).unwrap();
        (0..40).for_each(|_| long_note(&mut file));
        let size = |entry: io::Result<std::fs::DirEntry>| entry.unwrap().metadata().unwrap().len();
        let sizes: Vec<u64> = std::fs::read_dir(dir.path()).unwrap().map(size).collect();
        assert!(sizes.len() == 2 && sizes.iter().all(|size| *size <= 16 << 20), "{sizes:?}");
        note(&mut file, "last");
        let published = file.published();
        drop(file);
        assert_eq!(seqs(&streamed(&published, At(40))), [40]);
        assert_eq!(seqs(&streamed(&published, Oldest)), (15..41).collect::<Vec<_>>());
        // The second file of 15 lines, and the third one.
        assert_eq!(seqs(&streamed(&published, At(20))), (20..41).collect::<Vec<_>>());
        let refused = streamed(&published, At(14));
        let text = refused[0]["error"].as_str().unwrap();
        assert!(text.starts_with("events 14 to 14 are not in the event file any more"), "{text}");
    }

    /// Where what a subscriber reads goes, one line after the other.
    struct Reader(std::sync::mpsc::SyncSender<Vec<u8>>);

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The first line that was written behind the empty one is the first that is sent.
    #[test]
    fn a_subscriber_to_the_events_to_come_misses_none_of_them() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = EventFile::create(None, dir.path()).unwrap();
        note(&mut file, "before");
        let published = file.published();
        let (line, lines) = std::sync::mpsc::sync_channel(0);
        let reader = std::thread::spawn(move || published.stream(New, &mut Reader(line)));
        assert_eq!(lines.recv().unwrap(), b"\n");
        for text in ["two", "three"] {
            note(&mut file, text);
        }
        drop(file);
        let read: Vec<u64> = lines.iter().filter_map(|line| seq_of(&line)).collect();
        reader.join().unwrap().unwrap();
        assert_eq!(read, [1, 2]);
    }

    /// On another host the file begins with what its controller writes.
    #[test]
    fn the_oldest_event_of_a_job_that_was_resumed_is_the_first_one_here() {
        let dir = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let mut first = EventFile::create(None, dir.path()).unwrap();
        for text in ["one", "two"] {
            note(&mut first, text);
        }
        let mut file = EventFile::go_on(None, elsewhere.path()).unwrap();
        file.go_on_from(first.saved()).unwrap();
        let published = file.published();
        let (line, lines) = std::sync::mpsc::sync_channel(0);
        let reader = std::thread::spawn(move || published.stream(Oldest, &mut Reader(line)));
        assert_eq!(lines.recv().unwrap(), b"\n");
        note(&mut file, "resumed");
        drop(file);
        let read: Vec<u64> = lines.iter().filter_map(|line| seq_of(&line)).collect();
        reader.join().unwrap().unwrap();
        assert_eq!(read, [2]);
    }

    #[test]
    fn a_subscriber_behind_reads_the_old_file_to_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = EventFile::create(None, dir.path()).unwrap();
        note(&mut file, "first");
        let published = file.published();
        // It takes a line only when it is asked to.
        let (line, lines) = std::sync::mpsc::sync_channel(0);
        let reader = std::thread::spawn(move || published.stream(Oldest, &mut Reader(line)));
        assert_eq!(lines.recv().unwrap(), b"\n");
        let first: Vec<u8> = lines.recv().unwrap();
        (0..20).for_each(|_| long_note(&mut file));
        drop(file);
        let rest: Vec<u8> = lines.iter().flatten().collect();
        reader.join().unwrap().unwrap();
        let read = [first, rest].concat();
        let all = read.split_inclusive(|byte| *byte == b'\n').filter_map(seq_of);
        assert_eq!(all.collect::<Vec<_>>(), (0..21).collect::<Vec<_>>());
    }
}
