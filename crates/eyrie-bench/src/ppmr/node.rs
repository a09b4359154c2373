//! A node of a migration: ranks begin on it or come from the node before it, and end on it or leave
//! for the next one. It talks to the driver by lines, and ends as soon as something fails or the
//! driver is gone.

use anyhow::Context;
use std::io::Write;
use std::sync::mpsc::{channel, Receiver};
use std::thread::JoinHandle;

use crate::ppmr::held::HeldRank;
use crate::ppmr::rank::READY;
use crate::ppmr::source::leave;
use crate::ppmr::target::arrive;
use crate::ppmr::task::{Feed, Task};

/// The word for a node on which ranks begin; on others they arrive.
pub const BEGIN: &str = "begin";
/// The word for a node on which they end; others they leave.
pub const END: &str = "end";

/// Runs as a node.
///
/// # Errors
/// Whatever fails.
pub fn be_node(task: &Task, begin: bool, end: bool) -> anyhow::Result<()> {
    let driver = Driver::listen();
    let mut ranks = match begin {
        true => filled(task)?,
        false => arrive(&driver, task)?,
    };
    if begin {
        driver.say(READY)?;
        driver.line()?;
    }
    ranks.iter_mut().try_for_each(|rank| rank.tell(""))?;
    if end {
        let results = ranks.iter_mut().map(HeldRank::result).collect::<anyhow::Result<Vec<_>>>()?;
        return driver.say(&serde_json::to_string(&results)?);
    }
    ranks.iter_mut().try_for_each(|rank| rank.says(READY))?;
    leave(&driver, task, ranks)
}

/// Ranks that have filled their memory.
fn filled(task: &Task) -> anyhow::Result<Vec<HeldRank>> {
    let numbers = match task.feed {
        Feed::Ranks => 0..task.ranks,
        Feed::Memory(_) => 0..0,
    };
    let ranks: anyhow::Result<Vec<HeldRank>> =
        numbers.map(|number| HeldRank::start(&task.work, number)).collect();
    let mut ranks = ranks?;
    ranks.iter_mut().try_for_each(|rank| rank.says(READY))?;
    Ok(ranks)
}

/// Who has started this node.
pub struct Driver {
    orders: Receiver<String>,
}

impl Driver {
    /// From here on the end of standard input ends the process.
    fn listen() -> Driver {
        let (send, orders) = channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
            std::process::exit(1);
        });
        Driver { orders }
    }

    /// # Errors
    /// When it is gone.
    pub fn say(&self, line: &str) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        out.write_all(format!("{line}\n").as_bytes())?;
        Ok(out.flush()?)
    }

    /// Its next line: to go on, or the port of the node before.
    ///
    /// # Errors
    /// When it is gone.
    pub fn line(&self) -> anyhow::Result<String> {
        self.orders.recv().context("nobody orders anything any more")
    }
}

/// The value, or the end of the process: nobody waits for a thread that has failed.
pub fn must<T>(what: &str, result: anyhow::Result<T>) -> T {
    result.unwrap_or_else(|e| {
        let words = format!("eyrie bench ppmr: {what}: {e:#}\n");
        let _ = std::io::stderr().write_all(words.as_bytes());
        std::process::exit(1)
    })
}

/// What a thread returned.
pub fn joined<T>(thread: JoinHandle<T>) -> T {
    // A panic has ended the process.
    thread.join().unwrap_or_else(|_| std::process::abort())
}
