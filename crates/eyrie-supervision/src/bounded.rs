//! Runs a command for a limited time. It does not wait for processes that the command has started.

use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};
use std::io::Read;
use std::os::fd::AsFd;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Most bytes of a stream that are kept, unless it is said otherwise.
pub const KEPT: usize = 4 << 20;
/// How often to check whether a command has ended or written something.
const LOOK: Duration = Duration::from_millis(2);
/// Reads of a stream between two checks: more than a pipe holds, and a bound if it never stops.
const READS: u32 = 64;

/// The result of a command.
#[derive(Debug)]
pub struct Ran {
    /// `None`: it took too long and was killed, or another part of this process waited for it.
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
    run_keeping(command, longest, KEPT)
}

/// As [`run`], and keeps at most so many bytes of each of its streams.
///
/// # Errors
/// When it cannot be started.
pub fn run_keeping(command: &mut Command, longest: Duration, kept: usize) -> std::io::Result<Ran> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut stdout = Piped::new(child.stdout.take(), kept)?;
    let mut stderr = Piped::new(child.stderr.take(), kept)?;
    let until = Instant::now() + longest;
    let status = loop {
        let ended = match child.try_wait() {
            Ok(ended) => ended.map(Some),
            // Another part of this process waits for all of its children.
            Err(e) if e.raw_os_error() == Some(libc::ECHILD) => Some(None),
            Err(e) => return Err(e),
        };
        // The pipe has everything that the command wrote before its end. Another process that it
        // started may hold its streams open forever.
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

/// A stream of a command, and what was read from it.
struct Piped<S> {
    stream: Option<S>,
    heard: Vec<u8>,
    kept: usize,
}

impl<S: Read + AsFd> Piped<S> {
    fn new(stream: Option<S>, kept: usize) -> std::io::Result<Piped<S>> {
        if let Some(stream) = &stream {
            fcntl_setfl(stream, fcntl_getfl(stream)? | OFlags::NONBLOCK)?;
        }
        Ok(Piped { stream, heard: Vec::new(), kept })
    }

    /// Keeps what has arrived, up to the bound, and drops the rest.
    fn read(&mut self) {
        let Some(stream) = &mut self.stream else { return };
        let mut piece = [0; 65536];
        for _ in 0..READS {
            let Ok(n @ 1..) = stream.read(&mut piece) else { return };
            let room = self.kept.saturating_sub(self.heard.len());
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
    fn output_of_a_command_is_kept_and_a_slow_command_is_killed() {
        let shell = |text: &str| {
            let longest = Duration::from_millis(300);
            run(Command::new("sh").args(["-c", text]), longest).unwrap()
        };
        let ran = shell("echo out; echo err >&2; exit 3");
        assert_eq!(ran.status.and_then(|s| s.code()), Some(3));
        assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("out\n", "err\n"));
        let ran = shell("echo first; exec sleep 60");
        assert!(ran.status.is_none() && ran.stdout == "first\n", "{ran:?}");
        // The background process holds the streams open, and `run` does not wait for it.
        let since = Instant::now();
        let ran = shell("sleep 20 & echo done");
        assert!(ran.succeeded() && ran.stdout == "done\n", "{ran:?}");
        assert!(since.elapsed() < Duration::from_secs(20));
        // More than a pipe holds, written just before the end.
        let ran = shell("head -c 300000 /dev/zero | tr '\\0' x");
        assert!(ran.succeeded() && ran.stdout.len() == 300_000, "{} bytes", ran.stdout.len());
        let ran = run_keeping(Command::new("echo").arg("first"), Duration::from_secs(20), 3);
        assert_eq!(ran.unwrap().stdout, "fir");
    }
}
