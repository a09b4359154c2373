//! How a trial is started, how long it may take, and how it failed.

use eyrie_supervision::bounded::Ran;
use eyrie_supervision::own_command;
use std::ffi::OsStr;
use std::process::Command;
use std::time::Duration;

/// Longest time that a trial may take.
pub const LONGEST: Duration = Duration::from_secs(20);

/// Starts this command as a trial.
pub struct Trials<'a> {
    /// The arguments before a trial's own words.
    pub words: &'a [&'a str],
}

impl Trials<'_> {
    /// The command, for a process with fixed addresses if that is allowed, as ranks have them.
    pub(super) fn command(&self, words: &[&OsStr]) -> Command {
        let mut command = own_command();
        command.args(self.words).args(words);
        eyrie_image::start::at_fixed_addresses(&mut command);
        command
    }
}

/// How a trial failed.
pub fn failure(ran: &Ran) -> String {
    let last = ran.stderr.lines().rev().find(|line| !line.trim().is_empty());
    match (ran.status, last) {
        (None, _) => format!("it took more than {} s", LONGEST.as_secs()),
        (_, Some(line)) => line.strip_prefix("eyrie: ").unwrap_or(line).to_string(),
        (Some(status), None) => format!("it ended with {status}"),
    }
}
