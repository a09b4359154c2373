//! How a command ends: with clap's message, with the one line that says what failed, or by a panic
//! of any of its threads.

use crate::out;
use eyrie_units::plain;
use std::io::Write;

/// Ends with clap's message; for a wrong value, with the one line that says why.
pub fn refuse(error: &clap::Error) -> ! {
    if error.kind() == clap::error::ErrorKind::ValueValidation {
        let text = error.to_string();
        let line = text.lines().next().unwrap_or_default();
        let line = line.strip_prefix("error: ").unwrap_or(line);
        out::say(format!("eyrie: {}", plain::line(line)));
        std::process::exit(error.exit_code());
    }
    // Help is output like any other.
    let printed = error.print().and_then(|()| std::io::stdout().flush());
    if let (Err(e), false) = (printed, error.use_stderr()) {
        fail(&out::failed(e).into(), 1);
    }
    std::process::exit(error.exit_code());
}

/// Ends with this exit code and says why, unless the reader of the output has left.
pub fn fail(e: &anyhow::Error, code: i32) -> ! {
    if out::failure_in(e).is_some_and(out::OutputFailed::reader_left) {
        std::process::exit(out::READER_LEFT);
    }
    out::say(format!("eyrie: {}", plain::line(&format!("{e:#}"))));
    std::process::exit(code);
}

/// A panic of one thread ends the process: a process that goes on with some of its threads looks
/// alive from outside, and its failure is never detected.
pub fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}
