//! What both nodes of a migration share: they talk to the driver by lines, and end as soon as
//! something fails or the driver is gone.

use anyhow::Context;
use std::io::{BufRead, Write};
use std::thread::JoinHandle;

/// Says a line to the driver.
///
/// # Errors
/// When it is gone.
pub fn say(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes())?;
    Ok(out.flush()?)
}

/// The next line of the driver: to the source that there is a network, to the target the source's
/// port.
///
/// # Errors
/// When the driver is gone.
pub fn line() -> anyhow::Result<String> {
    Ok(std::io::stdin().lines().next().context("nobody orders anything any more")??)
}

/// Waits for the order to go on. From then on the end of standard input ends the process.
///
/// # Errors
/// When the driver is gone.
pub fn await_order() -> anyhow::Result<()> {
    line()?;
    std::thread::spawn(|| {
        let mut line = String::new();
        while std::io::stdin().lock().read_line(&mut line).is_ok_and(|n| n > 0) {}
        std::process::exit(1);
    });
    Ok(())
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
