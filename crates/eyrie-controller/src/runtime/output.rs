//! The job's output: the thread that writes what ranks write beside Eyrie's own lines and the
//! progress line. The main thread must never wait for the reader of our output.

use super::link::Link;
use super::written::Written;
use crate::record::LogLevel;
use crossbeam_channel::{unbounded, Receiver, Sender};
use eyrie_units::plain;
use eyrie_wire::control::{StandardStream, ToAgent};
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most lines and pieces that wait for a slow reader before Eyrie's own lines are left out. Output
/// of the ranks is not: its bound is the window of each rank's streams.
const MAX_WAITING: usize = 10_000;

/// Why what the ranks write cannot be passed on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutputFailed {
    /// Exit code of the job.
    pub code: i32,
    /// What to say.
    pub cause: String,
    /// Its reader has left: no line is to say it.
    pub reader_left: bool,
}

impl OutputFailed {
    fn new(stream: StandardStream, e: &io::Error) -> OutputFailed {
        let reader_left = e.kind() == io::ErrorKind::BrokenPipe;
        let name = match stream {
            StandardStream::Stdout => "standard output",
            StandardStream::Stderr => "standard error",
        };
        // As a shell says of a program that SIGPIPE has ended.
        let code = if reader_left { 128 + signal_hook::consts::SIGPIPE } else { 1 };
        OutputFailed { code, cause: format!("{name}: {e}"), reader_left }
    }
}

/// Output of a rank.
pub struct Piece {
    pub stream: StandardStream,
    pub bytes: Arc<[u8]>,
    /// Who is to know that it is written.
    pub shown: Option<Shown>,
}

/// Who is to know that a piece is written.
pub enum Shown {
    /// The agent of its rank.
    Agent(Link, ToAgent),
    /// The domain that it has come from: so many bytes of it are written then.
    Domain(Arc<AtomicU64>, u64),
}

/// After how many bytes more a domain is told how much of its output is written. It is less than
/// the window of any stream, so no rank waits for what is not told.
pub const SHOWN_EVERY: u64 = 64 << 10;

impl Shown {
    /// The piece is written. Whether the main thread is to look at what a domain may be told.
    pub fn tell(self) -> bool {
        match self {
            Shown::Agent(link, message) => {
                link.send_passing(&message);
                false
            }
            Shown::Domain(written, bytes) => {
                let before = written.fetch_max(bytes, Ordering::Relaxed);
                before / SHOWN_EVERY < bytes / SHOWN_EVERY
            }
        }
    }
}

/// Something to write.
enum Item {
    Output(Piece),
    /// A line of Eyrie's own.
    Line(String),
    /// The progress line; replaces the last one.
    Progress(String),
    /// What follows goes into these files.
    Redirect([File; 2]),
}

/// How many bytes of standard output and standard error have been written.
pub type WrittenBytes = [AtomicU64; 2];

/// The writing thread.
pub struct Printer {
    items: Option<Sender<Item>>,
    thread: Option<JoinHandle<()>>,
    failed: Arc<OnceLock<OutputFailed>>,
    written: Arc<WrittenBytes>,
    terminal: AtomicBool,
    /// Lines that were left out since the last one.
    left_out: AtomicU64,
}

impl Printer {
    /// `wake` is called when output of the ranks cannot be written, and when much output of another
    /// domain is. `written`: how much has been
    /// written before, and where it is kept.
    pub fn start(written: Written, wake: impl Fn() + Send + 'static) -> Printer {
        let (items, queue) = unbounded();
        let terminal = AtomicBool::new(io::stderr().is_terminal());
        let failed = Arc::new(OnceLock::new());
        let tell = failed.clone();
        let bytes = Arc::new(written.bytes().map(AtomicU64::new));
        let count = Arc::clone(&bytes);
        let thread = std::thread::spawn(move || write_all(&queue, written, &count, wake, &tell));
        Printer {
            items: Some(items),
            thread: Some(thread),
            failed,
            written: bytes,
            terminal,
            left_out: AtomicU64::new(0),
        }
    }

    /// How much output of the ranks has been written; it goes on counting.
    pub fn written(&self) -> Arc<WrittenBytes> {
        Arc::clone(&self.written)
    }

    /// Whether a progress line makes sense.
    pub fn has_terminal(&self) -> bool {
        self.terminal.load(Ordering::Relaxed)
    }

    /// All that comes from now on goes into these files, as standard output and standard error of
    /// this process.
    pub fn redirect(&self, files: [File; 2]) {
        self.terminal.store(false, Ordering::Relaxed);
        self.put(Item::Redirect(files));
    }

    fn put(&self, item: Item) {
        if let Some(items) = &self.items {
            // The thread ends only with the queue.
            let _ = items.send(item);
        }
    }

    pub fn output(&self, piece: Piece) {
        self.put(Item::Output(piece));
    }

    /// Shows a line of Eyrie's own. When they are not read for long, all but errors are left out,
    /// and the next one that is shown says how many.
    pub fn line(&self, level: LogLevel, text: &str) {
        if self.waiting() >= MAX_WAITING && level < LogLevel::Error {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return;
        }
        match self.left_out.swap(0, Ordering::Relaxed) {
            0 => {}
            n => self
                .put(Item::Line(format!("eyrie: {n} lines were left out: they were not read\n"))),
        }
        self.put(Item::Line(format!("eyrie: {}\n", plain::line(text))));
    }

    pub fn progress(&self, text: String) {
        if self.waiting() < MAX_WAITING {
            self.put(Item::Progress(text));
        }
    }

    /// Why output of the ranks could not be written, if that is so.
    pub fn failed(&self) -> Option<OutputFailed> {
        self.failed.get().cloned()
    }

    fn waiting(&self) -> usize {
        self.items.as_ref().map_or(0, Sender::len)
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

fn write_all(
    queue: &Receiver<Item>,
    mut written: Written,
    count: &WrittenBytes,
    wake: impl Fn(),
    failed: &OnceLock<OutputFailed>,
) {
    let mut progress = false;
    let mut at_line_start = true;
    for item in queue {
        if progress {
            progress = false;
            let _ = io::stderr().write_all(b"\r\x1b[K");
        }
        match item {
            Item::Output(Piece { stream, bytes, shown }) => {
                at_line_start = bytes.last().is_none_or(|b| *b == b'\n');
                if let Err(e) = written.write(stream, &bytes) {
                    let why = OutputFailed::new(stream, &e);
                    if failed.set(why).is_ok() {
                        wake();
                    }
                }
                let bytes = written.bytes()[stream as usize];
                count[stream as usize].store(bytes, Ordering::Relaxed);
                if shown.is_some_and(Shown::tell) {
                    wake();
                }
            }
            Item::Redirect([out, err]) => {
                let redirected = rustix::stdio::dup2_stdout(&out)
                    .and_then(|()| rustix::stdio::dup2_stderr(&err));
                at_line_start = true;
                if let Err(e) = redirected {
                    let why = OutputFailed::new(StandardStream::Stdout, &e.into());
                    if failed.set(why).is_ok() {
                        wake();
                    }
                }
            }
            Item::Line(text) => {
                // When this fails there is no way left to say it.
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
