//! The process that is moved: it fills its memory, computes on all of it, stands still for its
//! image, and prints a result that depends on every word of it. One thread, no files.

use eyrie_image::{capture, FdRole, Mode, Outcome, Request};
use std::io::Write;
use std::os::fd::RawFd;

/// Where it writes its image to.
pub const IMAGE: RawFd = 3;
/// What it says when its memory is full, and when it runs again.
pub const READY: &str = "ready";
pub const RUNNING: &str = "running";

/// Runs as a rank of `mib` MiB. `moves`: it waits for a line on its standard input, takes an image
/// of itself and ends; the restored one waits for another line and goes on to the result.
///
/// # Errors
/// Why there is no image, or that nobody is there any more.
pub fn be_rank(mib: u64, seed: u64, moves: bool) -> anyhow::Result<()> {
    let mut words = filled(mib << 17, seed);
    step(&mut words);
    say(READY)?;
    if moves {
        await_order()?;
        if !take_image()? {
            return Ok(());
        }
        say(RUNNING)?;
        await_order()?;
    }
    step(&mut words);
    say(&format!("{:016x}", sum(&words)))
}

/// Whether this is the restored process.
fn take_image() -> anyhow::Result<bool> {
    let starter_pid = std::os::unix::process::parent_id() as i32;
    let fds = [0, 1, 2].map(|fd| (fd, FdRole::Slot(fd as u32)));
    let request = Request { starter_pid, fds: &fds, ..Request::plain(IMAGE, Mode::Sync) };
    // SAFETY: this process has one thread, and holds nothing that a restored one may not have.
    match unsafe { capture(&request) } {
        Outcome::Captured { .. } => Ok(false),
        Outcome::Restored => Ok(true),
        Outcome::Refused(refusal) => anyhow::bail!("no image could be taken: {refusal}"),
    }
}

fn say(words: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{words}\n").as_bytes())?;
    Ok(out.flush()?)
}

/// A byte on standard input, without reading ahead.
fn await_order() -> anyhow::Result<()> {
    match rustix::io::retry_on_intr(|| rustix::io::read(rustix::stdio::stdin(), &mut [0; 1]))? {
        // Who has started it is gone, and has said why.
        0 => std::process::exit(1),
        _ => Ok(()),
    }
}

/// Words of which no two pages are alike, as a solver's arrays.
fn filled(count: u64, seed: u64) -> Vec<u64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..count).map(|_| next()).collect()
}

/// A sweep in which each word depends on the ones before it.
fn step(words: &mut [u64]) {
    let mut before = 1u64;
    for word in words {
        before = word.wrapping_mul(31).wrapping_add(before.rotate_left(7));
        *word = before;
    }
}

fn sum(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, word| sum.rotate_left(5) ^ word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_depends_on_every_word_and_on_the_rank() {
        let result = |seed, change: Option<usize>| {
            let mut words = filled(1000, seed);
            if let Some(at) = change {
                words[at] ^= 1;
            }
            step(&mut words);
            sum(&words)
        };
        assert_eq!(result(1, None), result(1, None));
        assert_ne!(result(1, None), result(2, None));
        assert!((0..1000).all(|at| result(1, Some(at)) != result(1, None)));
    }
}
