//! The process that is moved: it fills its memory, computes steps on all of it, stands still for
//! its images between two steps, and prints a result that depends on every cell. It has one thread,
//! and no files except the one for its image.

use eyrie_image::{capture, Given, Mode, Outcome, Request};
use std::fs::OpenOptions;
use std::os::fd::IntoRawFd;

use crate::ppmr::kinds::Solver;
use crate::ppmr::orders::write_line;
use crate::ppmr::task::Work;

/// What it writes when its memory is full, and when it stands still for a move,
pub const READY: &str = "ready";
/// when it has opened the file for its image,
pub const WRITING: &str = "writing";
/// and when it runs again.
pub const RUNNING: &str = "running";

/// Runs as a rank. At a line on its standard input it goes on, or captures itself into the file
/// that the line names, and ends. The restored process waits for a line, too.
///
/// # Errors
/// Why there is no image, or that its starter is gone.
pub fn be_rank(work: &Work, rank: u32) -> anyhow::Result<()> {
    let mut solver = Solver::new(work.kind, work.mib, u64::from(rank) + 1);
    write_line(READY)?;
    await_order()?;
    for step in 0..work.steps {
        if work.moves_before(step) {
            write_line(READY)?;
            if !take_image(&await_order()?)? {
                return Ok(());
            }
            write_line(RUNNING)?;
            await_order()?;
        }
        solver.step(|_| Ok(()))?;
    }
    write_line(&format!("{:016x}", solver.sum()))
}

/// Captures this process; true in the restored one.
fn take_image(to: &str) -> anyhow::Result<bool> {
    let out = OpenOptions::new().write(true).create(true).truncate(true).open(to)?;
    write_line(WRITING)?;
    let starter_pid = std::os::unix::process::parent_id() as i32;
    let streams = Given(&[(0, 0), (1, 1), (2, 2)]);
    let plain = Request::plain(out.into_raw_fd(), Mode::Sync);
    let request = Request { starter_pid, holders: &[&streams], ..plain };
    // SAFETY: this process has one thread, and nothing that a restored one cannot have.
    match unsafe { capture(&request) } {
        Outcome::Captured { .. } => Ok(false),
        Outcome::Restored => Ok(true),
        Outcome::Refused(refusal) => anyhow::bail!("no image could be taken: {refusal}"),
    }
}

/// A line on standard input, without reading ahead.
fn await_order() -> anyhow::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        match rustix::io::retry_on_intr(|| rustix::io::read(rustix::stdio::stdin(), &mut byte))? {
            // The process that has started this one is gone, and has said why.
            0 => std::process::exit(1),
            _ if byte == *b"\n" => return Ok(String::from_utf8(line)?),
            _ => line.push(byte[0]),
        }
    }
}
