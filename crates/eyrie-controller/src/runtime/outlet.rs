//! The output of the ranks on its way to the printer: held until the journal is safe, and kept
//! until it is written. Never waits for the reader of the job's output. Also counts what is written
//! of the output of other domains.

use super::backlog::{Backlog, SavedOutput};
use super::last_output::LastOutput;
use super::output::{OutputFailed, Piece, Printer, Shown, SHOWN_EVERY};
use eyrie_wire::DomainId;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often the progress line is drawn.
pub const PROGRESS_EVERY: Duration = Duration::from_millis(250);
/// How often a start that takes long is said to wait.
const WAITING_EVERY: Duration = Duration::from_secs(5);
const WAITING_FIRST: Duration = Duration::from_secs(1);

/// What is shown of a job.
pub struct Outlet {
    printer: Printer,
    /// What users who look at it see.
    last: LastOutput,
    /// Output that this controller does not show: the controller that goes on with the job it saves
    /// does.
    kept: Option<SavedOutput>,
    /// Output that waits for the journal, with its position in it.
    held: VecDeque<(u64, Piece)>,
    /// Output that may not have been written, where the journal must say it.
    backlog: Backlog,
    /// Of each other domain whose output is shown here, how many bytes of it are written, and how
    /// many of them it was told.
    domains: BTreeMap<DomainId, (Arc<AtomicU64>, u64)>,
    /// The reader of the job's output has left.
    reader_left: bool,
    /// When the progress line was drawn last.
    drawn: Instant,
    /// When it was last said for what the start waits.
    waiting_said: Duration,
}

impl Outlet {
    /// `last`: where users look at what is printed.
    pub fn new(printer: Printer, last: LastOutput) -> Outlet {
        let backlog = Backlog::new(printer.written(), [0; 2]);
        Outlet {
            printer,
            last,
            kept: None,
            held: VecDeque::new(),
            backlog,
            domains: BTreeMap::new(),
            reader_left: false,
            drawn: Instant::now(),
            waiting_said: Duration::ZERO,
        }
    }

    pub fn printer(&self) -> &Printer {
        &self.printer
    }

    /// Ends the printer, within `limit` where one is given. Returns why not all was written.
    pub fn finish(self, limit: Option<Duration>) -> Option<OutputFailed> {
        self.last.close();
        self.printer.finish(limit)
    }

    /// From now on all is shown in these files: standard output and standard error. Other domains
    /// count what they print anew.
    pub fn redirect(&mut self, files: [File; 2]) {
        self.domains.clear();
        self.printer.redirect(files);
    }

    /// From now on output is kept here, and not shown.
    pub fn keep(&mut self, output: SavedOutput) {
        self.kept = Some(output);
    }

    /// The output that is kept and not shown, in a controller that does so.
    pub fn kept(&self) -> Option<&SavedOutput> {
        self.kept.as_ref()
    }

    /// Holds a piece until the journal is safe up to `position`. `is_journaled`: a controller that
    /// goes on from a snapshot must write it, as long as it was not written.
    pub fn hold(&mut self, position: u64, piece: Piece, is_journaled: bool) {
        if is_journaled {
            self.backlog.add(piece.stream, &piece.bytes);
        }
        self.held.push_back((position, piece));
    }

    /// Hands on what waited for the journal, which is safe up to `durable`.
    pub fn let_out(&mut self, durable: u64) {
        while self.held.front().is_some_and(|(position, _)| *position <= durable) {
            if let Some((_, piece)) = self.held.pop_front() {
                self.put(piece);
            }
        }
    }

    /// Hands a piece to the printer, unless another controller is to show it.
    fn put(&mut self, piece: Piece) {
        match &mut self.kept {
            Some(kept) => kept.take(piece),
            None => {
                self.last.add(piece.stream, &piece.bytes);
                self.printer.output(piece);
            }
        }
    }

    /// Counts a piece of a domain's output, up to so many bytes, when it is written.
    pub fn shown_of(&mut self, domain: DomainId, bytes: u64) -> Shown {
        let (written, _) = self.domains.entry(domain).or_default();
        Shown::Domain(Arc::clone(written), bytes)
    }

    /// The domains that are to be told how much of their output is written, and that.
    pub fn take_shown(&mut self) -> Vec<(DomainId, u64)> {
        let mut shown = Vec::new();
        for (domain, (written, told)) in &mut self.domains {
            let bytes = written.load(Ordering::Relaxed);
            if bytes / SHOWN_EVERY > *told / SHOWN_EVERY {
                *told = bytes;
                shown.push((*domain, bytes));
            }
        }
        shown
    }

    /// What may not have been written yet.
    pub fn unwritten(&mut self) -> SavedOutput {
        self.backlog.saved()
    }

    /// Writes what another controller may not have written.
    pub fn write_again(&mut self, output: SavedOutput) {
        self.backlog = Backlog::new(self.printer.written(), output.before);
        for (stream, bytes) in output.pieces {
            let bytes = Arc::from(bytes);
            self.backlog.add(stream, &bytes);
            self.put(Piece { stream, bytes, shown: None });
        }
    }

    /// Why output cannot be passed on, unless its reader has left.
    pub fn failed(&mut self) -> Option<OutputFailed> {
        let failed = self.printer.failed().filter(|_| !self.reader_left)?;
        self.reader_left = failed.reader_left;
        Some(failed)
    }

    /// Whether Eyrie's own lines are read.
    pub fn is_read(&self) -> bool {
        !self.reader_left
    }

    /// Whether the progress line is to be drawn now.
    pub fn is_progress_due(&mut self) -> bool {
        let due = self.printer.has_terminal() && self.drawn.elapsed() >= PROGRESS_EVERY;
        if due {
            self.drawn = Instant::now();
        }
        due
    }

    /// Whether it is to be said at this time that the start waits.
    pub fn is_waiting_due(&mut self, now: Duration) -> bool {
        let next = match self.waiting_said {
            Duration::ZERO => WAITING_FIRST,
            said => said + WAITING_EVERY,
        };
        if now >= next {
            self.waiting_said = now;
        }
        now >= next
    }
}
