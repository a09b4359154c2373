//! Runs a command that must not take longer than it may. Nothing waits for what it has started.

use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Most bytes that are kept of a stream.
const KEPT: usize = 4 << 20;
/// How often it is looked whether a command has ended.
const LOOK: Duration = Duration::from_millis(2);
/// How long what a command wrote may take to arrive after its end: somebody else that it has
/// started may hold its streams open for ever.
const GRACE: Duration = Duration::from_millis(200);

/// What a command left.
#[derive(Debug)]
pub struct Ran {
    /// `None`: it took too long and was killed.
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
    let streams: [Option<Box<dyn Read + Send>>; 2] = [
        child.stdout.take().map(|s| Box::new(s) as _),
        child.stderr.take().map(|s| Box::new(s) as _),
    ];
    let heard = streams.map(|stream| {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let ours = Arc::clone(&heard);
        let reader = std::thread::spawn(move || collect(stream, &ours));
        (heard, reader)
    });
    let until = Instant::now() + longest;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break Some(status),
            None if Instant::now() >= until => {
                child.kill()?;
                child.wait()?;
                break None;
            }
            None => std::thread::sleep(LOOK),
        }
    };
    let until = Instant::now() + GRACE;
    let [stdout, stderr] = heard.map(|(heard, reader)| {
        while !reader.is_finished() && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        let bytes = std::mem::take(&mut *heard.lock().unwrap_or_else(|e| e.into_inner()));
        String::from_utf8_lossy(&bytes).into_owned()
    });
    Ok(Ran { status, stdout, stderr })
}

/// Keeps what a stream brings, and reads the rest away.
fn collect(stream: Option<Box<dyn Read + Send>>, heard: &Mutex<Vec<u8>>) {
    let Some(mut stream) = stream else { return };
    let mut piece = vec![0; 65536];
    while let Ok(n @ 1..) = stream.read(&mut piece) {
        let mut heard = heard.lock().unwrap_or_else(|e| e.into_inner());
        let room = KEPT.saturating_sub(heard.len());
        heard.extend_from_slice(&piece[..n.min(room)]);
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
        // What is left behind holds the streams.
        let since = Instant::now();
        let ran = shell("sleep 2 & echo done");
        assert!(ran.succeeded() && ran.stdout == "done\n", "{ran:?}");
        assert!(since.elapsed() < Duration::from_secs(2));
    }
}
