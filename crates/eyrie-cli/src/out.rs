//! Where commands write: results to standard output, words about them to standard error. The one
//! place that decides what a write that fails means; nothing in a command may print by other means,
//! because `println!` panics then.

use eyrie_units::plain;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// The exit code of a command whose reader has left: what a shell shows of one that SIGPIPE has
/// ended.
pub const READER_LEFT: i32 = 128 + signal_hook::consts::SIGPIPE;

/// Standard output took no more.
#[derive(Debug, thiserror::Error)]
#[error("standard output: {0}")]
pub struct OutputFailed(io::Error);

impl OutputFailed {
    /// Whether the reader of the output has closed it, which is no failure.
    pub fn reader_left(&self) -> bool {
        self.0.kind() == ErrorKind::BrokenPipe
    }
}

/// Standard output as a writer whose errors are known from others.
pub struct Output;

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stdout().write(bytes).map_err(failed)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush().map_err(failed)
    }
}

/// Marks an error as one of standard output.
pub fn failed(e: io::Error) -> io::Error {
    match e.kind() {
        ErrorKind::Interrupted => e,
        kind => io::Error::new(kind, OutputFailed(e)),
    }
}

/// Writes text, in which nothing can disturb a terminal.
///
/// # Errors
/// When standard output does not take it all.
pub fn text(text: &str) -> anyhow::Result<()> {
    Output.write_all(plain::lines(text).as_bytes()).and_then(|()| Output.flush())?;
    Ok(())
}

/// Writes a line.
///
/// # Errors
/// When standard output does not take it all.
pub fn line(line: impl Display) -> anyhow::Result<()> {
    text(&format!("{line}\n"))
}

/// Tells the user something. A failure is ignored: there is no other way to the user.
pub fn say(words: impl Display) {
    let words = format!("{words}\n");
    let _ = io::stderr().write_all(plain::lines(&words).as_bytes());
}

/// What of an error is a failure of standard output.
pub fn failure_in(e: &anyhow::Error) -> Option<&OutputFailed> {
    e.chain().find_map(|cause| {
        let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        inner.and_then(|e| e.downcast_ref()).or_else(|| cause.downcast_ref())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_left_is_told_from_a_full_disk_and_from_other_pipes() {
        let of = |kind: ErrorKind| anyhow::Error::from(failed(kind.into())).context("writing");
        assert!(failure_in(&of(ErrorKind::BrokenPipe)).unwrap().reader_left());
        assert!(!failure_in(&of(ErrorKind::StorageFull)).unwrap().reader_left());
        let elsewhere = anyhow::Error::from(io::Error::from(ErrorKind::BrokenPipe));
        assert!(failure_in(&elsewhere).is_none());
    }
}
