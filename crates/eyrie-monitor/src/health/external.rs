//! A site's own check program, with a time limit. When the limit has passed, its whole process
//! group is killed. Another part of this process may wait for all of its children: so a shell runs
//! the program, and writes how it has ended.

use super::reading::{Reading, Value};
use rustix::process::{WaitId, WaitIdOptions};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Most bytes that are kept of a program's output.
const KEPT: u64 = 1 << 20;

/// Runs `$0` with `$@`, and then writes to standard error how it has ended.
const RUN: &str = r#"exec 3>&2; "$0" "$@" 2>/dev/null 3>&-; echo $? >&3"#;

/// How a program ended.
pub enum Ended {
    Code(i32, Vec<u8>),
    Signal(i32),
    TimedOut,
    NotStarted(String),
}

impl Ended {
    /// By what a shell says of it; `None`: the shell was killed.
    fn of(said: Option<i32>, text: Vec<u8>) -> Ended {
        match said {
            Some(126) => Ended::NotStarted("it is not executable".into()),
            Some(127) => Ended::NotStarted("there is no such program".into()),
            Some(code) if code > 128 => Ended::Signal(code - 128),
            Some(code) => Ended::Code(code, text),
            None => Ended::Signal(libc::SIGKILL),
        }
    }
}

/// Runs a program to its end, but no longer than `limit`. Its standard output is kept.
pub fn run(program: &str, arguments: &[String], limit: Duration) -> Ended {
    let spawned = Command::new("/bin/sh")
        .args(["-c", RUN, program])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(e) => return Ended::NotStarted(e.to_string()),
    };
    let output = child.stdout.take().expect("asked for");
    let mut status = child.stderr.take().expect("asked for");
    // A thread reads, so that a full pipe does not block the program. It ends with the pipes.
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let mut said = String::new();
        let _ = output.take(KEPT).read_to_end(&mut text);
        let _ = status.read_to_string(&mut said);
        let _ = send.send((said.trim().parse().ok(), text));
    });
    // Other processes of its group may hold the pipes open, which counts towards the limit.
    let ended = receive.recv_timeout(limit);
    end_group(&mut child);
    ended.map_or(Ended::TimedOut, |(said, text)| Ended::of(said, text))
}

/// Kills what is left of a program's processes, if its shell was not waited for elsewhere: then its
/// number may be another process's by now.
fn end_group(child: &mut Child) {
    let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) else { return };
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    if rustix::process::waitid(WaitId::Pid(pid), look).is_ok() {
        let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
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
