//! A site's own check program, with a time limit. When the limit has passed, its whole process
//! group is killed.

use super::reading::{Reading, Value};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Most bytes that are kept of a program's output.
const KEPT: u64 = 1 << 20;

/// How a program ended.
pub enum Ended {
    Code(i32, Vec<u8>),
    Signal(i32),
    TimedOut,
    NotStarted(std::io::Error),
}

/// Runs a program to its end, but no longer than `limit`. Its standard output is kept.
pub fn run(program: &str, arguments: &[String], limit: Duration) -> Ended {
    let spawned = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(e) => return Ended::NotStarted(e),
    };
    let output = child.stdout.take().expect("asked for");
    // A thread reads, so that a full pipe does not block the program. It ends with the pipe.
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = output.take(KEPT).read_to_end(&mut text);
        let _ = send.send(text);
    });
    let until = Instant::now() + limit;
    // Other processes of its group may hold the pipe open, which counts towards the limit.
    let text = receive.recv_timeout(limit);
    let status = wait_until(&mut child, until);
    end_group(&mut child);
    match (status, text) {
        (Some(status), Ok(text)) => match status.code() {
            Some(code) => Ended::Code(code, text),
            None => {
                Ended::Signal(std::os::unix::process::ExitStatusExt::signal(&status).unwrap_or(0))
            }
        },
        _ => Ended::TimedOut,
    }
}

/// Waits for the end of the program; `None` when `until` comes first.
fn wait_until(child: &mut Child, until: Instant) -> Option<std::process::ExitStatus> {
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if Instant::now() >= until {
            return None;
        }
        // Its output has ended, so the program has ended or will at once.
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn end_group(child: &mut Child) {
    if let Some(group) = rustix::process::Pid::from_raw(child.id() as i32) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.wait();
}

/// A reading from a check program: 1 is bad.
pub fn check(program: &str, arguments: &[String], limit: Duration) -> Reading {
    let (bad, said) = match run(program, arguments, limit) {
        Ended::Code(0, _) => (false, "it found nothing wrong".into()),
        Ended::Code(code, text) => {
            let text = String::from_utf8_lossy(&text);
            let first =
                text.lines().next().unwrap_or("nothing").chars().take(200).collect::<String>();
            (true, format!("exit code {code}, and it said: {first}"))
        }
        Ended::Signal(signal) => (true, format!("it was ended by signal {signal}")),
        Ended::TimedOut => (true, format!("it did not end within {}", eyrie_units::time(limit))),
        Ended::NotStarted(e) => (true, format!("it could not be started: {e}")),
    };
    Reading {
        what: program.into(),
        value: Value::Level(if bad { 1.0 } else { 0.0 }),
        said,
        read_from: program.into(),
    }
}
