//! Runs a command that must not take longer than it may. Nothing waits for what it has started.

use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};
use std::io::Read;
use std::os::fd::AsFd;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Most bytes that are kept of a stream.
const KEPT: usize = 4 << 20;
/// How often it is looked whether a command has ended or written something.
const LOOK: Duration = Duration::from_millis(2);
/// Reads of a stream between two looks: more than a pipe holds, and no end for one that never
/// stops.
const READS: u32 = 64;

/// What a command left.
#[derive(Debug)]
pub struct Ran {
    /// `None`: it took too long and was killed, or somebody else has waited for it.
    pub status: Option<ExitStatus>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    pub fn succeeded(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }
}

/// Runs a command without standard input.
///
/// # Errors
/// When it cannot be started.
pub fn run(command: &mut Command, longest: Duration) -> std::io::Result<Ran> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut stdout = Piped::new(child.stdout.take())?;
    let mut stderr = Piped::new(child.stderr.take())?;
    let until = Instant::now() + longest;
    let status = loop {
        let ended = match child.try_wait() {
            Ok(ended) => ended.map(Some),
            // Somebody else in this process waits for all of its children.
            Err(e) if e.raw_os_error() == Some(libc::ECHILD) => Some(None),
            Err(e) => return Err(e),
        };
        // All that it has written before its end is there by now. Somebody else that it has started
        // may hold its streams open for ever.
        stdout.read();
        stderr.read();
        match ended {
            Some(status) => break status,
            None if Instant::now() >= until => {
                child.kill()?;
                child.wait()?;
                break None;
            }
            None => std::thread::sleep(LOOK),
        }
    };
    Ok(Ran { status, stdout: stdout.text(), stderr: stderr.text() })
}

/// A stream of a command, and what has come.
struct Piped<S> {
    stream: Option<S>,
    heard: Vec<u8>,
}

impl<S: Read + AsFd> Piped<S> {
    fn new(stream: Option<S>) -> std::io::Result<Piped<S>> {
        if let Some(stream) = &stream {
            fcntl_setfl(stream, fcntl_getfl(stream)? | OFlags::NONBLOCK)?;
        }
        Ok(Piped { stream, heard: Vec::new() })
    }

    /// Keeps what has come, and reads the rest away.
    fn read(&mut self) {
        let Some(stream) = &mut self.stream else { return };
        let mut piece = [0; 65536];
        for _ in 0..READS {
            let Ok(n @ 1..) = stream.read(&mut piece) else { return };
            let room = KEPT.saturating_sub(self.heard.len());
            self.heard.extend_from_slice(&piece[..n.min(room)]);
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.heard).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_is_heard_and_what_does_not_is_killed() {
        let shell = |text: &str| {
            let longest = Duration::from_millis(300);
            run(Command::new("sh").args(["-c", text]), longest).unwrap()
        };
        let ran = shell("echo out; echo err >&2; exit 3");
        assert_eq!(ran.status.and_then(|s| s.code()), Some(3));
        assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("out\n", "err\n"));
        let ran = shell("echo first; exec sleep 60");
        assert!(ran.status.is_none() && ran.stdout == "first\n", "{ran:?}");
        // What is left behind holds the streams, and is not waited for.
        let since = Instant::now();
        let ran = shell("sleep 20 & echo done");
        assert!(ran.succeeded() && ran.stdout == "done\n", "{ran:?}");
        assert!(since.elapsed() < Duration::from_secs(20));
        // More than a pipe holds, written just before the end.
        let ran = shell("head -c 300000 /dev/zero | tr '\\0' x");
        assert!(ran.succeeded() && ran.stdout.len() == 300_000, "{} bytes", ran.stdout.len());
    }
}
