//! Starts the processes of a migration: its two nodes, and the ranks of a node. Each is this
//! command again. None outlives the process that started it.

use anyhow::Context;
use eyrie_image::start;
use eyrie_supervision::dies_with_starter;
use rustix::process::Signal;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::job::check_interrupted;
use crate::ppmr::task::Work;

/// The arguments before those that say which process it is to be.
pub const WORDS: [&str; 2] = ["ppmr", "--part"];
/// How soon a signal that ends the measurement is noticed.
const GLANCE: Duration = Duration::from_millis(200);

/// This command, as a part of a migration.
pub fn part(words: &[&str]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(WORDS).args(words);
    dies_with_starter(&mut command, Signal::KILL);
    command
}

/// A rank, which has only standard input, output and error open.
pub fn rank(work: &Work, number: u32) -> Command {
    let work = serde_json::to_string(work).unwrap_or_default();
    let mut command = part(&["rank", &work, &number.to_string()]);
    as_a_rank(&mut command);
    start::with_nothing_open_from(&mut command, 3);
    command
}

/// Fixed addresses and large pages, as ranks of `eyrie run` have them.
fn as_a_rank(command: &mut Command) {
    command.env_clear().env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
    start::at_fixed_addresses(command);
}

/// A pipe that is not inherited: its reading end and its writing end.
///
/// # Errors
/// When the kernel refuses.
pub fn pipe() -> std::io::Result<(File, File)> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    Ok((File::from(read), File::from(write)))
}

/// A process that the driver has started and that writes lines.
pub struct Part {
    name: String,
    child: Child,
    lines: Receiver<String>,
}

impl Part {
    /// # Errors
    /// When it cannot be started.
    pub fn start(name: &str, command: &mut Command) -> anyhow::Result<Part> {
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.with_context(|| format!("cannot start {name}"))?;
        let output = child.stdout.take().context("it has no output")?;
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Part { name: name.into(), child, lines })
    }

    /// The next line that it writes.
    ///
    /// # Errors
    /// When it ends before, or writes nothing within `limit`.
    pub fn line(&mut self, limit: Duration) -> anyhow::Result<String> {
        let deadline = Instant::now() + limit;
        loop {
            check_interrupted()?;
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left.min(GLANCE)) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Timeout) if left > GLANCE => {}
                Err(RecvTimeoutError::Timeout) => {
                    let limit = eyrie_units::time(limit);
                    anyhow::bail!("waited {limit} for what {} says", self.name)
                }
                Err(RecvTimeoutError::Disconnected) => {
                    anyhow::bail!("{} has ended ({})", self.name, self.child.wait()?)
                }
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// When it has ended.
    pub fn order(&mut self) -> anyhow::Result<()> {
        self.send_line("")
    }

    /// Sends it a line.
    ///
    /// # Errors
    /// When it has ended.
    pub fn send_line(&mut self, line: &str) -> anyhow::Result<()> {
        let input = self.child.stdin.as_mut().context("it has no input")?;
        let told = input.write_all(format!("{line}\n").as_bytes());
        told.with_context(|| format!("{} has ended", self.name))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
