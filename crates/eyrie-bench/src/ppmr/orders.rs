//! How processes of an experiment talk to the process that has started them, by lines. Nodes end as
//! soon as something fails or the driver is gone.

use anyhow::Context;
use std::io::Write;
use std::sync::mpsc::{channel, Receiver};
use std::thread::JoinHandle;

/// The process that has started this node.
pub struct Driver {
    orders: Receiver<String>,
}

impl Driver {
    /// From now on the end of standard input ends the process.
    pub fn listen() -> Driver {
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

    /// Its next line: to go on, or the port of the node before.
    ///
    /// # Errors
    /// When it is gone.
    pub fn line(&self) -> anyhow::Result<String> {
        self.orders.recv().context("the driver is gone")
    }
}

/// Sends a line to the process that has started this one.
///
/// # Errors
/// When it is gone.
pub fn write_line(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes())?;
    Ok(out.flush()?)
}

/// The value; a failure ends the process, since no other thread waits for a thread that has failed.
pub fn must<T>(what: &str, result: anyhow::Result<T>) -> T {
    result.unwrap_or_else(|e| {
        let words = format!("eyrie-bench ppmr: {what}: {e:#}\n");
        let _ = std::io::stderr().write_all(words.as_bytes());
        std::process::exit(1)
    })
}

/// What a thread returned.
pub fn joined<T>(thread: JoinHandle<T>) -> T {
    // A panic of the thread has ended the process before.
    thread.join().unwrap_or_else(|_| std::process::abort())
}
