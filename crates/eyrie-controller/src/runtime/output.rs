//! The job's output: what of a rank's bytes is new, and the thread that writes it beside Eyrie's own lines and the
//! progress line. The main thread must never wait for whoever reads our output.

use super::agents::Link;
use super::inbound::Inbound;
use crossbeam_channel::{unbounded, Receiver, Sender};
use eyrie_wire::control::{Stream, ToAgent};
use eyrie_wire::Rank;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How far the output of each rank has been taken, in any of its incarnations.
#[derive(Debug)]
pub struct Ledger {
    taken: Vec<[u64; 2]>,
}

impl Ledger {
    pub fn new(ranks: u32) -> Ledger {
        Ledger { taken: vec![[0; 2]; ranks as usize] }
    }

    /// The part of `bytes` (from `offset` of the stream on) that has not been taken yet. What a re-executing
    /// rank writes again is not.
    pub fn take<'a>(
        &mut self,
        rank: Rank,
        stream: Stream,
        offset: u64,
        bytes: &'a [u8],
    ) -> &'a [u8] {
        let Some(taken) = self.taken.get_mut(rank as usize) else { return &[] };
        let taken = &mut taken[stream as usize];
        let known = taken.saturating_sub(offset).min(bytes.len() as u64) as usize;
        *taken = (*taken).max(offset + bytes.len() as u64);
        &bytes[known..]
    }

    /// Bytes taken of (standard output, standard error).
    pub fn taken(&self, rank: Rank) -> [u64; 2] {
        self.taken.get(rank as usize).copied().unwrap_or_default()
    }
}

/// Why what the ranks write cannot be passed on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutputFailed {
    /// Exit code of the job.
    pub code: i32,
    /// What to say.
    pub cause: String,
    /// Whoever read it has left: nobody has to be told.
    pub reader_left: bool,
}

impl OutputFailed {
    fn new(stream: Stream, e: &io::Error) -> OutputFailed {
        let reader_left = e.kind() == io::ErrorKind::BrokenPipe;
        let name = match stream {
            Stream::Stdout => "standard output",
            Stream::Stderr => "standard error",
        };
        // As a shell says of a program that SIGPIPE has ended.
        let code = if reader_left { 128 + signal_hook::consts::SIGPIPE } else { 1 };
        OutputFailed { code, cause: format!("{name}: {e}"), reader_left }
    }
}

/// Something to write.
enum Item {
    /// Output of a rank, and whom to tell that it is written.
    Output { stream: Stream, bytes: Vec<u8>, shown: Option<(Link, ToAgent)> },
    /// A line of Eyrie's own.
    Line(String),
    /// The progress line; replaces the last one.
    Progress(String),
}

/// The writing thread.
pub struct Printer {
    items: Option<Sender<Item>>,
    thread: Option<JoinHandle<()>>,
    failed: Arc<OnceLock<OutputFailed>>,
    terminal: bool,
}

impl Printer {
    pub fn start(inbound: Sender<Inbound>) -> Printer {
        let (items, queue) = unbounded();
        let terminal = io::stderr().is_terminal();
        let failed = Arc::new(OnceLock::new());
        let tell = failed.clone();
        let thread = std::thread::spawn(move || write_all(&queue, &inbound, &tell));
        Printer { items: Some(items), thread: Some(thread), failed, terminal }
    }

    /// Whether a progress line makes sense.
    pub fn has_terminal(&self) -> bool {
        self.terminal
    }

    fn put(&self, item: Item) {
        if let Some(items) = &self.items {
            // The thread ends only with the queue.
            let _ = items.send(item);
        }
    }

    pub fn output(&self, stream: Stream, bytes: Vec<u8>, shown: Option<(Link, ToAgent)>) {
        self.put(Item::Output { stream, bytes, shown });
    }

    pub fn line(&self, text: &str) {
        self.put(Item::Line(format!("eyrie: {text}\n")));
    }

    pub fn progress(&self, text: String) {
        self.put(Item::Progress(text));
    }

    /// Writes what is queued, waiting for a slow reader at most `within`; says whether output of
    /// the ranks was lost.
    pub fn finish(mut self, within: Option<Duration>) -> Option<OutputFailed> {
        self.items = None;
        let until = within.map(|w| Instant::now() + w);
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            if until.is_some_and(|u| Instant::now() > u) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.failed.get().cloned()
    }
}

fn write_all(queue: &Receiver<Item>, inbound: &Sender<Inbound>, failed: &OnceLock<OutputFailed>) {
    // Not std's: it would buffer by lines, and a program's output is passed as it comes.
    let mut progress = false;
    let mut at_line_start = true;
    for item in queue {
        if progress {
            progress = false;
            let _ = io::stderr().write_all(b"\r\x1b[K");
        }
        match item {
            Item::Output { stream, bytes, shown } => {
                at_line_start = bytes.last().is_none_or(|b| *b == b'\n');
                let written = match stream {
                    Stream::Stdout => write_stdout(&bytes),
                    Stream::Stderr => io::stderr().write_all(&bytes),
                };
                if let Err(e) = written {
                    let why = OutputFailed::new(stream, &e);
                    if failed.set(why.clone()).is_ok() {
                        let _ = inbound.send(Inbound::OutputFailed(why));
                    }
                }
                if let Some((link, message)) = shown {
                    link.send(message);
                }
            }
            Item::Line(text) => {
                // Nobody is left to tell when this fails.
                let _ = io::stderr().write_all(text.as_bytes());
            }
            Item::Progress(text) => {
                if at_line_start && queue.is_empty() {
                    let _ = io::stderr().write_all(text.as_bytes());
                    progress = true;
                }
            }
        }
    }
    if progress {
        let _ = io::stderr().write_all(b"\r\x1b[K");
    }
}

fn write_stdout(mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(rustix::stdio::stdout(), bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                // Somebody made our standard output non-blocking.
                let out = rustix::stdio::stdout();
                let mut fds = [rustix::event::PollFd::new(&out, rustix::event::PollFlags::OUT)];
                let _ = rustix::event::poll(&mut fds, None);
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_shown_is_not_shown_again() {
        let mut l = Ledger::new(2);
        assert_eq!(l.take(1, Stream::Stdout, 0, b"hello "), b"hello ");
        // The next incarnation writes it again, in other pieces.
        assert_eq!(l.take(1, Stream::Stdout, 0, b"hel"), b"");
        assert_eq!(l.take(1, Stream::Stdout, 3, b"lo world"), b"world");
        assert_eq!(l.take(1, Stream::Stderr, 0, b"x"), b"x");
        assert_eq!(l.taken(1), [11, 1]);
        assert_eq!(l.take(9, Stream::Stdout, 0, b"no such rank"), b"");
    }
}
