//! The process that is moved: it fills its memory, computes steps on all of it, stands still for
//! its images between two of them, and prints a result that depends on every cell. One thread, no
//! files but where it is told to write its image.

use eyrie_image::{capture, FdRole, Mode, Outcome, Request};
use std::fs::OpenOptions;
use std::os::fd::IntoRawFd;

use crate::ppmr::kinds::Solver;
use crate::ppmr::orders::say;
use crate::ppmr::task::Work;

/// What it says when its memory is full, and when it stands still for a move;
pub const READY: &str = "ready";
/// when it has opened what takes its image;
pub const WRITING: &str = "writing";
/// and when it runs again.
pub const RUNNING: &str = "running";

/// Runs as a rank. It goes on at a line on its standard input, or takes an image of itself into
/// what that line names, and ends; the restored one waits for a line too.
///
/// # Errors
/// Why there is no image, or that nobody is there any more.
pub fn be_rank(work: &Work, rank: u32) -> anyhow::Result<()> {
    let mut solver = Solver::new(work.kind, work.mib, u64::from(rank) + 1);
    say(READY)?;
    await_order()?;
    for step in 0..work.steps {
        if work.moves_before(step) {
            say(READY)?;
            if !take_image(&await_order()?)? {
                return Ok(());
            }
            say(RUNNING)?;
            await_order()?;
        }
        solver.step(|_| Ok(()))?;
    }
    say(&format!("{:016x}", solver.sum()))
}

/// Whether this is the restored process.
fn take_image(to: &str) -> anyhow::Result<bool> {
    let out = OpenOptions::new().write(true).create(true).truncate(true).open(to)?;
    say(WRITING)?;
    let starter_pid = std::os::unix::process::parent_id() as i32;
    let fds = [0, 1, 2].map(|fd| (fd, FdRole::Slot(fd as u32)));
    let request =
        Request { starter_pid, fds: &fds, ..Request::plain(out.into_raw_fd(), Mode::Sync) };
    // SAFETY: this process has one thread, and holds nothing that a restored one may not have.
    match unsafe { capture(&request) } {
        Outcome::Captured { .. } => Ok(false),
        Outcome::Restored => Ok(true),
        Outcome::Refused(refusal) => anyhow::bail!("no image could be taken: {refusal}"),
    }
}

/// A line on standard input, without reading ahead.
fn await_order() -> anyhow::Result<String> {
    let (mut line, mut byte) = (Vec::new(), [0]);
    loop {
        match rustix::io::retry_on_intr(|| rustix::io::read(rustix::stdio::stdin(), &mut byte))? {
            // Who has started it is gone, and has said why.
            0 => std::process::exit(1),
            _ if byte == *b"\n" => return Ok(String::from_utf8(line)?),
            _ => line.push(byte[0]),
        }
    }
}
